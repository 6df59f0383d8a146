"""An execution as an answer: what the model reads, and what programs read.

Text comes first, because a model pays for it: standard output as it is, the last value, and errors and notices only
when there are any. The whole record is the structured content, unless the client shows that to the model too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.bridge.keep import Files
    from mcp_bridge.bridge.record import ExecutionRecord
    from mcp_bridge.settings import Settings

SHOWS_STRUCTURED = ("claude-code", "openai-mcp", "chatgpt")
"""Clients (the start of the name they give) that show structured content to the model: Claude Code instead of the
text (its issues 55677 and 79944 on GitHub), OpenAI's besides it. They get the record as `_meta`, which no model
sees."""

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")

NOTHING = "(no output)"

MAX_ERROR_CHARS = 8000
LEAST_CHARS = 1000
"""What is shown of a text however much came before it."""


def shows_structured_content(client: str | None) -> bool:
    """Whether this client puts structured content before the model."""
    return client is not None and client.lower().startswith(SHOWS_STRUCTURED)


def text(record: ExecutionRecord, settings: Settings, files: Files) -> str:
    """The text of the answer, in the configured form, within `max_output_chars`."""
    if settings.output == "compact":
        return _compact(record, settings.max_output_chars, files)
    data = _data(record, settings.max_output_chars, files)
    minified = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return _shorter(data, minified) if settings.output == "toon" else minified


def _compact(record: ExecutionRecord, limit: int, files: Files) -> str:
    fields = _fields(record, limit, files)
    parts = [fields["stdout"].removesuffix("\n"), fields["value"]]
    if fields["stderr"]:
        parts.append("[stderr]\n" + fields["stderr"].removesuffix("\n"))
    if record.error:
        parts.append(error_text(record.error))
    parts += [f"[{row['name']}: {row['size']} bytes, {row['uri']}, {row['path']}]" for row in record.artifacts]
    parts += [f"[{notice}]" for notice in record.notices]
    shown = "\n".join(part for part in parts if part)
    # A script may print nothing but blank lines, and they are its output.
    return shown or (fields["stdout"] if fields["stdout"].strip("\n") else NOTHING)


def error_text(error: dict[str, Any], limit: int = MAX_ERROR_CHARS) -> str:
    """An error for a reader: a traceback speaks for itself, anything else names its code."""
    if error.get("traceback"):
        return cut(str(error["traceback"]), limit)
    hint = f" {error['hint']}" if error.get("hint") else ""
    return f"[{error['code']}] {error['message']}{hint}"


def _fields(record: ExecutionRecord, limit: int, files: Files) -> dict[str, str]:
    """Output and value within the limit. What is cut is kept whole in a file, and the cut says where."""
    shown = {
        "stdout": record.stdout.decode("utf-8", "backslashreplace"),
        "value": record.value or "",
        "stderr": record.stderr.decode("utf-8", "backslashreplace"),
    }
    room = limit
    for name, share in (("stderr", limit // 4), ("value", limit // 2), ("stdout", limit)):
        allowed = min(share, room) if name != "stdout" else room
        if len(shown[name]) > allowed:
            shown[name] = cut(shown[name], allowed, _keep(files, record.execution, name, shown[name]))
        room = max(room - len(shown[name]), limit // 4)
    return shown


def _keep(files: Files, execution: str, name: str, whole: str) -> str:
    try:
        return f"; all of it: {files.save_output(execution, name + '.txt', whole.encode())}"
    except (BridgeError, OSError):
        return ""


def cut(whole: str, limit: int, where: str = "") -> str:
    """`whole`, or its two ends with a note between them when it is longer than `limit` characters."""
    if len(whole) <= limit:
        return whole
    half = limit // 2
    return f"{whole[:half]}\n[… {len(whole) - 2 * half} of {len(whole)} characters cut{where} …]\n{whole[-half:]}"


def _data(record: ExecutionRecord, limit: int, files: Files) -> dict[str, Any]:
    """The record as data, without what a model can't use. Output that is one JSON document goes as that document."""
    fields = _fields(record, limit, files)
    data: dict[str, Any] = {"status": record.status}
    if fields["stdout"]:
        data["stdout"] = _document(fields["stdout"])
    for name in ("value", "stderr"):
        if fields[name]:
            data[name] = fields[name]
    if record.error:
        data["exit_code"] = record.exit_code
        data["error"] = {key: value for key, value in record.error.items() if value is not None}
    if record.artifacts:
        data["artifacts"] = record.artifacts
    if record.notices:
        data["notices"] = record.notices
    return data


def _document(printed: str) -> Any:
    if printed.lstrip()[:1] in {"{", "["}:
        try:
            return json.loads(printed, parse_constant=_refuse)
        except ValueError:
            pass
    return printed


def _refuse(name: str) -> None:
    raise ValueError(name)


def _shorter(data: dict[str, Any], minified: str) -> str:
    """TOON where it is shorter and loses nothing, else JSON."""
    import toon_format  # noqa: PLC0415  (90 ms, and only in this form)

    try:
        toon = str(toon_format.encode(data))
        if len(toon.encode()) < len(minified.encode()) and _same(toon_format.decode(toon), data):
            return toon
    except Exception:  # noqa: BLE001  (an encoder's or decoder's fault on odd data: JSON says it as well)
        return minified
    return minified


def _same(left: Any, right: Any) -> bool:
    """Equal in type too: the encoding drops the fraction of 1.0, and False equals 0 to Python."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def refusal(error: BridgeError) -> str:
    """A request that never ran, for a reader."""
    return error_text(error.record())
