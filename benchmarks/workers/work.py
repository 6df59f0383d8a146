"""What both sides run: the same programs, with the same tools, for the same time.

What only computes is measured in processor time of its process: a loaded machine's other work isn't in it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 10
"""Steps of the parallel one."""

BATCH = 10
"""Times between two looks at the clock."""

CONTEXT = {"request": "I was charged twice.", "amount": 40}


class EnoughError(BaseException):
    """The time for a program is over. No Exception: no step may take it for a failure of its tool."""


class Clock:
    """Ends a program that takes too long, from within its tools: nothing else of it can be interrupted."""

    def __init__(self) -> None:
        self.calls = 0
        self._end = float("inf")

    def start(self, seconds: float | None) -> None:
        """Begin to count, and end what still runs after so many seconds."""
        self.calls = 0
        self._end = float("inf") if seconds is None else time.perf_counter() + seconds

    def count(self) -> None:
        """A tool was called.

        Raises:
            EnoughError: The time is over.
        """
        self.calls += 1
        if time.perf_counter() > self._end:
            raise EnoughError


CLOCK = Clock()


def check(amount: float) -> bool:
    return amount > 0


def refund(amount: float) -> dict[str, Any]:
    return {"id": "r-1", "amount": amount}


def notify() -> str:
    return "sent"


def audit(step: str) -> dict[str, Any]:
    CLOCK.count()
    return {"logged": True, "step": step}


def look_up(order: int) -> dict[str, Any]:
    return {"order": order, "amount": 12.5}


TOOLS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (check, refund, notify, audit, look_up)
}

ANSWER = "yes"
"""The model's, to whatever it is asked."""


def _refund(first: dict[str, Any], condition: str, amount: Any) -> dict[str, Any]:
    return {
        "name": "refund",
        "steps": [
            first,
            {"id": "route", "type": "condition", "condition": condition, "then": "refund", "otherwise": "reject"},
            {"id": "refund", "type": "tool", "tool": "refund", "args": {"amount": amount}, "next_step": "notify"},
            {"id": "notify", "type": "tool", "tool": "notify", "is_terminal": True},
            {"id": "reject", "type": "tool", "tool": "notify"},
        ],
    }


def _checked_refund(amount: Any) -> dict[str, Any]:
    first = {"id": "check", "type": "tool", "tool": "check", "args": {"amount": amount}, "output_key": "ok"}
    return _refund(first, "$ok == True", amount)


REFUND = _checked_refund("$amount")

REFUND_WITHOUT_CONTEXT = _checked_refund(CONTEXT["amount"])
"""For a gateway that passes none."""

REFUND_BY_MODEL = _refund(
    {
        "id": "classify",
        "type": "llm",
        "prompt": "Is this a valid request for a refund? Reply yes or no: $request",
        "allowed_outputs": ["yes", "no"],
        "output_key": "decision",
    },
    "$decision == 'yes'",
    "$amount",
)

PARALLEL = {
    "name": "parallel",
    "steps": [
        {
            "id": "fan",
            "type": "parallel",
            "max_concurrency": WIDTH,
            "parallel_steps": [
                {"id": f"look_{number}", "type": "tool", "tool": "look_up", "args": {"order": number}}
                for number in range(WIDTH)
            ],
        }
    ],
}


def long(steps: int) -> dict[str, Any]:
    """A program of so many steps, one after the other."""
    return {
        "name": "long",
        "steps": [
            {"id": f"s{number}", "type": "tool", "tool": "audit", "args": {"step": f"s{number}"}}
            for number in range(steps)
        ],
    }


PROGRAMS = {"refund": REFUND, "refund_by_model": REFUND_BY_MODEL, "parallel": PARALLEL}


def program(name: str) -> dict[str, Any]:
    """By name; `long:N` has N steps."""
    kind, _, steps = name.partition(":")
    return long(int(steps)) if kind == "long" else PROGRAMS[name]


def again(once: Callable[[], object], seconds: float) -> dict[str, Any]:
    """Do it over and over until this process has worked for so long; `{"seconds", "times"}`."""
    began, times = time.process_time(), 0
    while True:
        for _ in range(BATCH):
            once()
        times += BATCH
        took = time.process_time() - began
        if took >= seconds:
            return {"seconds": took, "times": times}


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer until standard input ends."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
