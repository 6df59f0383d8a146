"""Hosts of programs in processes of their own, which die where a test says."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ledger_looks import decide

from mcp_bridge.executions.replay import replayed
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME

HOST = Path(__file__).with_name("program_host.py")


class Hosts:
    """Hosts, one after the other or at once, over one state directory."""

    def __init__(self, folder, source):
        self.state = folder / "state"
        self.state.mkdir()
        self.log = folder / "log"
        self.log.touch()
        self._source = source
        self._folder = folder
        self._started = 0

    def start(self, *, die_in="", **asked):
        self._started += 1
        out = self._folder / f"out{self._started}"
        job = {"state": str(self.state), "log": str(self.log), "out": str(out), "die_in": die_in, **asked}
        self._source.write(json.dumps(job) + "\n")
        self._source.flush()
        return out

    def run(self, *steps, context=None, key="key", die_in="", **asked):
        program = {"name": "p", "steps": list(steps)}
        asked = {"run": {"program": program, "context": context, "key": key}, "die_in": die_in, **asked}
        return ended(self.start(**asked), die_in)

    def resume(self, execution, payload=None, die_in="", **asked):
        asked = {"resume": {"id": execution, "payload": payload}, "die_in": die_in, **asked}
        return ended(self.start(**asked), die_in or asked.get("die_at"))

    def settle(self, execution, how, doubt=None, *, go_on=True, die_in="", die_at="", **word):
        asked = {"id": execution, "how": how, "doubt": doubt, "go_on": go_on, **word}
        return ended(self.start(settle=asked, die_in=die_in, die_at=die_at), die_in or die_at)

    def cancel(self, execution, die_in=""):
        return ended(self.start(cancel={"id": execution}, die_in=die_in), die_in)

    @property
    def done(self):
        return [line.split()[0] for line in self.log.read_text().splitlines()]

    async def stored(self):
        async with Database(self.state / "ledger.sqlite") as database:
            (found,) = await ProgramStore(database).executions(None, 10)
            return found

    async def decide(self, *, approved=True):
        async with Database(self.state / "ledger.sqlite") as database:
            store = ProgramStore(database)
            (asked,) = await store.approvals(open_only=True)
            assert await decide(store, asked, approved=approved)


def ended(out, die_in=""):
    """The record that a host has given at its end; None of one that was killed."""
    mark = out.with_name(out.name + ".ended")
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline, "the host doesn't end"
        time.sleep(0.01)
    assert int(mark.read_text()) == (-signal.SIGKILL if die_in else 0)
    return None if die_in else json.loads(out.read_text())


@pytest.fixture(scope="module")
def source():
    with subprocess.Popen([sys.executable, str(HOST)], stdin=subprocess.PIPE, text=True) as process:
        yield process.stdin
        process.stdin.close()


@pytest.fixture
async def hosts(tmp_path, source):
    made = Hosts(tmp_path, source)
    yield made
    # Whoever died on the way: what is recorded is what the program does.
    async with Database(made.state / FILE_NAME) as database:
        store, recorder = ProgramStore(database), SqliteRecorder(database)
        for row in await store.executions(None, 100):
            assert (await replayed(store, recorder, row)).difference is None


def tool(name, text="$x", **fields):
    return {"id": name, "type": "tool", "tool": name, "args": {"text": text}, **fields}
