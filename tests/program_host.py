"""Hosts of their own for programs, which the tests let die.

Each line of standard input starts one, in a fork of this process (which has loaded everything by then). A line is a
JSON object: `state`, its directory; `run` (program, context, key) or `resume` (id, payload); `out`, the file for the
record or the error; `log`, to which the tools write a line when they have done their work; `die_in`, the tool that then
kills its host. How the host has ended is written beside `out`, with `.ended`.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import mcp_bridge
from mcp_bridge.bridge.governance import load_governance
from mcp_bridge.bridge.service import open_bridge
from mcp_bridge.errors import BridgeError
from mcp_bridge.kernel.events import Resume
from mcp_bridge.settings import Settings

CARD = "4111 1111 1111 1111"

RULES = {"rules": [{"tools": ["local.careful*"], "effect": "approve"}]}


def _work(name: str, text: str) -> str:
    with Path(os.environ["LOG"]).open("a") as log:
        log.write(f"{name} {text}\n")
        log.flush()
        os.fsync(log.fileno())
    if os.environ.get("DIE_IN") == name:
        os.kill(os.getpid(), signal.SIGKILL)
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
def careful_later(text: str) -> str:
    _work("careful_later", text)
    return mcp_bridge.PENDING


@mcp_bridge.tool
def undo(text: str) -> str:
    return _work("undo", text)


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
    tables = {"tools": {"modules": ["program_host"], "path": [str(Path(__file__).parent)]}, "policy": RULES}
    governance = load_governance(tables, None, Path.cwd(), state)
    async with open_bridge(Settings(state_dir=state), (), governance) as bridge:
        try:
            if "run" in job:
                return await bridge.run_program(**job["run"])
            payload = job["resume"].get("payload")
            return await bridge.resume_program(job["resume"]["id"], None if payload is None else Resume(payload))
        except BridgeError as exc:
            return {"code": exc.code, "message": exc.message}


def host(job: dict) -> None:
    os.environ.update(LOG=job["log"], DIE_IN=job["die_in"])
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
    sys.modules["program_host"] = sys.modules["__main__"]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            watch(json.loads(line))
