"""An execution as an answer: what the model reads, and what programs read.

Text comes first, because a model pays for it: standard output as it is, the last value, and errors and notices only
when there are any. The record is the structured content, unless the client shows that to the model too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from mcp_bridge.bridge.record import GIVEN_BEFORE
from mcp_bridge.errors import BridgeError
from mcp_bridge.server import displays
from mcp_bridge.wire.jsonrpc import MAX_DEPTH, depth_exceeds

if TYPE_CHECKING:
    from mcp_bridge.bridge.keep import Files
    from mcp_bridge.bridge.record import ExecutionRecord
    from mcp_bridge.settings import Settings

T = TypeVar("T")

SHOWS_STRUCTURED = ("claude-code", "openai-mcp", "chatgpt", "codex-mcp-client")
"""Clients (the start of the name they give) that show structured content to the model: Claude Code instead of the
text (its issues 55677 and 79944 on GitHub), Codex too (as anomalyco/opencode's pull request 32074 says, which does the
same), OpenAI's others besides it. They get the record as `_meta`, which no model sees."""

NOTHING = "(no output)"

MAX_ERROR_CHARS = 8000
MAX_ARTIFACTS_SHOWN = 20

NOTE_CHARS = 1000
"""What the notes about cuts, which name files, may add to `max_output_chars`."""

LEAST_BUDGET = 50
"""Where shrinking a form that escapes what it carries ends."""

RECORD_CHARS = 4 << 20
"""The longest output that a program gets within the record, from a client that keeps it from the model."""


def shows_structured_content(client: str | None) -> bool:
    """Whether this client puts structured content before the model."""
    return client is not None and client.lower().startswith(SHOWS_STRUCTURED)


