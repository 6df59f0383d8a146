"""Hosts that are killed with -9 where a test says, and started again.

Each line of standard input starts one, in a fork of this process (which has loaded everything by then). A line is a JSON
object: `state`, its directory; `program`, `context`, `key`, or `code`, `key`, `runtime`; `out`, the file for the record or the error; `effects`, the
file to which the tools write what they do; `acknowledged`, the file for what its caller was told; `kill`, when it dies:

    {"point": "before intent", "nth": 2}     at a named point: the second time that it comes there
    {"seconds": 0.013}                       then, from a thread of its own
    {"operation": "sync", "suffix": "-wal", "nth": 3}    at a system call (`power_cut/shim.c`)

The points, each before and after: the recording of every kind of entry (`append` waits until it is durable; for what is
`post`ed, after means before anything is written), `effect`, the tool's own work; `add`, the claim of a key; `take`, `update`
of what is kept. The code that runs is the product's: the points are put around it here.

A host runs its program to the end: it decides approvals, and gives what is waited for. Besides: `callers`, how many of
them run it at once; `fault`, what else happens at a named point: an operation fails from there on (the arguments of `shim.fail`), the clock is
put forward by `clock` seconds, or the host waits until there is a file `hold`; `busy`, seconds to wait for another
process that writes.
"""

import asyncio
import contextvars
import functools
import hashlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from forked_hosts import load_everything
from power_cut import shim

import mcp_bridge
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import approvals
from mcp_bridge.executions.in_doubt import Settlement
from mcp_bridge.gate.gate import Gate
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.host import bridge
from mcp_bridge.kernel.events import Resume
from mcp_bridge.ledger.storage import write_lock
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.settings import Settings

VALUES = [1, "ok", "no", None, {"k": 1, "n": {"m": "x"}}, {"output": 5}, [1, 2], ""]

effect_of = contextvars.ContextVar("effect_of", default=("", 0))


