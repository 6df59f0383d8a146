"""What is recorded of an execution: one entry for everything that it had, tried, or was denied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

TOMBSTONE = "[REDACTED_TOMBSTONE]"
"""In the place of what was erased."""

Kind = Literal[
    "start",  # an execution begins: a script's or a program's
    "intent",  # an effect is about to happen
    "outcome",  # it has: how, and what its program's machine wants now
    "denial",  # the policy refused it
    "transition",  # a program's machine took an event that is no outcome: it is resumed, or cancelled
    "suspension",
    "resume",
    "decision",  # a person approved, denied, or said what became of a doubt
    "violation",  # a sandbox asked for what its program had not emitted
    "erasure",  # payloads were made unreadable
    "key",  # the key that checkpoints are signed with from here on, the first one or another
    "clock",  # a person has accepted a clock that had gone back
    "loss",  # a person goes on although the log ends before what had been recorded, or has restored a backup of it
    "end",
]


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened.

    Attributes:
        kind: What.
        execution: Whose.
        payload: The rest, as normal JSON, projected for the trace: no secret is in it. Of an erased execution:
            `{"erased": TOMBSTONE}`.
        step: The path of the program's step, or None. Read as `codec.fitting` has made it.
        policy: The policy's hash.
        program: The program's hash, or None for a script.
    """

    kind: Kind
    execution: str
    payload: dict[str, Any] = field(default_factory=dict)
    step: str | None = None
    policy: str = ""
    program: str | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """An entry as it was recorded.

    Attributes:
        sequence: Its place among all entries, from 0.
        time: Seconds since 1970, UTC.
        entry: It.
    """

    sequence: int
    time: float
    entry: Entry