class Answer:
    """One execution's answer. Output too long for it is kept whole in a file, once, however many forms name it.

    Args:
        record: The execution.
        settings: The form, and `max_output_chars`.
        files: Keeps what is cut.
    """

    def __init__(self, record: ExecutionRecord, settings: Settings, files: Files) -> None:
        self._record = record
        self._form = settings.output
        self._limit = settings.max_output_chars
        self._files = files
        self._whole = {
            "stdout": record.stdout.decode("utf-8", "backslashreplace"),
            "value": record.value or "",
            "stderr": record.stderr.decode("utf-8", "backslashreplace"),
        }
        self._kept: dict[str, str] = {}
        self._notices = record.notices + ([GIVEN_BEFORE.format(record.execution)] if record.given_before else [])

    def text(self) -> str:
        """The text in the configured form, at most `max_output_chars` and the notes about cuts; "" beside displays."""
        shown = self._compact() if self._form == "compact" else self._serialized()
        return cut(shown, self._limit + NOTE_CHARS)

    def record(self, whole: int) -> dict[str, Any]:
        """The record for programs, with all its fields.

        Output over `whole` characters is cut as in the text, and names the file that has all of it: a client has to
        take an answer in one line, and many keep every answer for as long as the conversation. What was displayed is
        in the answer's blocks already; the record says what there was.
        """
        out = self._record.to_json()
        for name, text in self._whole.items():
            if name in out and len(text) > whole:
                out[name] = self._cut(name, self._limit)
        if self._notices:
            out["notices"] = self._notices
        if self._record.displays:
            out["displays"] = displays.summary(self._record.displays)
        return out

    def _compact(self) -> str:
        record, limit = self._record, self._limit
        rows = _fitting([_artifact(row) for row in record.artifacts[:MAX_ARTIFACTS_SHOWN]], limit // 4)
        if len(rows) < len(record.artifacts):
            rows.append(f"[… {len(record.artifacts) - len(rows)} more artifacts]")
        error = error_text(record.error, min(MAX_ERROR_CHARS, limit // 2)) if record.error else ""
        notices = cut("\n".join(f"[{notice}]" for notice in self._notices), limit // 4)
        last = [error, *rows, notices]
        fields = self._fields(max(limit - sum(map(len, last)), limit // 4))
        parts = [fields["stdout"].removesuffix("\n"), fields["value"]]
        if fields["stderr"]:
            parts.append("[stderr]\n" + fields["stderr"].removesuffix("\n"))
        shown = "\n".join(part for part in parts + last if part)
        if shown or record.displays:
            return shown
        # A script may print nothing but blank lines, and they are its output.
        return fields["stdout"] if fields["stdout"].strip("\n") else NOTHING

    def _serialized(self) -> str:
        """As JSON or TOON. Escapes make text longer, so less is taken until it fits: a cut document is none."""
        budget = self._limit
        while True:
            data = self._data(budget)
            minified = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
            shown = _shorter(data, minified) if self._form == "toon" else minified
            if len(shown) <= self._limit + NOTE_CHARS or budget < LEAST_BUDGET:
                return shown
            budget //= 2

    def _data(self, limit: int) -> dict[str, Any]:
        """The record as data, without what a model can't use. One JSON document as output goes as that document."""
        record = self._record
        data: dict[str, Any] = {}
        if record.error:
            data["exit_code"] = record.exit_code
            data["error"] = _error(record.error, min(2 * MAX_ERROR_CHARS, limit // 2))
        if rows := _fitting(record.artifacts[:MAX_ARTIFACTS_SHOWN], limit // 4):
            data["artifacts"] = rows
        if len(rows) < len(record.artifacts):
            data["more_artifacts"] = len(record.artifacts) - len(rows)
        if self._notices:
            data["notices"] = _fitting(self._notices, limit // 4)
        fields = self._fields(max(limit - len(json.dumps(data, ensure_ascii=False)), limit // 4))
        first: dict[str, Any] = {"status": record.status}
        if fields["stdout"]:
            first["stdout"] = _document(fields["stdout"])
        return first | {name: fields[name] for name in ("value", "stderr") if fields[name]} | data

    def _fields(self, limit: int) -> dict[str, str]:
        """Output and value within the limit."""
        shown = dict(self._whole)
        room = limit
        for name, share in (("stderr", limit // 4), ("value", limit // 2), ("stdout", limit)):
            allowed = min(share, room)
            shown[name] = self._cut(name, allowed)
            room = max(room - min(len(shown[name]), allowed), limit // 4)
        return shown

    def _cut(self, name: str, limit: int) -> str:
        whole = self._whole[name]
        return whole if len(whole) <= limit else cut(whole, limit, self._where(name))

    def _where(self, name: str) -> str:
        """Where all of an output is, for the note about its cut."""
        if name not in self._kept:
            try:
                data = self._whole[name].encode("utf-8", "backslashreplace")
                path = self._files.save_output(self._record.execution, name + ".txt", data)
                self._kept[name] = f"; all of it: {path}"
            except (BridgeError, OSError):
                self._kept[name] = ""
        return self._kept[name]


def error_text(error: dict[str, Any], limit: int = MAX_ERROR_CHARS) -> str:
    """An error for a reader: a traceback speaks for itself, anything else names its code."""
    if error.get("traceback"):
        return cut(str(error["traceback"]), limit)
    hint = f" {error['hint']}" if error.get("hint") else ""
    return cut(f"[{error['code']}] {error['message']}{hint}", limit)


def _error(error: dict[str, Any], limit: int) -> dict[str, Any]:
    """An error for programs, its texts within the limit together."""
    shares = {"traceback": limit // 2, "message": limit // 4}
    return {
        key: cut(value, shares.get(key, limit // 8)) if isinstance(value, str) else value
        for key, value in error.items()
        if value is not None
    }


def _artifact(row: dict[str, Any]) -> str:
    return f"[{row['name']}: {row['size']} bytes, {row['uri']}, {row['path']}]"


def _fitting(items: list[T], share: int) -> list[T]:
    """The first items, as many as `share` characters hold."""
    fitting = []
    for item in items:
        share -= len(item if isinstance(item, str) else json.dumps(item, ensure_ascii=False))
        if share < 0:
            break
        fitting.append(item)
    return fitting


def cut(whole: str, limit: int, where: str = "") -> str:
    """`whole`, or its two ends with a note between them when it is longer than `limit` characters."""
    if len(whole) <= limit:
        return whole
    half = limit // 2
    end = whole[len(whole) - half :]
    return f"{whole[:half]}\n[… {len(whole) - 2 * half} of {len(whole)} characters cut{where} …]\n{end}"


def _document(printed: str) -> Any:
    if printed.lstrip()[:1] in {"{", "["}:
        try:
            document = json.loads(printed, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return printed
        # What could just be read can't always be written: that takes a deeper stack.
        return printed if depth_exceeds(document, MAX_DEPTH) else document
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
