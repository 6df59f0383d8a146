"""Entries: one for everything that an execution began, tried, got, or was denied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

TOMBSTONE = "[REDACTED_TOMBSTONE]"
"""Replaces what was erased."""

Kind = Literal[
    "start",  # an execution begins: a script's or a program's
    "intent",  # an effect is about to happen
    "outcome",  # how it ended, and what its program's machine emits next
    "denial",  # the policy refused it
    "transition",  # a program's machine took an event other than an outcome: it is resumed, or cancelled
    "suspension",
    "resume",
    "decision",  # a person approved, denied, or settled an in-doubt call
    "event",  # somebody has sent an event, which a script may wait for
    "violation",  # a sandbox asked for what its program had not emitted
    "erasure",  # payloads were made unreadable
    "key",  # the key that checkpoints are signed with from here on, the first one or another
    "clock",  # a person has accepted a clock that had gone back
    "loss",  # a person goes on although the log ends before what had been recorded, or has restored a backup of it
    "end",
]


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened.

    Attributes:
        kind: What happened.
        execution: The execution's id.
        payload: The details, as normal JSON, projected for the trace: it holds no secret. For an erased execution:
            `{"erased": TOMBSTONE}`.
        step: The path of the program's step, or None. Once recorded, as `entry_encoding.fitting` has made it.
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
        sequence: Its number among all entries, from 0.
        time: Seconds since 1970, UTC.
        entry: The entry.
    """

    sequence: int
    time: float
    entry: Entry
