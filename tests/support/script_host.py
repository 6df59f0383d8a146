"""Hosts of their own for scripts, which the tests let die.

Each line of standard input starts one, in a fork of this process (which has loaded everything by then). A line is a
JSON object: `state`, its directory; `run` (code, key, timeout), `settle` (id, call, and the fields of a settlement),
`cancel` (id), `replay` (id), `decide` (execution, effect, approved, by), `resume` (id, and perhaps a payload) or `program` (program,
context, key) or `cells` (a list of what `run` takes, one after the other); `seed`, that of a new session; `says`, what the client's person answers, where there is one (`each`: no to what ends in `no`, else yes); `out`, the file for the record or the error; `log`, to which the tools write a line when
they have done their work; `die`, where the host is killed: one of POINTS and a tool, or `end`; `settings`; `send` (id, name, payload: an event);
`kills` (what: `host` or `container`; after: seconds), what is killed at an instant after the bridge is open;
`quick`, whether waits give up their sandboxes at once; `quiet`, the seconds after which a script is at rest; `extra`,
whether there is a tool more; `patience`, with what recorded calls are waited for. How the host has ended is written beside `out`, with `.ended`.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace

import anyio
from forked_hosts import load_everything

import mcp_bridge
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import approvals
from mcp_bridge.executions.in_doubt import Settlement
from mcp_bridge.executions.scripts import divergence
from mcp_bridge.executions.scripts.call_recorder import CallRecorder
from mcp_bridge.executions.scripts.lifecycle import Scripts
from mcp_bridge.executions.sessions import cell
from mcp_bridge.executions.sessions.cell_placement import CellPlacement
from mcp_bridge.executions.waits import script_waits
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.host import script_activity
from mcp_bridge.host.bridge import Bridge, open_bridge
from mcp_bridge.host.request_handlers import Requests
from mcp_bridge.kernel.events import Resume
from mcp_bridge.settings import Settings
from mcp_bridge.wire.messages import MemoryLoad

POINTS = (
    "before",  # it is about to happen, and hasn't
    "in",  # it has happened, and nobody knows
    "outcome",  # its outcome is known, and not recorded
    "after",  # its outcome is recorded; to be killed at the next call
    "kept",  # a memory has been changed, and nothing has been recorded since
    "end",  # the script has ended, and that isn't recorded
    "taken",  # a cell that was run dry is about to take its place in its session
    "moved",  # it has taken it, and nothing has been run
)

RULES = {
    "rules": [
        {"tools": ["local.forbidden"], "effect": "deny"},
        {"tools": ["local.careful"], "effect": "approve", "reason": "it is final"},
    ],
    "limits": {"calls": 40},
}

TABLES = {"tools": {"modules": ["script_host"], "entry_points": False}, "policy": RULES}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at(point: str, name: str = "") -> bool:
    return os.environ["DIE"] == f"{point}:{name}".rstrip(":")


async def _work(name: str, text: str, seconds: float = 0.0) -> str:
    if dies_at("before", f"{name} {text}"):
        die()
    await anyio.sleep(seconds)
    _log(f"{name} {text}")
    if dies_at("in", f"{name} {text}"):
        die()
    return f"{name}:{text}"


def _log(line: str) -> None:
    with Path(os.environ["LOG"]).open("a") as log:
        log.write(f"{line}\n")
        log.flush()
        os.fsync(log.fileno())


@mcp_bridge.tool
async def once(text: str, seconds: float = 0.0) -> str:
    return await _work("once", text, seconds)


@mcp_bridge.tool(idempotent=True)
async def again(text: str, seconds: float = 0.0) -> str:
    return await _work("again", text, seconds)


@mcp_bridge.tool
async def forbidden(text: str) -> str:
    return await _work("forbidden", text)


@mcp_bridge.tool
async def careful(text: str) -> str:
    return await _work("careful", text)


@mcp_bridge.tool
async def later(text: str) -> str:
    await _work("later", text)
    return mcp_bridge.PENDING


@mcp_bridge.tool
async def failing(text: str) -> str:
    await _work("failing", text)
    raise ValueError(f"no {text}")


@mcp_bridge.tool
async def card() -> dict[str, str]:
    await _work("card", "")
    return {"number": "4111 1111 1111 1111"}


def extra(text: str) -> str:
    """A tool that not every host has."""
    return text


def set_places_traps() -> None:
    """Die where a cell that was run dry takes its place."""
    move = CellPlacement.move

    async def dying_move(self, *place):
        if dies_at("taken"):
            die()
        await move(self, *place)
        if dies_at("moved"):
            die()

    CellPlacement.move = dying_move


def set_traps() -> None:
    """Die where the job says; a tool's call is named by the tool and its text."""
    write, begin, keep, remember = CallRecorder._write, CallRecorder.begin, Scripts._keep, Requests._remember
    set_places_traps()
    calls: dict[str, str] = {}

    def dying_write(self, outcome):
        name = calls.get(self.call, "")
        if dies_at("outcome", name):
            die()
        write(self, outcome)
        if dies_at("after", name):
            os.environ["DIE"] = "now"

    async def dying_begin(self, intent, *, is_repeatable):
        calls[self.call] = f"{intent.tool.removeprefix('local.')} {intent.arguments.get('text', '')}"
        if os.environ["DIE"] == "now":
            await self._log._recorder.append()
            die()
        await begin(self, intent, is_repeatable=is_repeatable)

    async def dying_keep(self, active, ended):
        if os.environ["DIE"] in {"end", "now"}:
            await self.lifecycle.recorder.append()
            die()
        await keep(self, active, ended)

    async def dying_remember(self, request, call):
        answer = await remember(self, request, call)
        if dies_at("kept", getattr(request, "key", "")) and not isinstance(request, MemoryLoad):
            die()
        return answer

    CallRecorder._write, CallRecorder.begin, Scripts._keep = dying_write, dying_begin, dying_keep
    Requests._remember = dying_remember


