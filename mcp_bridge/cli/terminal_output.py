"""Output for people. All of it may contain untrusted text, which is escaped when it is printed."""

from __future__ import annotations

import json
import os
import shlex
import sys
import textwrap
import time
import unicodedata
from typing import TYPE_CHECKING, Any, TextIO

from mcp_bridge import escaping
from mcp_bridge.cli import exit_statuses
from mcp_bridge.escaping import escape_invisible, escape_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

MAX_CELL_CHARS = 60
CUT = "…"
"""Marks the end of text that was cut."""

MAX_FAILURES = 10

PROGRESS_SECONDS = 5.0
"""Interval of progress messages; work that takes less time gets none."""


def echo_err(text: str) -> None:
    """Print a line on standard error, for people who also read the output."""
    _write(sys.stderr, escaping.escape_controls(text))


def echo(text: str) -> None:
    """Print a line of the output."""
    _write(sys.stdout, escaping.escape_controls(text))


def _write(stream: TextIO, text: str) -> None:
    # Characters that the terminal's encoding lacks are escaped.
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def print_styled(
    text: str, style: str = "", *, mark: str = "", mark_style: str = "", stream: TextIO | None = None
) -> None:
    """Print text in a style. At a terminal its lines are wrapped between words; anywhere else they aren't.

    Args:
        text: The text.
        style: Its style, as `rich` names it.
        mark: What is before it, and a space.
        mark_style: The style of that.
        stream: Where to; by default standard output.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream or sys.stdout)
    text = f"{mark} {escaping.escape_controls(text)}" if mark else escaping.escape_controls(text)
    if console.file.isatty():
        # A word that is longer than a line is left to the terminal, from which it is copied in one piece.
        wrapper = textwrap.TextWrapper(
            console.width or 80, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
        )
        text = "\n".join(map(wrapper.fill, text.split("\n")))
    shown = Text(text, style)
    shown.stylize(mark_style, 0, len(mark))
    console.print(shown, soft_wrap=True)


class Progress:
    """Reports the progress of a long operation on standard error at intervals.

    Args:
        what: What is being done.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._said = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Report that `done` of `total` entries are done."""
        if time.monotonic() - self._said >= PROGRESS_SECONDS:
            self._said = time.monotonic()
            echo_err(f"{self._what}: {done} of {total} entries")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns. Nothing is cut: the output may be another program's input."""
    lines = [[_cell(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True))
        _write(sys.stdout, "  ".join(padded).rstrip())


def _cell(text: str) -> str:
    return escaping.escape_controls(" ".join(text.split()))


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else not unicodedata.combining(char) for char in text)


def short_value(value: Any) -> str:
    """A value on one line, cut if it is long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= MAX_CELL_CHARS else text[: MAX_CELL_CHARS - 1] + CUT


def whole_value(value: Any) -> str:
    """A value on as many lines as it needs: text unchanged, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


def hung(text: str) -> str:
    """Others' text on as many lines as it needs; all but the first begin where no line of ours does."""
    return text.replace("\n", "\n      ")


def moment(seconds: float | None) -> str:
    """A time in the local time zone."""
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds))


def refusing_targets(targets: Iterable[str], left: str) -> list[str]:
    """The line about publishing targets that may have seen more of the log than is left; none without targets."""
    if not (names := ", ".join(targets)):
        return []
    return [
        (
            f"Its checkpoints went to: {names}. A target that has seen more than {left} refuses the log from "
            "now on, and `audit verify` fails: name a new file or another witness instead "
            "([[ledger.publish]])."
        )
    ]


def command(words: str, config: Path | None) -> str:
    """A command to type, with the `--config` of this one."""
    named = f" --config {shlex.quote(str(config))}" if config else ""
    return f"mcp-bridge{named} {words}"


