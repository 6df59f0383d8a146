"""MCP resources: artifacts, cut outputs, traces, programs, and the JSON Schema of programs."""

from __future__ import annotations

import base64
import json
import mimetypes
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote

import mcp_types as types

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import ARTIFACT_SCHEME, OUTPUT_SCHEME, Place
from mcp_bridge.executions.trace_record import to_record
from mcp_bridge.kernel.language.program_schema import json_schema
from mcp_bridge.offload import on_thread
from mcp_bridge.server.answers.displays import is_text

if TYPE_CHECKING:
    from mcp_bridge.executions.artifacts import ReadArtifact, StoredArtifact
    from mcp_bridge.host.bridge import Bridge

SCHEMA_URI = "program-schema://v1"
SESSIONS_URI = "sessions://all"
PROGRAM_SCHEME = "program"
TRACE_SCHEME = "trace"

JSON = "application/json"

SHA256_META = "mcp-code-bridge/sha256"
RECORDED_META = "mcp-code-bridge/recorded"
"""Whether the ledger has that hash. It doesn't until the execution has ended."""

EXPIRES_META = "mcp-code-bridge/expires"

MAX_CHAR_BYTES = 4
"""The maximum length of a UTF-8 character in bytes."""

MAX_DIGITS = 16
NEXT_CHARS = 100
"""Space for the line that names the next part."""


async def listed(bridge: Bridge, cursor: str | None = None) -> types.ListResourcesResult:
    """A page of the resources: the schema, the list of sessions if there are any, the programs, and artifacts.

    The first page has all but artifacts whole, and the newest of these. Further ones, as a client asks for them by the
    cursor, go on with older artifacts; what is kept meanwhile is on none of them. Traces and outputs aren't listed: the
    answers that refer to them contain their URIs.

    Args:
        bridge: What a principal has.
        cursor: The `nextCursor` of the page before.

    Raises:
        BridgeError: `bad_argument`: the cursor isn't one.
    """
    page = await bridge.own_files.artifacts(None if cursor is None else _place(cursor))
    keep_days = bridge.settings.ledger.keep_files_days
    return types.ListResourcesResult(
        resources=[
            *(await _first(bridge) if cursor is None else ()),
            *(_artifact_resource(stored, keep_days) for stored in page.rows),
        ],
        next_cursor=None if page.last is None else _cursor(page.last),
    )


def _cursor(place: Place) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode("ascii")


def _place(cursor: str) -> Place:
    """The place that a cursor stands for.

    Raises:
        BridgeError: `bad_argument`.
    """
    try:
        match json.loads(base64.b64decode(cursor.encode("ascii"), b"-_", validate=True)):
            case [int() | float() as modified, str(uri)] if not isinstance(modified, bool):
                return Place(modified, uri)
    except (ValueError, RecursionError):
        pass
    raise BridgeError(
        "bad_argument", f"{cursor!r:.100} is no cursor of this list.", hint="Ask for the first page, without a cursor."
    )


async def _first(bridge: Bridge) -> list[types.Resource]:
    """What comes before the artifacts."""
    schema = types.Resource(
        uri=SCHEMA_URI, name="program schema", description="JSON Schema of programs", mime_type=JSON
    )
    rows = await bridge.programs.library.listed(bridge.principal.name)
    sessions = types.Resource(
        uri=SESSIONS_URI, name="sessions", description="The sessions of run_python, and their states", mime_type=JSON
    )
    return [
        schema,
        # Most clients never have one.
        *([sessions] if await bridge.sessions.are_there() else ()),
        *(
            types.Resource(
                uri=f"{PROGRAM_SCHEME}://{quote(row['name'], safe='')}",
                name=row["name"],
                description=row["description"] or None,
                mime_type=JSON,
            )
            for row in rows
        ),
    ]


def _artifact_resource(stored: StoredArtifact, keep_days: float | Literal["forever"]) -> types.Resource:
    """An artifact with its hash, and when it is removed at the earliest."""
    meta: dict[str, Any] = {}
    if stored.sha256 is not None:
        meta[SHA256_META] = stored.sha256
    if keep_days != "forever":
        # After the last year that a date can have, it is as good as kept.
        with suppress(ValueError, OverflowError, OSError):
            meta[EXPIRES_META] = _time(stored.modified + keep_days * 86400)
    return types.Resource(
        uri=stored.uri,
        name=unquote(stored.uri.rpartition("/")[2]),
        size=stored.size,
        mime_type=mime_type(stored.uri),
        annotations=types.Annotations(last_modified=_time(stored.modified)),
        _meta=meta or None,
    )


