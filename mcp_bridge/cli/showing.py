"""What people are shown. Everything here may hold others' words: it is made harmless where it is printed."""

from __future__ import annotations

import json
import shlex
import sys
import time
import unicodedata
from typing import TYPE_CHECKING, Any, TextIO

from mcp_bridge.cli import common
from mcp_bridge.escaping import escaped, exactly

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAX_CELL_CHARS = 60
CUT = "…"
"""At the end of what isn't shown whole."""

MAX_FAILURES = 10

PROGRESS_SECONDS = 5.0
"""From one word about how far something is to the next: what is done before that needs none."""

ENDED_WELL = "success"
UNENDED = frozenset({"suspended", "interrupted", "running"})


def say(text: str) -> None:
    """A line for people who also read the output: on standard error."""
    _write(sys.stderr, common.printable(text))


def tell(text: str) -> None:
    """A line of the output itself."""
    _write(sys.stdout, common.printable(text))


def _write(stream: TextIO, text: str) -> None:
    # A terminal that can't show a sign gets its escape.
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


class Progress:
    """Says on standard error, now and then, how far something is that takes long.

    Args:
        what: What is being done.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._said = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """So many entries of so many are done."""
        if time.monotonic() - self._said >= PROGRESS_SECONDS:
            self._said = time.monotonic()
            say(f"{self._what}: {done} of {total} entries")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as what is in them. Nothing is cut here: the output may be another program's input."""
    lines = [[_cell(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True))
        _write(sys.stdout, "  ".join(padded).rstrip())


def _cell(text: str) -> str:
    return common.printable(" ".join(text.split()))


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else not unicodedata.combining(char) for char in text)


def short_value(value: Any) -> str:
    """A value on one line, cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= MAX_CELL_CHARS else text[: MAX_CELL_CHARS - 1] + CUT


def whole_value(value: Any) -> str:
    """A value over as many lines as it takes: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


def moment(seconds: float | None) -> str:
    """A time in the zone of whoever looks."""
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds))


def command(words: str, config: Path | None) -> str:
    """A command to type: with the configuration that was named for this one."""
    named = f" --config {shlex.quote(str(config))}" if config else ""
    return f"mcp-bridge{named} {words}"


def question(asked: Mapping[str, Any], whose: str = "") -> list[str]:
    """What a person is asked about, as lines: what would be called, on what, and why. All of it.

    What the program has put in stands behind `>`: whatever it says, it can't be taken for anything else. And nothing of
    it is hidden: what else may be printed but can't be seen is escaped here.

    Args:
        asked: The question.
        whose: `operator` or `agent`: whose program asks; by default what the question says.
    """
    if "tool" in asked:
        lines, shown = [f"call of {exactly(str(asked['tool']))} with"], asked.get("arguments")
    else:
        lines, shown = [*_quoted(asked.get("message", ""))], asked.get("details")
    if shown not in (None, {}, []):
        lines += _quoted(shown)
    if asked.get("announced"):
        lines += ["left to the tool, with the defaults that it announces:", *_quoted(asked["announced"])]
    whose = whose or str(asked.get("origin") or "")
    of = f" (the {whose}'s)" if whose else ""
    lines += [
        f"{name}: {exactly(str(asked[name]))}{of if name == 'program' else ''}" for name in _FACTS if asked.get(name)
    ]
    if asked.get("filled"):
        lines.append(f"defaults of the tool, left out by the caller: {exactly(', '.join(asked['filled']))}")
    return lines


_FACTS = ("program", "step", "why")


def _quoted(value: Any) -> list[str]:
    return [f"> {escaped(line)}" for line in whole_value(value).splitlines() or [""]]


def status_of(record: Mapping[str, Any]) -> int:
    """The exit status that stands for how an execution has ended, or hasn't."""
    if record["status"] in UNENDED:
        return common.SUSPENDED
    return common.OK if record["status"] == ENDED_WELL else common.FAILED


def ways_on(waiting: Sequence[Mapping[str, Any]], ident: str, config: Path | None) -> list[str]:
    """For each thing that a suspended execution waits for, what it is and what to type."""
    lines = []
    for row in waiting:
        what = f"{row['step']} waits for "
        match row["kind"]:
            case "approval":
                words = f"approvals show {ident}.{row['effect']}"
                lines.append(f"{what}a person: {command(words, config)}")
            case "in_doubt":
                lines += _doubt(row, ident, config)
            case "program":
                program = str(row["execution"])
                shown = command(f"execution show {program}", config)
                lines.append(f"{what}the program {escaped(str(row['name']))}: {shown}")
                lines += [f"  {line}" for line in ways_on(row["waiting"], program, config)]
            case "wait":
                lines.append(f"{what}{moment(row.get('due'))}: then {command(f'execution resume {ident}', config)}")
            case kind:
                name = f"the {'event' if kind == 'event' else 'outcome of'} {row['name']}"
                lines.append(f"{what}{name}: {command(f'execution resume {ident} --payload JSON', config)}")
    return lines


def _doubt(row: Mapping[str, Any], ident: str, config: Path | None) -> list[str]:
    words = f"execution settle {ident} {row['effect']}"
    return [
        f"{row['step']} is in doubt: {escaped(row['tool'])} may have been called, {moment(row['since'])}, with",
        *_quoted(row["arguments"]),
        f"say what happened: {command(f'{words} --happened [--value JSON]', config)}",
        f"  or: {command(f'{words} --failed MESSAGE', config)}",
        f"  or have it done: {command(f'{words} --not-done', config)}",
    ]


def unresolved(record: Mapping[str, Any]) -> list[str]:
    """Calls that were in doubt when the execution ended, or went on without them: nobody has said what happened."""
    return [
        f"{row['step']} was in doubt, and still is: {row['tool']} {short_value(row['arguments'])}"
        for row in record.get("unresolved", ())
    ]


def _untold(record: Mapping[str, Any]) -> list[str]:
    """Failures that the error of the whole doesn't tell: of steps inside of others, and of what should undo one."""
    failed = [row for row in record["steps"] if row["status"] == "failed" and row.get("error")]
    lines = [f"{row['id']}: {row['error']}" for row in failed if row["error"] not in record["error"]]
    more = len(lines) - MAX_FAILURES
    return [*lines[:MAX_FAILURES], *([f"and {more} more"] if more > 0 else [])]


def outcome(record: Mapping[str, Any], ident: str, config: Path | None) -> None:
    """The record of an execution: its output on standard output, everything else on standard error."""
    if record["output"] is not None:
        tell(whole_value(record["output"]))
    steps = len(record["steps"])
    head = f"mcp-bridge: {record['program']}: {record['status']}, {steps} step{'' if steps == 1 else 's'}"
    say(f"{head}, execution {ident}")
    for row in record.get("warnings", ()):
        say(f"  the policy denies {row['step']} ({row['tool']}) whatever its arguments")
    if record.get("error"):
        say(f"  {record.get('code') or 'error'}: {record['error']}")
        for line in _untold(record):
            say(f"  {line}")
    for line in ways_on(record["waiting"], ident, config):
        say(f"  {line}")
    for line in unresolved(record):
        say(f"  {line}")
    if record["status"] == "interrupted":
        say(f"  it was interrupted, and goes on with: {command(f'execution resume {ident}', config)}")
