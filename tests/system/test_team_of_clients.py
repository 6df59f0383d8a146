"""Many clients of many principals on one bridge over HTTP: each gets its own and nothing of another's, and nothing leaks.

The clients are processes, one for each principal; the containers, the HTTP and the tokens are real. Every text of a
client has its principal's marker, which is looked for wherever something of the bridge can be seen: answers, errors,
resources, progress, logs, metrics, traces. `MCP_BRIDGE_TEST_LONG=1` asks for 200 clients of 20 principals.
"""

import asyncio
import json
import os
import re
import signal
import sys
from collections import defaultdict
from pathlib import Path

import httpx2
import pytest
from bridge_fixtures import DEADLINE_SECONDS, until
from http_bridge import serving
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from otlp_receiver import collector
from servers.specs import faulty
from team_clients import KINDS

LONG = bool(os.environ.get("MCP_BRIDGE_TEST_LONG"))
PRINCIPALS, CLIENTS = (20, 10) if LONG else (4, 6)

SUPPORT = Path(__file__).resolve().parents[1] / "support"
ENDS = dict(zip(KINDS, ("whole", "failed", "cancelled", "timed out", "came again", "gone"), strict=True))
MARKER = re.compile(r"mark-(\d\d)-")
EXECUTION = re.compile(r'"execution":"([0-9a-f]{16})"')

GROWTH_KIB = 24 << 10
"""How much more memory a second round of clients may leave: far less than all of them had, if they left anything."""


async def team(bridge, tokens, number):
    """A round of all clients at once: what each principal's have seen."""

    async def principal(name, token):
        order = {"url": bridge.url, "token": token, "mark": f"mark-{name[1:]}", "clients": CLIENTS, "round": number}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SUPPORT / "team_clients.py"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, errors = await process.communicate(json.dumps(order).encode() + b"\n")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, errors.decode()
        return [json.loads(line) for line in out.splitlines()]

    told = await asyncio.gather(*(principal(*each) for each in tokens.items()))
    return dict(zip(tokens, told, strict=True))


class Counted:
    """What the bridge's process has, by a principal that may see all."""

    def __init__(self, setup, bridge, http, token, folder):
        self.setup, self.bridge, self.http = setup, bridge, http
        self.token = token
        self.file = folder / "counts.json"

    async def metrics(self):
        answer = await self.http.get("/metrics", headers={"authorization": f"Bearer {self.token}"})
        assert answer.status_code == 200, answer.text
        return answer.text

    async def gauge(self, name):
        return float(re.search(rf"^mcp_bridge_{name} (\S+)$", await self.metrics(), re.MULTILINE)[1])

    async def is_quiet(self):
        """Whether no client is left but this one, and no run."""
        names = ("http_sessions", "runs_running", "runs_queued")
        left = [await self.gauge(name) for name in names]
        connections = await self.gauge("http_connections")
        return not any(left) and connections <= 1 and not await self.setup.containers(self.bridge.pid)

    async def now(self):
        """Descriptors, tasks, threads and memory (KiB), once all clients are gone."""
        await until(self.is_quiet, 2 * DEADLINE_SECONDS, every=0.3)
        self.file.unlink(missing_ok=True)
        os.kill(self.bridge.pid, signal.SIGUSR1)
        await until(self.file.exists)
        process = Path(f"/proc/{self.bridge.pid}")
        resident = int(re.search(r"VmRSS:\s+(\d+)", (process / "status").read_text())[1])
        counted = json.loads(self.file.read_text())
        return counted | {"descriptors": len(list((process / "fd").iterdir())), "KiB": resident}


def names_of(number):
    return [f"p{each:02}" for each in range(number)]