def kill_later(state: Path, what: str, after: float) -> None:
    """Kill this host, or all processes of its containers, at an instant that nobody has chosen for what happens there."""

    def kill() -> None:
        if what == "host":
            die()
        for pid in in_containers(state):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(after, kill)
    timer.daemon = True
    timer.start()


def in_containers(state: Path) -> list[int]:
    """The processes in containers of a state directory: what its supervisors have begun, which were told where it is."""
    parents: dict[int, int] = {}
    supervisors: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        # It may end meanwhile.
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
            if b"supervisor.py" in command and os.fsencode(state) in command:
                supervisors.add(int(folder.name))

    def has_supervisor(pid: int) -> bool:
        while pid in parents and pid not in supervisors:
            pid = parents[pid]
        return pid in supervisors

    return [pid for pid in parents if pid not in supervisors and has_supervisor(pid)]


class Person:
    """As the client's: answers every question alike, and writes down what was asked."""

    may_vanish = True

    def __init__(self, answer):
        self._answer = answer

    async def ask(self, question: dict) -> bool | None:
        text = str(question.get("arguments", {}).get("text", question.get("message")))
        if self._answer == "each":
            return not text.endswith("no")
        if self._answer is not None:
            _log(f"asked {text}")
        return self._answer


async def main(job: dict) -> dict:
    state = Path(job["state"])
    governance = load_governance(TABLES, None, Path.cwd(), state)
    person = Person(job["says"]) if "says" in job else None
    async with open_bridge(Settings(state_dir=state, **job["settings"]), (), governance) as bridge:
        if "kills" in job:
            kill_later(state, **job["kills"])
        try:
            if "program" in job:
                return await bridge.run_program(**job["program"], asker=person)
            if "resume" in job:
                asked = job["resume"]
                event = Resume(asked["payload"], "OPERATOR") if "payload" in asked else None
                return await bridge.resume_execution(asked["id"], event, asker=person)
            if "send" in job:
                asked = job["send"]
                return await bridge.send_event(
                    asked["id"], asked["name"], asked["payload"], "WEBHOOK", and_resume=asked.get("go_on", False)
                )
            if "decide" in job:
                return await _decide(bridge, **job["decide"])
            if "run" in job:
                many = job["run"].pop("many", 1)
                first, *others = await asyncio.gather(*(bridge.run(**job["run"], asker=person) for _ in range(many)))
                assert all(other.to_json() == first.to_json() for other in others)
                return first.to_json()
            if "cells" in job:
                return [(await bridge.run(**cell)).to_json() for cell in job["cells"]]
            if "settle" in job:
                asked = job["settle"]
                word = Settlement(asked["how"], "anna", asked.get("value"), asked.get("message", ""))
                return await bridge.settle_execution(
                    asked["id"], asked.get("call"), word, and_resume=asked.get("go_on", False)
                )
            if "cancel" in job:
                return await bridge.cancel_execution(job["cancel"]["id"], "enough")
            stored = await bridge.lifecycle.stored(job["replay"]["id"], "local")
            return (await bridge.replay_execution(stored)).to_json()
        except BridgeError as exc:
            return {"code": exc.code, "message": exc.message}


async def _decide(bridge: Bridge, execution: str, effect: int, by: str, *, approved: bool) -> dict:
    """As the command line, and the viewer, take down a decision."""
    asked = await approvals.approval_requests(bridge.programs.store, "local", execution)
    (question,) = [row for row in asked if row.approval.effect == effect]
    return await approvals.decide(bridge.programs.store, question, approved=approved, by=by, comment="so be it")


def host(job: dict) -> None:
    os.environ.update(LOG=job["log"], DIE=job["die"])
    if job["die"]:
        set_traps()
    divergence.QUIET_SECONDS = job.get("patience", divergence.QUIET_SECONDS)
    if job.get("quick"):
        script_waits.SHORT_WAIT_SECONDS, script_activity.QUIET_SECONDS = 0.02, 0.1
    script_activity.QUIET_SECONDS = job.get("quiet", script_activity.QUIET_SECONDS)
    if "seed" in job:
        cell.secrets = SimpleNamespace(token_hex=lambda _: job["seed"])
    if job.get("extra"):
        globals()["extra"] = mcp_bridge.tool(extra)
    Path(job["out"]).write_text(json.dumps(asyncio.run(main(job))))


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
    sys.modules["script_host"] = sys.modules["__main__"]
    load_everything(TABLES)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            watch(json.loads(line))
