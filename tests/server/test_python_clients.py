"""Clients from PyPI that we did not write, each with the bridge over stdio and HTTP: what they do with it, and what reaches the model.

Each is a program in `python_clients`, in an environment of its own (`scripts/setup.sh` makes them), and all of its checks
are made in one session. A model behind OpenAI's API on loopback asks for the scripts; fastmcp has no model.
"""

import asyncio
import contextlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from bridge_fixtures import COMMAND, DEADLINE_SECONDS, MAX_LINE_BYTES, OVER_BOTH, is_gone, until
from http_bridge import serving
from scripted_openai import DONE, TOOL, ScriptedModel, Shown, answers, tools

from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.server import tool_description
from mcp_bridge.settings import Settings

HERE = Path(__file__).resolve().parents[1] / "support"
ENVIRONMENTS = HERE.parents[1] / ".cache/clients"
SESSION_SECONDS = 240.0

NOWHERE = "http://127.0.0.1:9"
"""A proxy that isn't there."""

LIMIT = 5000
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TRACEBACK = """Traceback (most recent call last):
  File "<script>", line 2, in <module>
    1 / 0
    ~~^~~
ZeroDivisionError: division by zero"""

FAILING = "print('before')\n1 / 0"
CHECKS = {
    "calls": "from mcp.servers import recording\nprint('sum:', (await recording.note(number=2))['number'] + 3)",
    "errors": FAILING,
    "images": f"import base64\nprint('an image')\ndisplay(base64.b64decode('{PNG}'))",
    "long_output": "print('begin' + 'x' * 1_000_000 + 'end')",
    # What the bridge does for the call, it does after it has been told of the progress.
    "progress": "from mcp.servers import recording\nprogress(1, 2, 'half way')\nawait recording.note(number=3)\nNone",
}
ENDLESS = "import asyncio\nfrom mcp.servers import recording\nawait recording.note(number=1)\nawait asyncio.sleep(3600)"
SCRIPTS = {"checks": list(CHECKS.values()), "failures": [FAILING] * 2, "cancel": [ENDLESS], "after": ["1 + 1"]}


@dataclass(frozen=True)
class Client:
    """What a client does.

    Attributes:
        environment: The environment that has it.
        instructions: Whether the server's instructions get through.
        error: The form in which the text of a failed script is shown.
        failures: What is reported of two failed scripts in a row, and how that begins.
        progress: Whether it passes progress on.
        cancelled: What becomes of the script of each call that is cancelled.
        record: Where the program finds the record, if it does.
        patience: How many seconds it waits for an answer unless it is told otherwise, where that is too few.
    """

    environment: str
    instructions: bool = False
    error: Callable[[str], str] = str
    failures: tuple[tuple[str, str], ...] = (("ended", DONE),)
    progress: bool = True
    cancelled: tuple[str, ...] = ("ends",)
    record: str | None = None
    patience: float | None = None


CLIENTS = {
    "fastmcp": Client("agents", instructions=True, failures=(("raised", "before\nTraceback"),) * 2, record="meta"),
    # The second failure ends the run, unless it is told otherwise.
    "pydantic_ai": Client(
        "agents",
        instructions=True,
        error=lambda text: json.dumps({"error": text}, separators=(",", ":")),
        failures=(("raised", "Tool 'run_python' exceeded max retries count of 1"), ("ended", DONE)),
    ),
    "openai_agents": Client("agents", progress=False, patience=5),
    # Its SDK, of version 1, tells the bridge of no cancelled call. Without a session there is a bridge for each call, and that ends.
    "langchain": Client("langchain", cancelled=("goes on", "ends"), record="structured"),
}