def question(fields: Mapping[str, Any], whose: str = "") -> list[str]:
    """A question to a person as lines: the whole call, its arguments, and the reason.

    Text of the program follows `>` on each line, so it can't be mistaken for anything else. Nothing is hidden:
    printable but invisible characters are escaped here.

    Args:
        fields: The question.
        whose: The owner of the asking program, `operator` or `agent`; by default as in the question.
    """
    if "tool" in fields:
        lines, content = [f"call of {escape_name(str(fields['tool']))} with"], fields.get("arguments")
    else:
        lines, content = [*_quoted(fields.get("message", ""))], fields.get("details")
    if content not in (None, {}, []):
        lines += _quoted(content)
    if fields.get("announced"):
        lines += ["left to the tool, with the defaults that it announces:", *_quoted(fields["announced"])]
    whose = whose or str(fields.get("origin") or "")
    of = f" (the {whose}'s)" if whose else ""
    lines += [
        f"{name}: {escape_name(str(fields[name]))}{of if name == 'program' else ''}"
        for name in _FACTS
        if fields.get(name)
    ]
    if fields.get("filled"):
        lines.append(f"defaults of the tool, left out by the caller: {escape_name(', '.join(fields['filled']))}")
    return lines


def folded(lines: Iterable[str], stream: TextIO, indent: str = "") -> list[str]:
    """Lines for a terminal, each part of a long one after a mark of its own; anywhere else, lines as they are.

    The terminal would break a long line itself, and its author could choose what then looks like a line of its own.
    Lines are broken at spaces, and within a word that is too long for a line.

    Args:
        lines: The lines, with what can't be seen escaped.
        stream: Where they are printed.
        indent: What they are printed after.
    """
    if not stream.isatty():
        return [f"{indent}{line}" for line in lines]
    room = max(os.get_terminal_size(stream.fileno()).columns or _COLUMNS, _MIN_COLUMNS) - len(indent)
    return [f"{indent}{part}" for line in lines for part in _parts(line, room)]


_COLUMNS, _MIN_COLUMNS = 80, 20
"""The width of a terminal that doesn't know its own, and the smallest that a line is broken for."""

_CONTINUED = "+ "
"""No line of a question begins so."""


def _parts(line: str, room: int) -> list[str]:
    parts, mark, start, used, after_space = [], "", 0, 0, 0
    for at, char in enumerate(line):
        width = _most_columns(char)
        if used + width > room:
            end = after_space or at
            parts.append(mark + line[start:end])
            mark, start, after_space = _CONTINUED, end, 0
            used = len(mark) + sum(map(_most_columns, line[start:at]))
        used += width
        # Not the space of a mark: what is left has to fit after another mark.
        if char == " " and used > len(_CONTINUED):
            after_space = at + 1
    return [*parts, mark + line[start:]]


def _most_columns(char: str) -> int:
    # Terminals don't agree on any others; and what is counted as narrower than it is shown would break a line.
    return 1 if char.isascii() else 2


_FACTS = ("program", "step", "why")


def _quoted(value: Any) -> list[str]:
    # Escaped before it is split: `str.splitlines` takes U+2028 and others for ends of lines, and drops them.
    return [f"> {line}" for line in escape_invisible(whole_value(value)).split("\n")]


def status_of(record: Mapping[str, Any]) -> int:
    """The exit status for an execution's status."""
    from mcp_bridge.executions.status import UNFINISHED

    if record["status"] in UNFINISHED:
        return exit_statuses.SUSPENDED
    return exit_statuses.OK if record["status"] == "success" else exit_statuses.FAILED


def is_late(waiting: Mapping[str, Any]) -> bool:
    """Whether the time of what an execution waits for is over."""
    return waiting.get("due") is not None and waiting["due"] <= time.time()


