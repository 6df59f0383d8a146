"""Hosts of their own for programs, which the tests let die.

Each line of standard input starts one, in a fork of this process (which has loaded everything by then). A line is a
JSON object: `state`, its directory; `run` (program, context, key), `resume` (id, payload), `settle` (id, doubt, go_on, and
the fields of a settlement) or `cancel` (id); `out`, the file for the record or the error; `log`, to which the tools write
a line when they have done their work; `die_in`, the tool that then kills its host; `die_at`, one of POINTS, at which the
host is killed when it comes to the tool of `die_in` (or to any, of an empty name). With `cancel_after`
what it does is cancelled when the log has so many lines. How the host has ended is written beside `out`, with `.ended`.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import anyio
from forked_hosts import load_everything

import mcp_bridge
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.in_doubt import Settlement
from mcp_bridge.executions.programs.lifecycle import Programs
from mcp_bridge.executions.programs.program_run import ProgramRun
from mcp_bridge.executions.programs.step_recorder import StepCall
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.kernel.events import Resume
from mcp_bridge.registered.registry import BoundFunction
from mcp_bridge.settings import Settings

CARD = "4111 1111 1111 1111"

RULES = {"rules": [{"tools": ["local.careful*"], "effect": "approve"}]}

TABLES = {"tools": {"modules": ["program_host"], "entry_points": False}, "policy": RULES}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _work(name: str, text: str) -> str:
    with Path(os.environ["LOG"]).open("a") as log:
        log.write(f"{name} {text}\n")
        log.flush()
        os.fsync(log.fileno())
    if os.environ.get("DIE_IN") == name and not os.environ.get("DIE_AT"):
        die()
    return f"{name}:{text}"


@mcp_bridge.tool
def once(text: str) -> str:
    return _work("once", text)


@mcp_bridge.tool
def two(text: str) -> str:
    return _work("two", text)


@mcp_bridge.tool
def three(text: str) -> str:
    return _work("three", text)


@mcp_bridge.tool(idempotent=True)
def again(text: str) -> str:
    return _work("again", text)


@mcp_bridge.tool
def careful(text: str) -> str:
    return _work("careful", text)


@mcp_bridge.tool
async def careful_hang(text: str) -> str:
    return await hang(text)


@mcp_bridge.tool
def careful_later(text: str) -> str:
    _work("careful_later", text)
    return mcp_bridge.PENDING


@mcp_bridge.tool
def undo(text: str) -> str:
    return _work("undo", text)


@mcp_bridge.tool
async def hang(text: str) -> str:
    _work("hang", text)
    await anyio.sleep_forever()
    return text


@mcp_bridge.tool(idempotent=True)
async def hang_again(text: str) -> str:
    """Hangs the first time."""
    _work("hang_again", text)
    if Path(os.environ["LOG"]).read_text().count("hang_again") == 1:
        await anyio.sleep_forever()
    return f"hang_again:{text}"


@mcp_bridge.tool(idempotent=True)
def refuse(text: str) -> str:
    raise ValueError(f"there is no {text}")


@mcp_bridge.tool
def number(text: int) -> int:
    return text


@mcp_bridge.tool
def later(text: str) -> str:
    _work("later", text)
    return mcp_bridge.PENDING


@mcp_bridge.tool
def card() -> dict[str, str]:
    _work("card", "")
    return {"number": CARD}


async def main(job: dict) -> dict:
    state = Path(job["state"])
    governance = load_governance(TABLES, None, Path.cwd(), state)
    async with open_bridge(Settings(state_dir=state), (), governance) as bridge:
        try:
            if "run" in job:
                return await bridge.run_program(**job["run"])
            if "settle" in job:
                asked = job["settle"]
                word = Settlement(asked["how"], "anna", asked.get("value"), asked.get("message", ""))
                return await bridge.settle_execution(asked["id"], asked.get("doubt"), word, and_resume=asked["go_on"])
            if "cancel" in job:
                return await bridge.cancel_execution(job["cancel"]["id"], "enough")
            payload = job["resume"].get("payload")
            return await bridge.resume_execution(job["resume"]["id"], None if payload is None else Resume(payload))
        except BridgeError as exc:
            return {"code": exc.code, "message": exc.message}


async def bounded(job: dict) -> dict | None:
    """What the job gives; None of one that was cancelled."""
    found = None

    async def watch(scope: anyio.CancelScope) -> None:
        while len(Path(job["log"]).read_text().splitlines()) < job["cancel_after"]:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        if "cancel_after" in job:
            tasks.start_soon(watch, tasks.cancel_scope)
        found = await main(job)
        tasks.cancel_scope.cancel()
    return found


def host(job: dict) -> None:
    os.environ.update(LOG=job["log"], DIE_IN=job["die_in"], DIE_AT=job.get("die_at") or "")
    if job.get("die_at"):
        POINTS[job["die_at"]](job["die_in"])
    Path(job["out"]).write_text(json.dumps(asyncio.run(bounded(job))))


# --- points to die at ---


def before_the_intent(tool: str) -> None:
    begin = StepCall.begin

    async def dying(self, intent, *, is_repeatable):
        if intent.tool.endswith(f".{tool}"):
            die()
        await begin(self, intent, is_repeatable=is_repeatable)

    StepCall.begin = dying


def before_the_call(tool: str) -> None:
    called = BoundFunction.called

    async def dying(self, *args):
        if self.info.name == tool:
            die()
        return await called(self, *args)

    BoundFunction.called = dying


def after_the_call(tool: str) -> None:
    called = BoundFunction.called

    async def dying(self, *args):
        answered = await called(self, *args)
        if self.info.name == tool:
            die()
        return answered

    BoundFunction.called = dying


def before_the_outcome(tool: str) -> None:
    take = ProgramRun._take

    def dying(self, outcome, read=None):
        if self.machine.waiting[outcome.effect].effect.name == tool:
            die()
        return take(self, outcome, read)

    ProgramRun._take = dying


def after_the_outcome(tool: str) -> None:
    take = ProgramRun._take

    def dying(self, outcome, read=None):
        ours = self.machine.waiting[outcome.effect].effect.name == tool
        told = take(self, outcome, read)
        if ours:
            die()
        return told

    ProgramRun._take = dying


def after_a_settlement(_: str) -> None:
    resolve = ProgramRun.resolve

    def dying(self, event):
        resolve(self, event)
        die()

    ProgramRun.resolve = dying


def before_it_is_kept(_: str) -> None:
    async def dying(self, run):
        await self.recorder.append()
        die()

    Programs._keep = dying


def after_it_is_kept(_: str) -> None:
    keep = Programs._keep

    async def dying(self, run):
        await keep(self, run)
        die()

    Programs._keep = dying


POINTS = {
    point.__name__: point
    for point in (
        before_the_intent,
        before_the_call,
        after_the_call,
        before_the_outcome,
        after_the_outcome,
        after_a_settlement,
        before_it_is_kept,
        after_it_is_kept,
    )
}


def watch(job: dict) -> None:
    """Start a host, see it end, and tell how."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        try:
            host(job)
        except BaseException:  # noqa: BLE001 - it is a process of its own
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ended = Path(job["out"] + ".ended")
    ended.with_suffix(".part").write_text(str(code))
    ended.with_suffix(".part").rename(ended)
    os._exit(0)


if __name__ == "__main__":
    sys.modules["program_host"] = sys.modules["__main__"]
    load_everything(TABLES)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            watch(json.loads(line))