@dataclass
class Seen:
    """What came of a session.

    Attributes:
        events: What the client reported, by its kind, in order.
        requests: What its model was sent, by the conversation.
        cancelled: What became of the script of each cancelled call.
    """

    events: dict[str, list[dict]]
    requests: dict[str, list[dict]]
    cancelled: list[str] = field(default_factory=list)

    @property
    def tools(self):
        if "tools" in self.events:
            return [{**tool, "parameters": tool["inputSchema"]} for tool in self.events["tools"][0]["tools"]]
        return tools(self.requests["checks"][0])

    @property
    def answers(self):
        """What was shown of the answer to each check."""
        told = [Shown.of(event["content"]) for event in self.events["answer"]] or answers(self.requests["checks"][-1])
        return dict(zip(CHECKS, told, strict=True))

    def said(self, event, what):
        return [one[what] for one in self.events[event]]


def lists(seen, client):
    (tool,) = seen.tools
    assert tool["name"] == TOOL


def calls(seen, client):
    assert seen.answers["calls"] == Shown(["sum: 5"])
    given = [where for told in seen.events["record"][:1] for where in ("structured", "meta") if told.get(where)]
    assert given == [client.record] * (client.record is not None)


def errors(seen, client):
    assert seen.answers["errors"] == Shown([client.error(f"before\n{TRACEBACK}")])
    ended = [(event, told["text"]) for event in ("raised", "ended") for told in seen.events[event]]
    assert len(ended) == len(client.failures)
    for (event, text), (wanted, begin) in zip(ended, client.failures, strict=True):
        assert event == wanted
        assert text.startswith(begin)


def images(seen, client):
    assert seen.answers["images"] == Shown(["an image"], [f"data:image/png;base64,{PNG}"])


def long_output(seen, client):
    (text,) = seen.answers["long_output"].texts
    assert text.startswith("beginxxx")
    assert text.endswith("xxxend")
    assert re.search(
        r"\n\[… \d+ of 1000009 characters cut; runtime\.output\('\w+'\) has all of it, or output://\w+/stdout …\]\n",
        text,
    )
    assert len(text) <= LIMIT


def progress(seen, client):
    assert ("half way" in seen.said("progress", "message")) == client.progress
    assert seen.said("patience", "seconds") == [client.patience] * (client.patience is not None)


def cancellation(seen, client):
    assert seen.cancelled == list(client.cancelled)
    # And the client goes on with the same bridge.
    (after,) = seen.said("after", "text")
    if seen.requests["after"]:
        assert after == DONE
        assert answers(seen.requests["after"][-1]) == [Shown(["2"])]
    else:
        assert after == "2"


def reached_the_model(seen, client):
    (tool,) = seen.tools
    wanted = tool_description.tool(Settings(timeout=120, max_timeout=120))
    assert tool["description"] == wanted.description
    # Some add `additionalProperties`.
    assert {name: tool["parameters"][name] for name in wanted.input_schema} == wanted.input_schema
    whole = json.dumps(seen.events["instructions"] + seen.requests["checks"])
    assert ("These MCP servers are behind it: recording." in whole) == client.instructions
    # The record is for programs: no model is shown it, whole or in part.
    assert "script_ms" not in json.dumps([vars(shown) for shown in seen.answers.values()])