def next_steps(waiting: Sequence[Mapping[str, Any]], ident: str, config: Path | None) -> list[str]:
    """For each thing that a suspended execution waits for, a description and the command to type."""
    lines = []
    for row in waiting:
        what = f"{escape_name(row['step'])} waits for "
        match row["kind"]:
            case "approval" if "decided" in row:
                resume = command(f"execution resume {ident}", config)
                lines.append(f"{escape_name(row['step'])} was {row['decided']} by a person: {resume}")
            case "approval" if is_late(row):
                # Somebody may have decided in time: the execution is to be resumed in any case.
                resume = command(f"execution resume {ident}", config)
                lines.append(f"the time for a decision on {escape_name(row['step'])} is over: {resume}")
            case "approval":
                words = f"approvals show {ident}.{row['effect']}"
                lines.append(f"{what}a person: {command(words, config)}")
            case "in_doubt" if "tool" not in row:
                # Of a program that a script waits for: its own record has the arguments, which are seen first.
                shown = command(f"execution show {ident}", config)
                lines.append(
                    f"{escape_name(row['step'])} is in doubt: {escape_name(row['name'])} may have been called: {shown}"
                )
            case "in_doubt":
                lines += _doubt(row, ident, config)
            case "program" if not row["waiting"]:
                # The program was settled, decided on or resumed meanwhile, and may have ended.
                resume = command(f"execution resume {ident}", config)
                lines.append(
                    f"the program {escape_name(str(row['name']))} of {escape_name(row['step'])} waits no more: {resume}"
                )
            case "program":
                program = str(row["execution"])
                shown = command(f"execution show {program}", config)
                lines.append(f"{what}the program {escape_name(str(row['name']))}: {shown}")
                lines += [f"  {line}" for line in next_steps(row["waiting"], program, config)]
            case "wait":
                lines.append(f"{what}{moment(row.get('due'))}: then {command(f'execution resume {ident}', config)}")
            case "event" if "call" in row:
                send = f"event send {shlex.quote(str(row['name']))} --execution {ident} --payload JSON"
                until = f", until {moment(row['due'])}" if "due" in row else ""
                lines.append(f"{what}the event {escape_name(row['name'])}{until}: {command(send, config)}")
            case kind:
                name = f"the {'event' if kind == 'event' else 'outcome of'} {escape_name(row['name'])}"
                lines.append(f"{what}{name}: {command(f'execution resume {ident} --payload JSON', config)}")
    return lines


def _doubt(row: Mapping[str, Any], ident: str, config: Path | None) -> list[str]:
    words = f"execution settle {ident} {row['effect']}"
    tool = escape_name(row["tool"])
    return [
        f"{escape_name(row['step'])} is in doubt: {tool} may have been called, {moment(row['since'])}, with",
        *_quoted(row["arguments"]),
        f"say what happened: {command(f'{words} --happened [--value JSON]', config)}",
        f"  or: {command(f'{words} --failed MESSAGE', config)}",
        f"  or have it done: {command(f'{words} --not-done', config)}",
    ]


def unresolved(record: Mapping[str, Any]) -> list[str]:
    """Calls that were in doubt when the execution ended or went on without them: nobody has settled them."""
    return [
        f"{escape_name(row['step'])} was in doubt, and still is: "
        f"{escape_name(row['tool'])} {short_value(row['arguments'])}"
        for row in record.get("unresolved", ())
    ]


def _unmentioned_failures(record: Mapping[str, Any]) -> list[str]:
    """A line for each failure that the execution's error doesn't mention, as far as they are shown."""
    from mcp_bridge.executions.programs.record import unmentioned_failures

    lines = [f"{escape_name(step)}: {hung(error)}" for step, error in unmentioned_failures(record)]
    more = len(lines) - MAX_FAILURES
    return [*lines[:MAX_FAILURES], *([f"and {more} more"] if more > 0 else [])]


def outcome(record: Mapping[str, Any], ident: str, config: Path | None) -> None:
    """Print an execution's record: its output on standard output, everything else on standard error."""
    if record["output"] is not None:
        echo(whole_value(record["output"]))
    steps = len(record["steps"])
    # A script has none.
    counted = f", {steps} step{'' if steps == 1 else 's'}" if steps else ""
    echo_err(f"mcp-bridge: {escape_name(record['program'])}: {record['status']}{counted}, execution {ident}")
    if record.get("is_previous_result"):
        from mcp_bridge.executions.record import PREVIOUS_RESULT_NOTICE

        echo_err(f"mcp-bridge: {PREVIOUS_RESULT_NOTICE.format(ident)}")
    for row in record.get("warnings", ()):
        echo_err(f"  the policy denies {escape_name(row['step'])} ({escape_name(row['tool'])}) whatever its arguments")
    if record.get("error"):
        echo_err(f"  {record.get('code') or 'error'}: {hung(record['error'])}")
        for line in _unmentioned_failures(record):
            echo_err(f"  {line}")
    for line in folded(next_steps(record["waiting"], ident, config), sys.stderr, indent="  "):
        echo_err(line)
    for line in unresolved(record):
        echo_err(f"  {line}")
    if record["status"] == "interrupted":
        echo_err(f"  it was interrupted; resume it with: {command(f'execution resume {ident}', config)}")