def write_line(path, row):
    """One write, which a kill can't divide."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, (json.dumps(row) + "\n").encode())
    os.close(fd)


# --- points


class Points:
    """Counts how often a host comes to a point, and ends it there."""

    def __init__(self, wanted):
        self._wanted = wanted
        self._seen = 0
        self.log = None

    def __call__(self, name):
        if self.log is not None:
            write_line(self.log, name)
        if name == self._wanted.get("point"):
            self._seen += 1
            if self._seen == self._wanted.get("nth", 1):
                self._do(self._wanted)

    def _do(self, wanted):
        if "errno" in wanted:
            skip, times = wanted.get("skip", 0), wanted.get("times", shim.ALWAYS)
            shim.fail(wanted["operation"], wanted["suffix"], wanted["errno"], skip=skip, times=times)
        elif "clock" in wanted:
            now = time.time_ns
            time.time_ns = lambda: now() + int(wanted["clock"] * 1e9)
        elif "hold" in wanted:
            Path(wanted["hold"] + ".waits").touch()
            while not Path(wanted["hold"]).exists():
                time.sleep(0.005)
        else:
            os.kill(os.getpid(), signal.SIGKILL)


hit = Points({})


def around(owner, method, name):
    """Put points before and after an async method."""
    wrapped = getattr(owner, method)

    @functools.wraps(wrapped)
    async def pointed(*args, **kwargs):
        for what in name(*args):
            hit(f"before {what}")
        result = await wrapped(*args, **kwargs)
        for what in name(*args):
            hit(f"after {what}")
        return result

    setattr(owner, method, pointed)


def around_record():
    wrapped = Database.record

    @functools.wraps(wrapped)
    def pointed(self, *entries):
        for entry in entries:
            hit(f"before {entry.kind}")
        wrapped(self, *entries)
        for entry in entries:
            hit(f"after {entry.kind}")

    Database.record = pointed


def put_points():
    around_record()
    around(bridge.SqliteRecorder, "append", lambda _, *entries: [f"durable {entry.kind}" for entry in entries])
    for method in ("add", "take", "update", "ask", "decide"):
        around(ProgramStore, method, lambda *_, method=method: [method])
    call = Gate.call

    async def numbered(self, tool, arguments, caller, **kwargs):
        effect = getattr(caller, "effect", None)
        effect_of.set((caller.execution, effect and effect.id))
        return await call(self, tool, arguments, caller, **kwargs)

    Gate.call = numbered


# --- tools


def _work(tool, step, arguments):
    execution, effect = effect_of.get()
    row = {"execution": execution, "effect": effect, "tool": tool, "step": step}
    digest = hashlib.sha256(json.dumps([step, arguments], sort_keys=True).encode()).digest()
    failed, value = tool == "broken" or digest[0] < 25, VALUES[digest[1] % len(VALUES)]
    hit("before effect")
    write_line(os.environ["EFFECTS"], row | {"did": "begin"})
    hit("amid effect")
    write_line(os.environ["EFFECTS"], row | {"did": "end", "failed": failed, "value": value})
    hit("after effect")
    if failed:
        raise RuntimeError("broken")
    return value


@mcp_bridge.tool
def once(step: str, x: Any = None, y: Any = None, of: Any = None, v: Any = None) -> Any:
    return _work("once", step, [x, y, of, v])


@mcp_bridge.tool(idempotent=True)
def again(step: str, x: Any = None, y: Any = None, of: Any = None, v: Any = None) -> Any:
    return _work("again", step, [x, y, of, v])


@mcp_bridge.tool
def broken(step: str, x: Any = None) -> Any:
    return _work("broken", step, [x])


@mcp_bridge.tool
def late(step: str, x: Any = None, y: Any = None, of: Any = None, v: Any = None) -> Any:
    _work("late", step, [x, y, of, v])
    return mcp_bridge.PENDING


# --- hosts

TABLES = {
    "tools": {"modules": ["crash_points"], "entry_points": False},
    "model": {"provider": "scripted", "default_answer": "yes"},
}


def opened(job):
    state = Path(job["state"])
    settings = Settings(state_dir=state, runtime=job.get("runtime", "auto"))
    return bridge.open_bridge(settings, (), load_governance(TABLES, None, Path.cwd(), state))


async def run(job):
    async with opened(job) as bridge:
        told = await asyncio.gather(*(caller(bridge, job) for _ in range(job.get("callers", 1))))
    return told if "callers" in job else told[0]


async def caller(bridge, job):
    try:
        return await to_the_end(bridge, job)
    except BridgeError as exc:
        return {"code": exc.code, "message": exc.message, "hint": exc.hint}


async def script_to_the_end(bridge, job):
    for _ in range(20):
        record = (await bridge.run(job["code"], key=job["key"])).to_json()
        if record["status"] != "suspended":
            return record
        for row in record["error"]["calls"]:
            word = truth(step=row["arguments"]["step"])
            await bridge.settle_execution(record["execution"], str(row["call"]), word, and_resume=False)
    raise AssertionError("the script doesn't end")


async def to_the_end(bridge, job):
    if "code" in job:
        return await script_to_the_end(bridge, job)
    state = Path(job["state"])
    record = await bridge.run_program(job["program"], job["context"], job["key"])
    # Whether it is the result of an earlier host: the record itself is the same.
    record.pop("is_previous_result", None)
    for _ in range(200):
        write_line(job["acknowledged"], record)
        if record["status"] != "suspended":
            return record
        payload = None
        doubt = next((row for row in record["waiting"] if row["kind"] == "in_doubt"), None)
        if doubt is not None:
            record = await bridge.settle_execution(
                record["trace_id"],
                str(doubt["effect"]),
                truth(execution=record["trace_id"], effect=doubt["effect"]),
                and_resume=True,
            )
            continue
        for row in record["waiting"]:
            if row["kind"] == "approval":
                await decide(state, record["trace_id"], row["effect"])
            elif row["kind"] == "wait":
                await asyncio.sleep(max(0, row["due"] - time.time()))
            elif payload is None:
                payload = Resume(VALUES[row["effect"] % len(VALUES)], "OPERATOR", row["effect"])
        record = await bridge.resume_execution(record["trace_id"], payload)
    raise AssertionError("the program doesn't end")


def truth(**which):
    """What became of an effect, by the file of those that were done."""
    rows = [json.loads(line) for line in Path(os.environ["EFFECTS"]).read_text().splitlines()]
    rows = [row for row in rows if which.items() <= row.items()]
    if not rows:
        return Settlement("not_done", "anna")
    if rows[-1]["did"] == "begin":
        return Settlement("failed", "anna", message="half of it was done")
    if rows[-1]["failed"]:
        return Settlement("failed", "anna", message="broken")
    return Settlement("happened", "anna", rows[-1]["value"])


async def decide(state, execution, effect):
    """As another process does it, a command of the operator."""
    async with Database(state / FILE_NAME) as database:
        store = ProgramStore(database)
        for question in await approvals.approval_requests(store, LOCAL_PRINCIPAL.name, execution, open_only=True):
            if question.approval.effect == effect:
                await approvals.decide(store, question, approved=effect % 3 != 0, by="anna", comment=None)


def kill_after(seconds):
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def host(job):
    global hit
    wanted = job.get("kill") or job.get("fault") or {}
    write_lock.BUSY_SECONDS = job.get("busy", write_lock.BUSY_SECONDS)
    os.environ["EFFECTS"] = job["effects"]
    hit = Points(wanted)
    hit.log = job.get("points")
    if "seconds" in wanted:
        threading.Thread(target=kill_after, args=[wanted["seconds"]], daemon=True).start()
    if "operation" in wanted and "errno" not in wanted:
        shim.fail(wanted["operation"], wanted["suffix"], shim.KILL, skip=wanted["nth"] - 1)
    hit("start")
    try:
        told = asyncio.run(run(job))
    except BridgeError as exc:
        told = {"code": exc.code, "message": exc.message, "hint": exc.hint}
    Path(job["out"]).write_text(json.dumps(told))


def watch(job):
    """Start a host, see it end, and tell how."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        try:
            host(job)
        except BaseException:  # noqa: BLE001 - it is a process of its own
            Path(job["out"]).write_text(traceback.format_exc())
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ended = Path(job["out"] + ".ended")
    ended.with_suffix(".part").write_text(str(code))
    ended.with_suffix(".part").rename(ended)
    os._exit(0)


def main():
    sys.modules["crash_points"] = sys.modules["__main__"]
    load_everything(TABLES)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    put_points()
    for line in sys.stdin:
        if os.fork() == 0:
            watch(json.loads(line))


if __name__ == "__main__":
    main()
