"""Scripts as executions that last: whatever kills their host, nothing done is done again, and what can go on goes on."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox_fixtures import RUNTIME

from mcp_bridge.bridge.program_record import standing
from mcp_bridge.ledger.database import Database
from mcp_bridge.ledger.recorder import SqliteRecorder
from mcp_bridge.ledger.schema import FILE_NAME
from mcp_bridge.ledger.store import ProgramStore

HOST = Path(__file__).with_name("script_host.py")

HEAD = "import asyncio\nfrom mcp.servers import local\n"


class Hosts:
    """Hosts, one after the other or at once, over one state directory."""

    def __init__(self, folder, probes, source):
        self.state = folder / "state"
        self.state.mkdir()
        for report in probes:
            shutil.copy(report, self.state)
        self.log = folder / "log"
        self.log.touch()
        self._folder, self._source, self._started = folder, source, 0
        self.settings = {"runtime": RUNTIME}

    def start(self, *, die="", **asked):
        self._started += 1
        out = self._folder / f"out{self._started}"
        job = {"state": str(self.state), "log": str(self.log), "out": str(out), "die": die, "settings": self.settings}
        self._source.write(json.dumps(job | asked) + "\n")
        self._source.flush()
        return out

    def run(self, code, key="key", die="", **more):
        return ended(self.start(run={"code": HEAD + code, "key": key, **more}, die=die), die)

    def settle(self, execution, call=None, **word):
        return ended(self.start(settle={"id": execution, "call": call, **word}))

    def finish(self, code):
        """Run until it has ended; a person looks up what has happened."""
        record = self.run(code)
        while record["status"] == "suspended":
            for call in record["error"]["calls"]:
                done = f"once {call['arguments']['text']}" in self.done
                word = (
                    {"how": "happened", "value": f"once:{call['arguments']['text']}"} if done else {"how": "not_done"}
                )
                self.settle(record["execution"], call["call"], **word)
            record = self.run(code)
        return record

    @property
    def done(self):
        return self.log.read_text().splitlines()

    async def stored(self):
        async with self.database() as database:
            return (await ProgramStore(database).executions(None, 10))[0]

    async def entries(self):
        async with self.database() as database:
            (found,) = await ProgramStore(database).executions(None, 10)
            return [row.entry for row in await SqliteRecorder(database).read(found.id)]

    def database(self):
        return Database(self.state / FILE_NAME)


def ended(out, die=""):
    """The record that a host has given at its end; None of one that was killed."""
    mark = out.with_name(out.name + ".ended")
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline, "the host doesn't end"
        time.sleep(0.01)
    assert int(mark.read_text()) == (-signal.SIGKILL if die else 0)
    return None if die else json.loads(out.read_text())


@pytest.fixture(scope="module")
def source():
    with subprocess.Popen([sys.executable, str(HOST)], stdin=subprocess.PIPE, text=True) as process:
        yield process.stdin
        process.stdin.close()


@pytest.fixture
def hosts(tmp_path, source, sandboxes):
    return Hosts(tmp_path, list(sandboxes.settings.state_dir.glob("probe-*.json")), source)


# --- killed ---

SEQUENTIAL = """
first = await local.once(text="a")
second = await local.again(text="b")
print(first, second, await local.once(text="c"))
"""
GATHERED = """
async def wait(text, seconds):
    return await local.once(text=text, seconds=seconds)
print(await asyncio.gather(wait("a", 0.3), wait("b", 0.05), wait("c", 0.15)))
print(await local.once(text="d"))
"""
RACED = """
for one in asyncio.as_completed([local.once(text="a", seconds=0.4), local.once(text="b"), local.once(text="c", seconds=0.2)]):
    print(await one, await local.once(text=f"then {len(await one if False else 'x')}"))
"""
RACED = """
names = []
for one in asyncio.as_completed([local.once(text=text, seconds=s) for text, s in (("a", 0.4), ("b", 0), ("c", 0.2))]):
    names.append(await one)
    print(await local.once(text="+".join(names)))
"""
THREADED = """
from concurrent.futures import ThreadPoolExecutor
from mcp.sync.servers import local as blocking
with ThreadPoolExecutor(2) as pool:
    print(list(pool.map(lambda text: blocking.once(text=text), "abc")))
print(await asyncio.to_thread(blocking.once, text="d"))
"""
NESTED = """
async def branch(text):
    first = await local.once(text=text)
    async with asyncio.TaskGroup() as group:
        rest = [group.create_task(local.once(text=f"{text}{number}")) for number in (1, 2)]
    return first, *(one.result() for one in rest)
print(await asyncio.gather(branch("a"), branch("b")))
"""

KILLS = [
    (SEQUENTIAL, "before:once c"),
    (SEQUENTIAL, "in:once c"),
    (SEQUENTIAL, "in:again b"),
    (SEQUENTIAL, "outcome:once a"),
    (SEQUENTIAL, "after:once a"),
    (SEQUENTIAL, "end"),
    (GATHERED, "in:once c"),
    (GATHERED, "after:once a"),
    (RACED, "before:once once:b+once:c"),
    (RACED, "after:once once:b"),
    (THREADED, "in:once b"),
    (THREADED, "after:once c"),
    (NESTED, "in:once b"),
    (NESTED, "after:once b2"),
]
SAID = {
    SEQUENTIAL: "once:a again:b once:c\n",
    GATHERED: "['once:a', 'once:b', 'once:c']\nonce:d\n",
    RACED: "once:once:b\nonce:once:b+once:c\nonce:once:b+once:c+once:a\n",
    THREADED: "['once:a', 'once:b', 'once:c']\nonce:d\n",
    NESTED: "[('once:a', 'once:a1', 'once:a2'), ('once:b', 'once:b1', 'once:b2')]\n",
}


@pytest.mark.parametrize(("code", "die"), KILLS)
async def test_whatever_kills_its_host_a_script_goes_on_and_repeats_nothing(hosts, code, die):
    hosts.run(code, die=die)
    assert standing(await hosts.stored()) == "interrupted"
    record = hosts.finish(code)
    assert (record["status"], record["stdout"]) == ("success", SAID[code])
    once = [line for line in hosts.done if line.startswith("once")]
    assert len(once) == len(set(once)), "something was done twice"
    assert hosts.run(code) == record
    assert len([line for line in hosts.done if line.startswith("once")]) == len(once)
