"""Renders an execution as an answer: text for the model, and a record for programs.

Text comes first, because models pay for it: standard output unchanged, the last value, and errors and notices only if
there are any. The record is the structured content, unless the client shows that to the model too. In any case, both
together are within `max_output_chars`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from mcp_bridge.errors import joined
from mcp_bridge.executions.record import PREVIOUS_RESULT_NOTICE
from mcp_bridge.server.answers import displays
from mcp_bridge.server.answers.cut_output import KeptOutputs, cut
from mcp_bridge.server.answers.decoded_output import Printed
from mcp_bridge.wire.jsonrpc import MAX_DEPTH, depth_exceeds

if TYPE_CHECKING:
    from mcp_bridge.errors import BridgeError, ErrorRecord
    from mcp_bridge.executions.artifacts import Files
    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.settings import Settings

T = TypeVar("T")

NOTHING = "(no output)"

MAX_ERROR_CHARS = 8000
MAX_ARTIFACTS_SHOWN = 20

BETWEEN_CHARS = 60
"""Space for separators between the parts of an answer."""

LEAST_BUDGET = 50
"""The lower bound when an escaped form is shortened."""

OUTPUTS = ("stdout", "stderr", "value")


def for_elsewhere(record: ExecutionRecord) -> ExecutionRecord:
    """A record for a client that may be on another machine: without paths of this one, which it has no use for."""
    rows = [{key: value for key, value in row.items() if key != "path"} for row in record.artifacts]
    return replace(record, artifacts=rows)


class Answer:
    """The answer of one execution. Text that is too long for it is cut, and stored completely, once.

    Args:
        record: The execution's record.
        settings: Determine the form and `max_output_chars`.
        files: Stores cut output.

    Attributes:
        kept: The outputs that the answer has cut.
    """

    def __init__(self, record: ExecutionRecord, settings: Settings, files: Files) -> None:
        self._record = record
        self._form = settings.output
        self._limit = settings.max_output_chars
        self._whole: dict[str, str | Printed] = {
            "stdout": Printed(record.stdout),
            "value": record.value or "",
            "stderr": Printed(record.stderr),
            "error": error_text(record.error, None) if record.error else "",
        }
        self.kept = KeptOutputs(record.execution, files)
        self._notices = record.notices + (
            [PREVIOUS_RESULT_NOTICE.format(record.execution)] if record.is_previous_result else []
        )

    def text(self, limit: int | None = None) -> str:
        """The text in the configured form, at most `limit` characters, by default `max_output_chars`.

        Empty if there are displayed objects and nothing else.
        """
        limit = self._limit if limit is None else limit
        return cut(self._compact(limit), limit) if self._form == "compact" else self._serialized(limit)

    def record(self, whole: int) -> dict[str, Any]:
        """The record for programs, with all fields.

        Output longer than `whole` characters is cut, with a note on how to read the rest: a client receives an answer
        as one line, and many keep every answer as long as the conversation. Displayed objects are in the answer's
        content blocks; the record only lists them.
        """
        out = self._record.to_keep()
        for name in OUTPUTS:
            if name in out:
                is_long = len(self._whole[name]) > whole
                out[name] = self._cut(name, self._limit) if is_long else str(self._whole[name])
        if self._notices:
            out["notices"] = self._notices
        if self._record.displays:
            out["displays"] = displays.summary(self._record.displays)
        return out

    def record_within(self, room: int) -> tuple[dict[str, Any], bool]:
        """The record in at most `room` characters of JSON, and whether it is complete.

        With very little room it has only the execution's id, its status and its exit code.
        """
        if sum(map(len, self._whole.values())) <= room:
            out = self.record(room)
            if _json_chars(out) <= room:
                return out, True
        budget = room
        while budget >= LEAST_BUDGET:
            out = self._brief(budget)
            if _json_chars(out) <= room:
                return out, False
            budget //= 2
        record = self._record
        return {"execution": record.execution, "status": record.status, "exit_code": record.exit_code}, False

    def _compact(self, limit: int) -> str:
        record = self._record
        rows = _fitting([_artifact(row) for row in record.artifacts[:MAX_ARTIFACTS_SHOWN]], limit // 8)
        if len(rows) < len(record.artifacts):
            more = len(record.artifacts) - len(rows)
            rows.append(f"[… {more} more artifacts; the list of resources has artifact://{record.execution}/NAME]")
        error = self._cut("error", min(MAX_ERROR_CHARS, limit * 3 // 8))
        notices = cut("\n".join(f"[{notice}]" for notice in self._notices), limit // 8)
        last = [error, *rows, notices]
        fields = self._fields(limit - sum(map(len, last)) - len(last) - BETWEEN_CHARS)
        parts = [fields["stdout"].removesuffix("\n"), fields["value"]]
        if fields["stderr"]:
            parts.append("[stderr]\n" + fields["stderr"].removesuffix("\n"))
        shown = "\n".join(part for part in parts + last if part)
        if shown or record.displays:
            return shown
        # A script may print only blank lines, which are its output.
        return fields["stdout"] if fields["stdout"].strip("\n") else NOTHING

    def _serialized(self, limit: int) -> str:
        """The answer as JSON or TOON. Escapes lengthen texts, so they are cut further until the document fits."""
        budget = limit
        while True:
            data = self._data(budget) if budget >= LEAST_BUDGET else {"status": self._record.status}
            minified = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
            shown = _shorter(data, minified) if self._form == "toon" else minified
            if len(shown) <= limit or budget < LEAST_BUDGET:
                return shown
            budget //= 2

    def _data(self, limit: int) -> dict[str, Any]:
        """The record's data that is useful to a model. Output that is a JSON document is embedded as such."""
        record = self._record
        data: dict[str, Any] = {}
        if record.error:
            data["exit_code"] = record.exit_code
            data["error"] = self._error(min(2 * MAX_ERROR_CHARS, limit // 2))
        if rows := _fitting(record.artifacts[:MAX_ARTIFACTS_SHOWN], limit // 8):
            data["artifacts"] = rows
        if len(rows) < len(record.artifacts):
            data["more_artifacts"] = len(record.artifacts) - len(rows)
        if self._notices:
            data["notices"] = _fitting(self._notices, limit // 8)
        fields = self._fields(max(limit - _json_chars(data), limit // 4))
        first: dict[str, Any] = {"status": record.status}
        if fields["stdout"]:
            first["stdout"] = _document(fields["stdout"])
        return first | {name: fields[name] for name in ("value", "stderr") if fields[name]} | data

    def _brief(self, limit: int) -> dict[str, Any]:
        """The record with all potentially long parts shortened."""
        out = self._record.to_keep()
        if self._notices:
            out["notices"] = self._notices
        if self._record.displays:
            out["displays"] = displays.summary(self._record.displays)
        for name in OUTPUTS:
            if name in out:
                out[name] = self._cut(name, limit // 8)
        if "error" in out:
            out["error"] = self._error(limit // 4)
        for name in ("artifacts", "displays", "notices", "waiting", "planned"):
            if name in out:
                out[name] = _fitting(out[name], limit // 8)
        return out

    def _error(self, limit: int) -> dict[str, Any]:
        """The error for programs, with its texts within the limit in total."""
        shares = {"traceback": limit // 2, "message": limit // 4}
        made: dict[str, Any] = {}
        for key, value in (self._record.error or {}).items():
            share = shares.get(key, limit // 8)
            if isinstance(value, str) and len(value) > share:
                made[key] = cut(value, share, self.kept.where("error", self._whole["error"]))
            elif isinstance(value, dict | list) and _json_chars(value) > share:
                made[key] = f"[… {_json_chars(value)} characters cut …]"
            elif value is not None:
                made[key] = value
        return made

    def _fields(self, limit: int) -> dict[str, str]:
        """Output and value within the limit in total; none is dropped because another is long."""
        lengths = {name: len(self._whole[name]) for name in OUTPUTS}
        stderr = self._cut("stderr", max(limit // 4, limit - lengths["stdout"] - lengths["value"]))
        room = limit - len(stderr)
        value = self._cut("value", max(min(limit // 2, room), room - lengths["stdout"]))
        return {"stderr": stderr, "value": value, "stdout": self._cut("stdout", room - len(value))}

    def _cut(self, name: str, limit: int) -> str:
        whole = self._whole[name]
        return str(whole) if len(whole) <= limit else cut(whole, limit, self.kept.where(name, whole))


def _json_chars(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False))


def error_text(error: ErrorRecord, limit: int | None = MAX_ERROR_CHARS) -> str:
    """An error as text: a traceback, and a hint there is; other errors with their code. None as limit for all of it."""
    hint = error.get("hint")
    if error.get("traceback"):
        shown = str(error["traceback"]) + (f"\n[{error['code']}] {hint}" if hint else "")
    else:
        shown = f"[{error['code']}] {joined(error['message'], hint)}"
    return shown if limit is None else cut(shown, limit)


def _artifact(row: dict[str, Any]) -> str:
    path = f", {row['path']}" if "path" in row else ""
    return f"[{row['name']}: {row['size']} bytes, {row['uri']}{path}]"


def _fitting(items: list[T], share: int) -> list[T]:
    """As many of the first items as fit into `share` characters."""
    fitting = []
    for item in items:
        share -= len(item if isinstance(item, str) else json.dumps(item, ensure_ascii=False))
        if share < 0:
            break
        fitting.append(item)
    return fitting


def _document(printed: str) -> Any:
    if printed.lstrip()[:1] in {"{", "["}:
        try:
            document = json.loads(printed, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return printed
        # A value that was just decoded can't always be encoded: encoding takes more stack.
        return printed if depth_exceeds(document, MAX_DEPTH) else document
    return printed


def _refuse(name: str) -> None:
    raise ValueError(name)


def _shorter(data: dict[str, Any], minified: str) -> str:
    """TOON if it is shorter and lossless, else JSON."""
    import toon_format  # noqa: PLC0415  (90 ms, and only in this form)

    try:
        toon = str(toon_format.encode(data))
        if len(toon.encode()) < len(minified.encode()) and _same(toon_format.decode(toon), data):
            return toon
    except Exception:  # noqa: BLE001  (an encoder's or decoder's fault on odd data: JSON says it as well)
        return minified
    return minified


def _same(left: Any, right: Any) -> bool:
    """Equality that includes types: TOON drops the fraction of 1.0, and in Python False equals 0."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def refusal(error: BridgeError) -> str:
    """A refused request as text."""
    return error_text(error.record())
