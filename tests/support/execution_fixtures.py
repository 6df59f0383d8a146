"""The bridge in the test's own process, with real containers.

The probe, the image and the engine are found once for all modules; each test opens a bridge of its own over the
servers it wants, in a state directory of its own, and no container may be left when it is closed.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from sandbox_fixtures import RUNTIME, knows_the_sandbox

from mcp_bridge.host.bridge import Bridge, open_bridge
from mcp_bridge.host.engine_setup import Prepared, prepare
from mcp_bridge.sandbox.engine import OWNER_LABEL
from mcp_bridge.sandbox.ownership import owner_label
from mcp_bridge.settings import Settings
from mcp_bridge.wire.framing import LineDecoder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.governance.governance import Governance
    from mcp_bridge.sandbox.languages import Language

POOLED = bool(os.environ.get("MCP_BRIDGE_TEST_POOL"))
"""Whether all executions are to run in containers that were started ahead."""

DEADLINE_SECONDS = 100.0
"""For one bridge of a test, whatever it does: far above what any of it takes on a loaded machine."""


@dataclass(frozen=True)
class Sandboxes:
    """Opens bridges whose engine and image are known already."""

    settings: Settings
    prepared: Prepared

    @asynccontextmanager
    async def open(
        self,
        *specs: ServerSpec,
        governance: Governance | None = None,
        bounded: bool = True,
        pooled: bool = POOLED,
        **changes: Any,
    ) -> AsyncIterator[Bridge]:
        """A bridge; one that several tests share is bounded by theirs. With `pooled`, it starts containers ahead."""
        with anyio.fail_after(DEADLINE_SECONDS if bounded else None):
            async with open_bridge(self.settings.model_copy(update=changes), specs, governance) as bridge:
                bridge.sandboxes.prepared = self.prepared
                if pooled:
                    await bridge.sandboxes.start_ahead()
                yield bridge
            assert await self.containers() == [], "a container was left behind"

    async def run(
        self,
        code: str,
        *specs: ServerSpec,
        timeout: float | None = None,  # noqa: ASYNC109
        servers: list[str] | None = None,
        language: Language = "python",
        **changes: Any,
    ) -> ExecutionRecord:
        """One script in a bridge of its own."""
        async with self.open(*specs, **changes) as bridge:
            return await bridge.run(code, timeout=timeout, servers=servers, language=language)

    async def containers(self) -> list[str]:
        """Names of this process's containers, running or not."""
        found = await self.prepared.engine.list(f"{OWNER_LABEL}={owner_label()}")
        return [container.name for container in found]


@pytest.fixture(scope="session")
def prepared(sandbox_state_dir: Path) -> Prepared:
    """The engine and the image of this host; fails where there is none."""
    return anyio.run(prepare, Settings(state_dir=sandbox_state_dir, runtime=RUNTIME))


BOTH: tuple[Language, ...] = ("python", "javascript")


@pytest.fixture(scope="session")
def prepared_for_both(sandbox_state_dir: Path) -> Prepared:
    """As `prepared`, with an image in which JavaScript runs, too."""
    return anyio.run(prepare, Settings(state_dir=sandbox_state_dir, runtime=RUNTIME, languages=BOTH))


