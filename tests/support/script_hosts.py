"""Hosts of scripts in processes of their own, which die where a test says."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sandbox_fixtures import RUNTIME, knows_the_sandbox

from mcp_bridge.executions.status import ENDED_BY_ITSELF
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME

HOST = Path(__file__).with_name("script_host.py")

WRITING = threading.Lock()

HEAD = "import asyncio\nfrom mcp.servers import local\n"
JAVASCRIPT_HEAD = 'import { local } from "mcp/servers";\n'


class Hosts:
    """Hosts, one after the other or at once, over one state directory."""

    head, language = HEAD, "python"

    def __init__(self, folder, known, source):
        self.state = knows_the_sandbox(folder / "state", known)
        self.log = folder / "log"
        self.log.touch()
        self._folder, self._source, self._started = folder, source, 0
        self.settings = {"runtime": RUNTIME}

    def start(self, *, die="", **asked):
        self._started += 1
        out = self._folder / f"out{self._started}"
        job = {"state": str(self.state), "log": str(self.log), "out": str(out), "die": die, "settings": self.settings}
        with WRITING:
            self._source.write(json.dumps(job | asked) + "\n")
        return out

    def run(self, code, key="key", die="", *, many=1, session=None, fork=None, **more):
        """The record; None of a host that was killed, by `die` or, if it was there in time, by `kills`."""
        place = {"session": session, "fork": fork}
        run = {"code": self.whole(code), "key": key, "many": many, "language": self.language} | place
        return ended(self.start(run=run, die=die, **more), die, may_die="kills" in more)

    def whole(self, code):
        """What is run for a code, which may be given in each language: `{"python": ..., "javascript": ...}`."""
        return self.head + (code if isinstance(code, str) else code[self.language])

    def cells(self, codes, **more):
        """Cells of a session, by one host."""
        return ended(
            self.start(
                cells=[{"code": self.head + code, "session": "s", "language": self.language} for code in codes], **more
            )
        )

    def settle(self, execution, call=None, **word):
        return ended(self.start(settle={"id": execution, "call": call, **word}))

    def send(self, execution, name, payload=None, die="", **more):
        """Send an event to an execution."""
        return ended(self.start(send={"id": execution, "name": name, "payload": payload, **more}, die=die), die)

    def decide(self, record, *, approved=True):
        """Answer the one question that a record has."""
        (row,) = [row for row in record["waiting"] if row["kind"] == "approval"]
        word = {"execution": record["execution"], "effect": row["effect"], "by": "anna", "approved": approved}
        return ended(self.start(decide=word))

    def cancel(self, execution):
        return ended(self.start(cancel={"id": execution}))

    def replay(self, execution, **more):
        return ended(self.start(replay={"id": execution}, **more))

    def finish(self, code, key="key", **more):
        """Run until it has ended; a person looks up what has happened."""
        record = self.run(code, key, **more)
        while record["status"] == "suspended":
            for call in record["error"]["calls"]:
                done = f"once {call['arguments']['text']}" in self.done
                word = (
                    {"how": "happened", "value": f"once:{call['arguments']['text']}"} if done else {"how": "not_done"}
                )
                self.settle(record["execution"], call["call"], **word)
            record = self.run(code, key, **more)
        return record

    @property
    def done(self):
        return self.log.read_text().splitlines()

    async def stored(self):
        async with self.database() as database:
            return await _script(database)

    async def last_cell(self):
        """The number and the record of the cell that began last, once it has ended by itself; or None."""
        async with self.database() as database:
            # A host that was killed early enough has stored none.
            has_ended = (stored := await _script(database)) is not None and stored.status in ENDED_BY_ITSELF
            return (stored.bundle["cell"]["number"], stored.record) if has_ended else None

    async def entries(self):
        async with self.database() as database:
            return [row.entry for row in await SqliteRecorder(database).read((await _script(database)).id)]

    def database(self):
        return Database(self.state / FILE_NAME)


async def _script(database):
    return next((row for row in await ProgramStore(database).executions(None, 10) if row.kind == "script"), None)


def ended(out, die="", *, may_die=False):
    """The record that a host has given at its end; None of one that was killed."""
    mark = out.with_name(out.name + ".ended")
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline, "the host doesn't end"
        time.sleep(0.01)
    status = int(mark.read_text())
    assert status == (-signal.SIGKILL if die else 0) or (may_die and status == -signal.SIGKILL)
    return json.loads(out.read_text()) if status == 0 else None


@pytest.fixture(scope="module")
def source():
    with subprocess.Popen([sys.executable, str(HOST)], stdin=subprocess.PIPE, text=True, bufsize=1) as process:
        yield process.stdin
        process.stdin.close()


@pytest.fixture
def make_hosts(tmp_path, source, sandboxes):
    def make(name):
        folder = tmp_path / name
        folder.mkdir()
        return Hosts(folder, sandboxes.settings.state_dir, source)

    return make


@pytest.fixture
def make_javascript_hosts(tmp_path, source, both):
    """As `make_hosts`, of scripts in JavaScript."""

    def make(name):
        folder = tmp_path / name
        folder.mkdir()
        hosts = Hosts(folder, both.settings.state_dir, source)
        hosts.head, hosts.language = JAVASCRIPT_HEAD, "javascript"
        hosts.settings["languages"] = ["python", "javascript"]
        return hosts

    return make


@pytest.fixture(params=["python", "javascript"])
def make_either(request):
    """`make_hosts`, and then `make_javascript_hosts`: for what holds in both languages."""
    return request.getfixturevalue("make_hosts" if request.param == "python" else "make_javascript_hosts")


@pytest.fixture
def either(make_either):
    """Hosts of scripts in one of the languages."""
    return make_either("hosts")
