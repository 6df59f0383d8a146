"""llm-nano-vm's ExecutionVM, and nano-vm-mcp's gateway in process, in their own environment."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import time
from typing import TYPE_CHECKING, Any

from nano_vm import ExecutionVM, Program  # type: ignore[import-not-found]  # not in ours

from benchmarks.workers import work

if TYPE_CHECKING:
    from collections.abc import Callable


class Model:
    """Answers at once."""

    async def complete(self, messages: list[dict[str, str]], **_: Any) -> str:
        del messages
        return work.ANSWER


def machine() -> Any:
    return ExecutionVM(llm=Model(), tools=work.TOOLS)


async def run(program: Any) -> Any:
    trace = await machine().run(program, work.CONTEXT)
    assert trace.status.value == "success", trace.error
    return trace


def fingerprint(trace: Any) -> str:
    """Of its steps' ids, statuses and outputs: what its own benchmark of replays compares."""
    rows = [(row.step_id, row.status.value, row.output) for row in trace.steps]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


async def _run_twice(program: Any) -> None:
    assert fingerprint(await run(program)) == fingerprint(await run(program))


async def _long(program: Any, seconds: float | None) -> dict[str, Any]:
    began = time.process_time()
    work.CLOCK.start(seconds)
    with contextlib.suppress(work.EnoughError):
        await run(program)
    return {"seconds": time.process_time() - began, "steps": work.CLOCK.calls}


async def _together(program: Any, width: int, seconds: float) -> dict[str, Any]:
    async def again() -> None:
        while True:
            await run(program)
            if time.perf_counter() >= end:
                return

    began = time.perf_counter()
    end = began + seconds
    await asyncio.gather(*(again() for _ in range(width)))
    return {"seconds": time.perf_counter() - began, "steps": work.CLOCK.calls}


async def _again(
    once: Callable[[], Any], seconds: float, clock: Callable[[], float] = time.process_time
) -> dict[str, Any]:
    began, times = clock(), 0
    while True:
        for _ in range(work.BATCH):
            await once()
        times += work.BATCH
        took = clock() - began
        if took >= seconds:
            return {"seconds": took, "times": times}


def _gateway() -> Callable[[], Any]:
    """Its `run_program`, as its server calls it: traces, contexts and envelopes go to its SQLite file."""
    import nano_vm_mcp.tools  # type: ignore[import-not-found]  # noqa: PLC0415  (not in ours)
    from nano_vm_mcp.handlers import build_chain  # type: ignore[import-not-found]  # noqa: PLC0415
    from nano_vm_mcp.store import ProgramStore  # type: ignore[import-not-found]  # noqa: PLC0415

    give_tools(nano_vm_mcp.tools)
    store, chain = ProgramStore(os.environ["NANO_VM_MCP_DB"]), build_chain()

    async def once() -> None:
        (told,) = await chain.handle("run_program", {"program": work.REFUND_WITHOUT_CONTEXT}, store)
        assert "SUCCESS" in told.text, told.text

    return once


def _store(asked: dict[str, Any]) -> Callable[[], Any]:
    """A state saved and got, or an envelope saved, by its store: one commit each."""
    from nano_vm_mcp.store import ProgramStore  # noqa: PLC0415

    store = ProgramStore(os.environ["NANO_VM_MCP_DB"])
    # It has no setting for that: as it comes, it is NORMAL.
    store._con.execute(f"PRAGMA synchronous={asked['synchronous']}")  # noqa: SLF001
    step = itertools.count()

    async def state() -> None:
        store.save_state_context("execution", asked["content"])
        assert store.load_state_context("execution") == asked["content"]

    async def envelope() -> None:
        assert store.save_envelope("execution", next(step), "0" * 64, "0" * 64, asked["content"])

    return {"state": state, "envelope": envelope}[asked["do"]]


def give_tools(module: Any) -> None:
    """The gateway's programs can call no tool, since it registers none; here they can."""
    module.ExecutionVM = lambda llm: ExecutionVM(llm=llm, tools=work.TOOLS)


async def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    seconds = asked["seconds"]
    if asked["do"] in {"state", "envelope"}:
        return await _again(_store(asked), seconds, time.perf_counter)
    program = Program.model_validate(work.program(asked["program"]))
    work.CLOCK.start(None)
    match asked["do"]:
        case "run":
            return await _again(lambda: run(program), seconds)
        case "run twice":
            return await _again(lambda: _run_twice(program), seconds)
        case "gateway":
            return await _again(_gateway(), seconds, time.perf_counter)
        case "long":
            return await _long(program, seconds)
        case "together":
            return await _together(program, asked["width"], seconds)
    raise ValueError(asked)


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """See `benchmarks.worker.Worker`."""
    return asyncio.run(_answer(asked))


if __name__ == "__main__":
    work.serve(answer)
