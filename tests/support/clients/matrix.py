"""Which client does what with the one tool. A row is what the tests assert; the table of docs/clients.md says it in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clients.conversation import inspector, typescript_sdk, with_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from clients.conversation import Conversation, Place


@dataclass(frozen=True)
class Row:
    """One client.

    Attributes:
        title: Its name in docs/clients.md.
        package: What it comes in; `requirements/node-clients` has its version.
        held: Has the conversation.
        says: The name that it gives the bridge, which decides by it what to answer.
        revision: The protocol's revision that it asks for.
        tool: What the tool is called before the model.
        instructions: Whether the server's instructions reach the model.
        frame: What the model is shown of a text, as a regular expression with a group for the text.
        marks_errors: Whether a failure is marked as one before the model, and not by its text alone.
        image_note: What the client itself says with an image.
        images_of_errors: Whether the images of a script that fails reach the model.
        record: Which answers' records reach the model.
        asks_progress: Whether every call asks for it, which has the bridge give signs of life.
        shows_progress: Whether the person or program before the client sees what a script says of its progress.
        cancels: Whether a call that is interrupted is cancelled by a message; else the bridge sees its client go.
    """

    title: str
    package: str
    held: Callable[[Place], Conversation]
    says: str
    revision: str
    tool: str = "run_python"
    instructions: bool = True
    frame: str = "(.*)"
    marks_errors: bool = True
    image_note: str = ""
    images_of_errors: bool = True
    record: Literal["never", "of errors", "always"] = "never"
    asks_progress: bool = True
    shows_progress: bool = False
    cancels: bool = True


MATRIX = {
    "claude-code": Row(
        title="Claude Code",
        package="@anthropic-ai/claude-code",
        held=with_model("claude-code"),
        says="claude-code",
        revision="2026-07-28",
        tool="mcp__bridge__run_python",
        image_note="[Image: source: /",
        images_of_errors=False,
    ),
    "codex": Row(
        title="Codex",
        package="@openai/codex",
        held=with_model("codex"),
        says="codex-mcp-client",
        revision="2025-06-18",
        tool="mcp__bridge.run_python",
        frame=r"Wall time: [\d.]+ seconds\nOutput:\n(.*)",
        marks_errors=False,
    ),
    "gemini-cli": Row(
        title="Gemini CLI",
        package="@google/gemini-cli",
        held=with_model("gemini-cli"),
        says="gemini-cli-mcp-client",
        revision="2025-06-18",
        tool="mcp_bridge_run_python",
        frame=r"<untrusted_context>\n(.*)\n</untrusted_context>",
        image_note="[Tool 'run_python' provided the following image data with mime-type: image/png]",
        images_of_errors=False,
        record="of errors",
        cancels=False,
    ),
    "opencode": Row(
        title="opencode",
        package="opencode-linux-x64-baseline",
        held=with_model("opencode"),
        says="opencode",
        revision="2025-11-25",
        tool="bridge_run_python",
        marks_errors=False,
        images_of_errors=False,
        cancels=False,
    ),
    "inspector": Row(
        title="Inspector",
        package="@modelcontextprotocol/inspector",
        held=inspector,
        says="inspector-cli",
        revision="2025-11-25",
        instructions=False,
        record="always",
        asks_progress=False,
        cancels=False,
    ),
    "typescript-sdk": Row(
        title="TypeScript SDK",
        package="@modelcontextprotocol/sdk",
        held=typescript_sdk,
        says="a-program",
        revision="2025-11-25",
        record="always",
        shows_progress=True,
    ),
}
"""By name. "The model" is, for the last two, the program that uses them."""