def _time(seconds: float) -> str:
    """A time as ISO 8601 has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def templates() -> list[types.ResourceTemplate]:
    """The URI templates."""
    return [
        types.ResourceTemplate(
            uri_template=f"{TRACE_SCHEME}://{{trace_id}}",
            name="trace",
            description="An execution of a program or a script",
            mime_type=JSON,
        ),
        types.ResourceTemplate(
            uri_template=f"{PROGRAM_SCHEME}://{{name}}", name="program", description="A program", mime_type=JSON
        ),
        types.ResourceTemplate(
            uri_template=f"{ARTIFACT_SCHEME}://{{execution}}/{{name}}",
            name="artifact",
            description="A file that a script has kept with artifact(path)",
        ),
        types.ResourceTemplate(
            uri_template=f"{OUTPUT_SCHEME}://{{execution}}/{{name}}{{?start}}",
            name="output",
            description="What an answer had to cut (stdout, stderr, value, error, displays), from a byte on",
            mime_type="text/plain",
        ),
    ]


async def read(bridge: Bridge, uri: str) -> types.TextResourceContents | types.BlobResourceContents:
    """Read one resource.

    Raises:
        BridgeError: `unknown_artifact`, `artifact_changed`, `unknown_output`, `unknown_trace`, `unknown_program`;
            `bad_argument`.
    """
    scheme, _, rest = uri.partition("://")
    rest = unquote(rest).rstrip("/")
    if uri == SCHEMA_URI:
        return _json(uri, json_schema())
    if uri == SESSIONS_URI:
        return _json(uri, {"sessions": await bridge.listed_sessions()})
    if scheme == TRACE_SCHEME:
        return _json(uri, to_record(await bridge.lifecycle.stored(rest, bridge.principal.name)))
    if scheme == PROGRAM_SCHEME:
        return _json(uri, (await bridge.programs.library.find(rest, bridge.principal.name)).program.data)
    if scheme == OUTPUT_SCHEME:
        return await _output(bridge, uri)
    if scheme != ARTIFACT_SCHEME:
        raise BridgeError(
            "unknown_artifact", f"There is no resource {uri[:200]!r}.", hint="resources/list has those that there are."
        )
    return await on_thread(_artifact, await bridge.own_files.read(uri), uri, bridge.settings.max_output_chars)


def _artifact(
    artifact: ReadArtifact, uri: str, max_chars: int
) -> types.TextResourceContents | types.BlobResourceContents:
    """Text as text if it is short enough for an answer, else as bytes, which no client shows to its model."""
    data, kind = artifact.data, mime_type(uri)
    meta = {SHA256_META: artifact.sha256, RECORDED_META: artifact.is_recorded}
    if is_text(kind) and len(data) <= MAX_CHAR_BYTES * max_chars:
        with suppress(UnicodeDecodeError):
            text = data.decode("utf-8")
            if len(text) <= max_chars:
                return types.TextResourceContents(uri=uri, text=text, mime_type=kind, _meta=meta)
    return types.BlobResourceContents(uri=uri, blob=base64.b64encode(data).decode("ascii"), mime_type=kind, _meta=meta)


async def _output(bridge: Bridge, uri: str) -> types.TextResourceContents:
    """As much of an output as fits into an answer, from a byte offset; the last line names the next part's offset."""
    address, _, query = uri.partition("?")
    execution, _, name = address.partition("://")[2].partition("/")
    start = query.removeprefix("start=") if query else "0"
    if not (start.isascii() and start.isdigit() and len(start) < MAX_DIGITS):
        raise BridgeError(
            "bad_argument",
            f"{query[:50]!r} is no position in an output.",
            hint="Write ?start= and the number of a byte, as the end of the part before it says.",
        )
    most = bridge.settings.max_output_chars - NEXT_CHARS
    text, following = await bridge.own_files.read_output(execution, name, int(start), most)
    if following is not None:
        text += f"\n[… continues: {address}?start={following} …]"
    return types.TextResourceContents(uri=uri, text=text, mime_type="text/plain")


def _json(uri: str, value: Any) -> types.TextResourceContents:
    return types.TextResourceContents(uri=uri, text=json.dumps(value, ensure_ascii=False), mime_type=JSON)


def mime_type(uri: str) -> str:
    """The MIME type that the suffix of an artifact's name implies."""
    # A directory is prepended because the name itself may look like a URL.
    found, encoding = mimetypes.guess_type("/" + unquote(uri.rpartition("/")[2]))
    return found if found and not encoding else "application/octet-stream"