@pytest.mark.usefixtures("whole_ledgers")
@pytest.mark.timeout(1500 if LONG else 300)
async def test_many_clients_get_their_own_and_leave_nothing(configure, tmp_path):
    names = names_of(PRINCIPALS)
    tables = {name: {} for name in names} | {"watcher": {"sees_all": True}, "stranger": {}}
    with collector() as received:
        setup = configure(
            faulty("talkative"),
            principals=tables,
            http={"session_idle_timeout": 10.0},
            telemetry={"over_http": True, "otlp": received.address, "interval": 1},
            log_format="json",
            log_level="info",
            max_concurrent=4,
        )
        tokens = {name: setup.run("principal", "add", name).stdout.decode().strip() for name in tables}
        watcher, stranger = tokens.pop("watcher"), tokens.pop("stranger")
        counting = {"MCP_TEST_COUNTS": str(tmp_path / "counts.json")}
        command = (sys.executable, str(SUPPORT / "counting_bridge.py"))
        async with serving(setup, env=counting, command=command) as bridge, bridge.http() as http:
            counted = Counted(setup, bridge, http, watcher, tmp_path)
            # The first round has each thing made that is made once.
            seen = await team(bridge, tokens, 0)
            before = await counted.now()
            for name, clients in (await team(bridge, tokens, 1)).items():
                seen[name] += clients
            after = await counted.now()
            metrics = await counted.metrics()

            ends = {(row["kind"], row["mode"]): row["ended"] for rows in seen.values() for row in rows}
            wrong = [row for rows in seen.values() for row in rows if row["ended"] != ENDS[row["kind"]]]
            assert not wrong, [(row["kind"], row["mode"], row["ended"], row["seen"][-1:]) for row in wrong]
            assert len(ends) == 2 * len(KINDS), "every kind in either era"
            owners = assert_apart(seen)
            await assert_unknown(bridge, stranger, owners)
            assert "mark-" not in metrics
            succeeded = r'^mcp_bridge_runs_total\{.*principal="(p\d\d)",status="success"\} (\S+)'
            counts = dict(re.findall(succeeded, metrics, re.MULTILINE))
            assert set(counts) == set(names)
            assert len(set(counts.values())) == 1, f"each has had as many: {counts}"
            for what in ("descriptors", "tasks", "threads"):
                assert after[what] <= before[what] + 3, (what, before, after)
            assert after["KiB"] <= before["KiB"] + GROWTH_KIB, (before, after)
            os.kill(bridge.pid, signal.SIGTERM)
            assert await bridge.ended() == 0
        logged = bytes(bridge.logged)
    assert_log(logged, owners)
    assert_traces(received, owners)


def assert_apart(seen):
    """Each client has seen its own principal's markers alone; whose each execution is."""
    owners = {}
    for name, rows in seen.items():
        for row in rows:
            told = "\n".join(row["seen"])
            found = set(MARKER.findall(told))
            assert found <= {name[1:]}, (row["kind"], row["mode"], found)
            if row["kind"] not in {"goes at once"}:
                assert row["mark"] in told, row
            for execution in EXECUTION.findall(told):
                assert owners.setdefault(execution, name) == name
    assert len(set(owners.values())) == len(seen)
    return owners


async def assert_unknown(bridge, token, owners):
    """Ids lead somebody else nowhere."""
    chosen = {name: execution for execution, name in owners.items()}
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=DEADLINE_SECONDS) as http,
        Client(streamable_http_client(bridge.url, http_client=http), mode="legacy") as client,
    ):
        for execution in chosen.values():
            for uri in (f"trace://{execution}", f"artifact://{execution}/a.txt"):
                with pytest.raises(MCPError, match="There is no"):
                    await client.read_resource(uri)
        resources = [str(row.uri) for row in (await client.list_resources()).resources]
        assert len(resources) == 1, "the schema of programs alone"


def assert_log(logged, owners):
    """The log has no marker, and names each execution's own principal."""
    assert b"mark-" not in logged
    records = [json.loads(line) for line in logged.splitlines()]
    faults = [record["exception"] for record in records if "exception" in record]
    assert not faults, f"{len(faults)}, of which the first is {faults[0]}"
    for record in records:
        if "execution" in record:
            assert owners.get(record["execution"], record["principal"]) == record["principal"], record


def assert_traces(received, owners):
    """Spans have no marker, and a trace is one principal's."""
    assert b"mark-" not in received.raw
    principals = defaultdict(set)
    for span in received.spans:
        if "mcp_bridge.principal" in span.attributes:
            principals[span.trace].add(span.attributes["mcp_bridge.principal"])
            execution = span.attributes.get("mcp_bridge.execution")
            assert (
                owners.get(execution, span.attributes["mcp_bridge.principal"])
                == span.attributes["mcp_bridge.principal"]
            )
    assert len(principals) >= len(owners)
    assert all(len(names) == 1 for names in principals.values()), principals