@pytest.fixture
def both(prepared_for_both: Prepared, sandbox_state_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Sandboxes:
    """As `sandboxes`, for scripts in both languages."""
    return _for_both(prepared_for_both, sandbox_state_dir, tmp_path_factory)


Source = str | dict[str, str]
"""A script; or one that says the same in each language, `{"python": ..., "javascript": ...}`."""


@dataclass(frozen=True)
class Opened:
    """A bridge, and scripts in one language in it."""

    bridge: Bridge
    language: Language

    async def run(self, code: Source, **options: Any) -> ExecutionRecord:
        return await self.bridge.run(source(code, self.language), language=self.language, **options)

    async def all(self, *codes: Source, **options: Any) -> list[ExecutionRecord]:
        """Several scripts at once, each in its own sandbox; their records in order."""
        records: list[ExecutionRecord] = [None] * len(codes)  # type: ignore[list-item]

        async def one(place: int, code: Source) -> None:
            records[place] = await self.run(code, **options)

        async with anyio.create_task_group() as tasks:
            for place, code in enumerate(codes):
                tasks.start_soon(one, place, code)
        return records


@dataclass(frozen=True)
class Runs:
    """As `Sandboxes`, for scripts in one language."""

    sandboxes: Sandboxes
    language: Language

    @asynccontextmanager
    async def open(self, *specs: ServerSpec, **changes: Any) -> AsyncIterator[Opened]:
        async with self.sandboxes.open(*specs, **changes) as bridge:
            yield Opened(bridge, self.language)

    async def run(self, code: Source, *specs: ServerSpec, **options: Any) -> ExecutionRecord:
        """One script in a bridge of its own."""
        return await self.sandboxes.run(source(code, self.language), *specs, language=self.language, **options)


def source(code: Source, language: Language) -> str:
    return code if isinstance(code, str) else code[language]


@pytest.fixture
def forged(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What has been read from sandboxes that contains the word `forged`."""
    read: list[bytes] = []
    feed = LineDecoder.feed

    def noted(self: LineDecoder, chunk: bytes) -> list[bytes]:
        if b"forged" in chunk:
            read.append(chunk)
        return feed(self, chunk)

    monkeypatch.setattr(LineDecoder, "feed", noted)
    return read


@pytest.fixture(params=BOTH)
def bilingual(request: pytest.FixtureRequest) -> Runs:
    """For what holds in both languages: one case, with a source in each."""
    return Runs(request.getfixturevalue("sandboxes" if request.param == "python" else "both"), request.param)


@pytest.fixture(scope="module")
def module_sandboxes(
    prepared_for_both: Prepared, sandbox_state_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Sandboxes:
    """Bridges for what a module's tests share, in both languages."""
    return _for_both(prepared_for_both, sandbox_state_dir, tmp_path_factory)


@pytest.fixture
def sandboxes(prepared: Prepared, sandbox_state_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Sandboxes:
    """Bridges for one test: none sees what another's has recorded or kept."""
    return _with_own_state(prepared, sandbox_state_dir, tmp_path_factory)


def _with_own_state(prepared: Prepared, known: Path, factory: pytest.TempPathFactory) -> Sandboxes:
    """Sandboxes with a state directory that knows what the probe found, and nothing else."""
    state_dir = knows_the_sandbox(factory.mktemp("sandboxes"), known)
    return Sandboxes(Settings(state_dir=state_dir, runtime=RUNTIME), prepared)


def _for_both(prepared: Prepared, known: Path, factory: pytest.TempPathFactory) -> Sandboxes:
    made = _with_own_state(prepared, known, factory)
    return Sandboxes(made.settings.model_copy(update={"languages": BOTH}), made.prepared)


def printed(record: ExecutionRecord) -> str:
    """Standard output of a script that must have ended well."""
    assert record.status == "success", (record.status, record.error, record.stderr[-2000:])
    return record.stdout.decode()


def lines(record: ExecutionRecord) -> list[str]:
    return printed(record).splitlines()


async def until(condition: Any, seconds: float = 60.0) -> Any:
    """Wait until a condition, which may be asynchronous, holds."""
    with anyio.fail_after(seconds):
        while True:
            found = condition()
            if hasattr(found, "__await__"):
                found = await found
            if found:
                return found
            await anyio.sleep(0.02)


class Peak:
    """How much this process's memory grew beyond what it had, at its highest, in bytes."""

    def __init__(self) -> None:
        # 5: the mark of the highest begins anew (proc(5), clear_refs).
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._status("VmRSS")

    @property
    def growth(self) -> int:
        return self._status("VmHWM") - self._before

    @staticmethod
    def _status(name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024


class Ticker:
    """The longest that this process's event loop worked at one thing, in seconds of its thread's own time.

    Not by the clock: on a loaded machine that would measure the others.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Ticker]:
        async def tick() -> None:
            while True:
                before = time.thread_time()
                await anyio.sleep(0.01)
                self.longest = max(self.longest, time.thread_time() - before)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            yield self
            tasks.cancel_scope.cancel()