class Session:
    """A client's program, run to its end, and looked at where it pauses.

    Args:
        name: The client's.
        setup: The bridge.
        noted: The file in which the server behind it notes its calls.
        url: The address of a bridge that serves over HTTP, or None for one that the client starts.
    """

    def __init__(self, name, setup, noted, url):
        self.name = name
        self.client = CLIENTS[name]
        self.setup = setup
        self.noted = noted
        self.url = url
        self.model = ScriptedModel(SCRIPTS)
        self.seen = Seen(defaultdict(list), self.model.requests)
        self.bridge = self.container = None
        self.begun = 0

    async def run(self, stderr):
        """What came of it; what the client writes to its standard error is in the file `stderr`."""
        python = ENVIRONMENTS / self.client.environment / "bin/python"
        assert python.exists(), f"there is no {python}: `make setup-test` makes it"
        with self.model.served() as address, stderr.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                str(python),
                str(HERE / f"python_clients/with_{self.name}.py"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                # What isn't on this machine is refused, whatever a client would like to tell anybody.
                env=self.setup.env | {"HTTPS_PROXY": NOWHERE, "HTTP_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1"},
                cwd=self.setup.home,
                limit=MAX_LINE_BYTES,
            )
            try:
                with anyio.fail_after(SESSION_SECONDS):
                    await self.follow(process, address)
                    assert await process.wait() == 0, stderr.read_text()
            finally:
                if process.returncode is None:
                    process.kill()
                process.stdin.close()
                await process.wait()
        # Clients kill a bridge that takes more than some seconds to leave, as it may on a busy machine. What is left ends by
        # itself then, and the next bridge removes it; here there may be none.
        if self.url is None:
            await until(lambda: is_gone(self.bridge))
        await until(self.none_runs)
        for left in await self.setup.containers(self.bridge):
            await self.setup.own_engine.remove(left.id)
        return self.seen

    async def follow(self, process, address):
        """Tell the program what to do, and read what it reports."""
        plan = {"command": COMMAND, "args": ["--config", str(self.setup.config)], "env": self.setup.env}
        process.stdin.write(json.dumps(plan | {"url": self.url, "model": address, "scripts": SCRIPTS}).encode() + b"\n")
        while line := await process.stdout.readline():
            event = json.loads(line)
            self.seen.events[event["event"]].append(event)
            if event["event"] in {"running", "cancelled", "after"}:
                await self.look(event["event"])
                process.stdin.write(b"\n")
            await process.stdin.drain()

    async def look(self, event):
        """See how the containers are where the program has paused."""
        wanted = self.client.cancelled
        if event == "running":
            self.begun += 1
            await until(self.has_begun)
            self.bridge = self.setup.server_pid()
            self.container = await until(self.one_that_runs)
        elif event == "cancelled" and wanted[len(self.seen.cancelled)] == "ends":
            await until(self.none_runs)
            self.seen.cancelled.append("ends")
        elif event == "after" and wanted[0] == "goes on":
            # The bridge has answered a later call, so whatever the client had to say of the other has come.
            assert self.container in await self.running()
            self.seen.cancelled.append("goes on")

    def has_begun(self):
        return self.noted.exists() and self.noted.read_text().count('{"number": 1}') == self.begun

    async def running(self):
        """The ids of the bridge's containers, without those that have ended and are about to be removed."""
        return [one.id for one in await self.setup.containers(self.bridge) if one.running]

    async def one_that_runs(self):
        found = await self.running()
        return found[0] if len(found) == 1 else None

    async def none_runs(self):
        return not await self.running()


@pytest.mark.timeout(SESSION_SECONDS + DEADLINE_SECONDS)
@OVER_BOTH
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_does_with_the_bridge_what_the_table_says(configure, tmp_path, name):
    listing, noted = tmp_path / "listing.json", tmp_path / "calls"
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
    listing.write_text(json.dumps([{"name": "note", "inputSchema": schema}]))
    arguments = (str(HERE / "servers/recording.py"), str(listing), str(noted))
    server = ServerSpec(name="recording", command=sys.executable, args=arguments)
    setup = configure(server, max_output_chars=LIMIT, timeout=120, max_timeout=120)
    async with contextlib.AsyncExitStack() as stack:
        over_http = setup.transport == "http"
        url = (await stack.enter_async_context(serving(setup))).url if over_http else None
        seen = await Session(name, setup, noted, url).run(tmp_path / "stderr")
    checks = (lists, calls, errors, images, long_output, progress, cancellation, reached_the_model)
    faults = {}
    for check in checks:
        try:
            check(seen, CLIENTS[name])
        except AssertionError as exc:
            faults[check.__name__] = str(exc)
    assert not faults, "\n\n".join(f"{check}: {fault}" for check, fault in faults.items())
