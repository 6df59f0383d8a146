"""Our kernel, driven by its tools' and its model's answers, as a host would drive it; nothing is governed or kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from typing import TYPE_CHECKING, Any

from benchmarks.workers import work
from mcp_bridge.executions.programs.recovery import apply_recorded
from mcp_bridge.kernel import state
from mcp_bridge.kernel.events import Outcome
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.ledger.log.entries import Entry, Recorded
from mcp_bridge.ledger.log.payloads import EffectOutcome, ToolIntent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.ledger.log.entries import Kind


def drive(machine: Machine) -> Iterator[Outcome]:
    """To the end; gives what the machine was told."""
    waiting = list(machine.effects)
    while waiting:
        effect = waiting.pop()
        value = work.ANSWER if effect.kind == "llm" else work.TOOLS[effect.name](**effect.arguments)
        outcome = Outcome(effect.id, "ok", value)
        waiting += machine.apply(outcome)
        yield outcome


def run(program: Program) -> Machine:
    machine = Machine(program, work.CONTEXT)
    for _ in drive(machine):
        pass
    assert machine.status == "success", machine.error
    return machine


def fingerprint(machine: Machine) -> str:
    """Of the whole state, trace included."""
    return hashlib.sha256(state.dump(machine)).hexdigest()


def _run_twice(program: Program) -> None:
    assert fingerprint(run(program)) == fingerprint(run(program))


def _recorded(program: Program) -> tuple[bytes, list[tuple[Kind, str]], str]:
    """The first state of a run, what is recorded of it (kinds and payloads), and the last state's hash."""
    machine = Machine(program, work.CONTEXT)
    began = state.dump(machine)
    rows: list[tuple[Kind, str]] = []
    for outcome in drive(machine):
        rows.append(("intent", json.dumps(ToolIntent("target.tool", {}, effect=outcome.effect).encode())))
        rows.append(("outcome", json.dumps(EffectOutcome(outcome, None).encode())))
    return began, rows, fingerprint(machine)


def _rebuild(program: Program, began: bytes, rows: list[tuple[Kind, str]], expected: str) -> None:
    entries = [
        Recorded(number, 0.0, Entry(kind, "replayed", json.loads(payload)))
        for number, (kind, payload) in enumerate(rows, 1)
    ]
    machine = state.restore(program, began)
    assert not apply_recorded(machine, began, entries)
    assert fingerprint(machine) == expected


def _long(program: Program, seconds: float | None) -> dict[str, Any]:
    began = time.process_time()
    work.CLOCK.start(seconds)
    with contextlib.suppress(work.EnoughError):
        fingerprint(run(program))
    return {"seconds": time.process_time() - began, "steps": work.CLOCK.calls}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """See `benchmarks.worker.Worker`."""
    program = parse(work.program(asked["program"]))
    seconds = asked["seconds"]
    work.CLOCK.start(None)
    match asked["do"]:
        case "run":
            return work.again(lambda: run(program), seconds)
        case "run and hash":
            return work.again(lambda: fingerprint(run(program)), seconds)
        case "run twice":
            return work.again(lambda: _run_twice(program), seconds)
        case "rebuild":
            recorded = _recorded(program)
            return work.again(lambda: _rebuild(program, *recorded), seconds)
        case "long":
            return _long(program, seconds)
    raise ValueError(asked)


if __name__ == "__main__":
    work.serve(answer)
