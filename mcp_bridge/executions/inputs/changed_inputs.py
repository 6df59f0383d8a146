"""Inputs that aren't what they were when a script opened them: run again, it gets no other file than it got."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.scripts.call_history import CallRequest
from mcp_bridge.executions.scripts.divergence import Divergence

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class ChangedInput(Divergence):
    """A script that is run again would get another file than it got.

    Attributes:
        name: What the script has opened.
        why: Why it can't be had at all; None if it can, and is another.
    """

    name: str = ""
    why: str | None = None

    @classmethod
    def unavailable(cls, call: str, name: str, answer: dict[str, Any], why: str) -> ChangedInput:
        """An input that can't be had any more.

        Args:
            call: The call that opens it.
            name: As it was opened.
            answer: What `ExecutionInputs.opened` gave then.
            why: Why it can't.
        """
        return cls(call, _opening(name, answer["kind"], answer["files"]), None, None, "input", name, why)

    @classmethod
    def between(
        cls, call: str, name: str, answer: dict[str, Any], kind: str, now: Sequence[dict[str, Any]]
    ) -> ChangedInput:
        """An input that is another: both sides of the first file that isn't the same.

        Args:
            call: The call that opens it.
            name: As it was opened.
            answer: What `ExecutionInputs.opened` gave then.
            kind: What it is now: `file` or `folder`.
            now: The rows of its files.
        """
        before = {row["path"]: row for row in answer["files"]}
        after = {row["path"]: row for row in now}
        one_side: Sequence[dict[str, Any]] = answer["files"]
        other_side = now
        for path in sorted({*before, *after}):
            one, other = before.get(path), after.get(path)
            if one is None or other is None or one["sha256"] != other["sha256"]:
                one_side, other_side = [one] if one else [], [other] if other else []
                break
        recorded, found = _opening(name, answer["kind"], one_side), _opening(name, kind, other_side)
        return cls(call, recorded, found, None, "input", name)

    def error(self) -> BridgeError:
        """As `Divergence.error`."""
        before = "it was" if self.recorded is None else f"it was {_file(self.recorded)}"
        now = f", and can't be had now: {self.why}" if self.asked is None else f", and is {_file(self.asked)}."
        return BridgeError(
            "input_changed",
            f"The input {self.name!r} isn't what this run was given: {before}{now}",
            hint="Restore the file as it was, or run the code again from the start. Nothing was done twice.",
            call=self.call,
            input=self.name,
            recorded=self.recorded and self.recorded.arguments,
            found=self.asked and self.asked.arguments,
        )


def _opening(name: str, kind: str, rows: Sequence[dict[str, Any]]) -> CallRequest:
    """What opening an input gives, for people: its first file."""
    files = [{key: row[key] for key in ("path", "size", "sha256")} for row in rows[:1]]
    return CallRequest("input", "input.open", {"name": name, "kind": kind, "files": files})


def _file(side: CallRequest) -> str:
    """The first file of a side, for people."""
    files = side.arguments["files"]
    if not files:
        return "nothing" if side.arguments["kind"] == "folder" else "no file"
    return f"{files[0]['path'] or side.arguments['name']!r} with {files[0]['size']} bytes, {files[0]['sha256'][:12]}…"
