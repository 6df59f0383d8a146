"""Output that is too long for an answer: cut in its middle, with a note on how the next script reads all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import OUTPUT_SCHEME
from mcp_bridge.server.answers.decoded_output import Printed

if TYPE_CHECKING:
    from mcp_bridge.executions.artifacts import Files


class KeptOutputs:
    """The outputs of one execution that an answer has cut. Each is stored completely, once.

    Args:
        execution: The execution's id.
        files: Where they are stored.
    """

    def __init__(self, execution: str, files: Files) -> None:
        self._execution = execution
        self._files = files
        self._notes: dict[str, str] = {}

    def where(self, name: str, whole: str | Printed) -> str:
        """A note on how to read all of a cut output; empty if it can't be stored."""
        if name not in self._notes:
            try:
                data = whole.data if isinstance(whole, Printed) else whole.encode("utf-8", "backslashreplace")
                self._files.save_output(self._execution, name + ".txt", data)
                named = "" if name == "stdout" else f", {name!r}"
                uri = f"{OUTPUT_SCHEME}://{self._execution}/{name}"
                self._notes[name] = f"; runtime.output({self._execution!r}{named}) has all of it, or {uri}"
            except (BridgeError, OSError):
                self._notes[name] = ""
        return self._notes[name]


def cut(whole: str | Printed, limit: int, where: str = "") -> str:
    """`whole`; if longer than `limit` characters, its two ends with a note between them.

    The note counts towards the limit if there is room for it; otherwise only the note is returned.
    """
    if len(whole) <= limit:
        return str(whole)
    # The maximum length of the note.
    half = (limit - len(_note(len(whole), len(whole), where)) - 2) // 2
    if half <= 0:
        return _note(len(whole), len(whole), where)
    if isinstance(whole, Printed):
        first, last = whole.first(half), whole.last(half)
    else:
        first, last = whole[:half], whole[-half:]
    return f"{first}\n{_note(len(whole) - 2 * half, len(whole), where)}\n{last}"


def _note(left_out: int, whole: int, where: str) -> str:
    return f"[… {left_out} of {whole} characters cut{where} …]"
