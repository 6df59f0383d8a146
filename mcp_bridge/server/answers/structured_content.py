"""An execution's record, besides its text: as structured content, or as `_meta` for clients that show the former.

A client that shows structured content to its model would show it instead of the text, or both. One that shows `_meta`,
too, gets neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_types import TextContent

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from mcp_bridge.server.answers.render import Answer
    from mcp_bridge.settings import Settings

SHOWS_STRUCTURED = ("claude-code", "openai-mcp", "chatgpt", "codex-mcp-client", "google-adk")
"""Clients (prefixes of their names) that show structured content to the model: Claude Code instead of the text (its
GitHub issues 55677 and 79944), Codex too (according to pull request 32074 of anomalyco/opencode, which does the same),
OpenAI's other clients and Google's ADK in addition to it. They get the record as `_meta`, which no model sees. Unknown
clients may do the same, so for all clients both together are within `max_output_chars`."""

AMBIGUOUS_CLIENT_NAMES = ("fastmcp",)
"""The name of fastmcp's client, which many programs share. Some of them, such as pydantic-ai, show structured content
instead of the text, and for an error as JSON within JSON. They get the record as `_meta`, unless the operator has set
it to be sent always."""

SHOWS_META = ("@langchain/mcp-adapters",)
"""Clients that show the model `_meta` as well as structured content, in one JSON with the text (LangChain's for
JavaScript, `_convertCallToolResult` of 1.1). They get no record, unless the operator has set it to be sent always."""

RECORD_CHARS = 4 << 20
"""Maximum output in the record if the operator has set structured content to be sent always."""

RECORD_META = "mcp-code-bridge/record"


def shows_structured_content(client: str | None, *, for_certain: bool = False) -> bool:
    """Whether this client shows structured content to the model; `for_certain`: in all programs that use its name."""
    names = SHOWS_STRUCTURED + SHOWS_META + (() if for_certain else AMBIGUOUS_CLIENT_NAMES)
    return client is not None and client.lower().startswith(names)


def _shows_meta(client: str | None) -> bool:
    return client is not None and client.lower().startswith(SHOWS_META)


def add_refusal(result: CallToolResult, record: dict[str, Any], settings: Settings, client: str | None) -> None:
    """Add the record of a request that was refused.

    Args:
        result: The answer.
        record: The record.
        settings: The settings.
        client: The client's name, or None.
    """
    mode = settings.structured
    if mode == "always" or (mode == "auto" and not shows_structured_content(client)):
        result.structured_content = record
    elif mode == "auto" and not _shows_meta(client):
        result.meta = {RECORD_META: record}


def add_record(result: CallToolResult, answer: Answer, settings: Settings, client: str | None) -> None:
    """Add the record of an execution. What the model may see of the answer stays within `max_output_chars`.

    Args:
        result: The answer, with its content.
        answer: The execution's answer.
        settings: The settings.
        client: The client's name, or None.
    """
    limit = settings.max_output_chars
    if settings.structured == "always":
        is_read = shows_structured_content(client, for_certain=True)
        result.structured_content = answer.record(limit if is_read else RECORD_CHARS)
    elif settings.structured == "auto" and not _shows_meta(client):
        used = sum(len(block.text) for block in result.content if isinstance(block, TextContent))
        record, is_whole = answer.record_within(limit - used)
        if is_whole and not shows_structured_content(client):
            result.structured_content = record
        else:
            # A truncated record must not be shown instead of the text.
            result.meta = {RECORD_META: record}
