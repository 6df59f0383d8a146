"""Fixtures with real containers, for every test module.

Without a container engine they fail; they never skip. `MCP_BRIDGE_RUNTIME=docker` chooses the engine; `oci` is none.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import anyio
import pytest

from mcp_bridge.sandbox.engine import OWNER_LABEL, ExitStatus, Limits, SandboxSpec
from mcp_bridge.sandbox.engine_choice import probe
from mcp_bridge.sandbox.image.image import ImageRequest, ensure_image
from mcp_bridge.sandbox.open_driver import open_engine, open_images
from mcp_bridge.sandbox.ownership import owner_label

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.sandbox.cli_engine import CliEngine, CliProcess
    from mcp_bridge.sandbox.isolation_flags import RuntimeChoice
    from mcp_bridge.sandbox.oci.engine import OciEngine, OciProcess
    from mcp_bridge.sandbox.probe_report import ProbeReport

RUNTIME = cast('Literal["auto", "oci", "podman", "docker"]', os.environ.get("MCP_BRIDGE_RUNTIME", "auto"))
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8"}

DEADLINE_SECONDS = 60.0
"""For one container of a test; a copying storage driver on a busy machine needs seconds for each."""


@pytest.fixture(scope="session")
def sandbox_state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory for the whole run."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="session")
def probed(sandbox_state_dir: Path) -> ProbeReport:
    """What the probe chose on this host."""

    async def ensure(choice: RuntimeChoice) -> str:
        images = open_images(choice, sandbox_state_dir)
        return (await ensure_image(images, ImageRequest(), state_dir=sandbox_state_dir)).reference

    async def run() -> ProbeReport:
        return await probe(runtime=RUNTIME, state_dir=sandbox_state_dir, ensure=ensure)

    # Workers have state directories, and so locks, of their own: of two that build at once, one could remove as replaced
    # what has just got its name back.
    with (Path(tempfile.gettempdir()) / f"mcp-bridge-tests-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return anyio.run(run)


@pytest.fixture(scope="session")
def image(probed: ProbeReport, sandbox_state_dir: Path) -> str:
    """The base image's reference."""

    async def run() -> str:
        images = open_images(probed.choice, sandbox_state_dir)
        return (await ensure_image(images, ImageRequest(), state_dir=sandbox_state_dir)).reference

    return anyio.run(run)


@pytest.fixture(scope="session")
def engine(probed: ProbeReport, sandbox_state_dir: Path) -> Iterator[CliEngine | OciEngine]:
    """The probed engine. No container of this process may be left at the end."""
    engine = open_engine(probed.choice, sandbox_state_dir)
    yield engine

    async def left() -> list[str]:
        found = await engine.list(f"{OWNER_LABEL}={owner_label()}")
        for container in found:
            await engine.remove(container.id)
        return [container.name for container in found]

    names = anyio.run(left)
    assert not names, "containers left behind"
    assert not files_of_containers(sandbox_state_dir), "files left behind"


def files_of_containers(state_dir: Path) -> list[Path]:
    """What a driver has in its state directory for containers that are there."""
    found = [path for folder in ("run", "oci/containers", "oci/runtime") for path in (state_dir / folder).glob("[!.]*")]
    return [path for path in found if not path.name.startswith("pool-")]


def knows_the_sandbox(state_dir: Path, known: Path) -> Path:
    """Let a state directory know what the probe found in another one, and share its images."""
    state_dir.mkdir(mode=0o700, exist_ok=True)
    for report in known.glob("probe-*.json"):
        shutil.copy(report, state_dir)
    if (images := known / "oci/images").is_dir():
        (state_dir / "oci").mkdir(mode=0o700)
        (state_dir / "oci/images").symlink_to(images.resolve())
    return state_dir


@dataclass
class Ended:
    """A container that ran to its end."""

    stdout: str
    stderr: str
    status: ExitStatus

    def json(self) -> Any:
        assert self.status.code == 0, f"exit {self.status}: {self.stderr}"
        return json.loads(self.stdout)


@dataclass
class Runner:
    """Runs Python source in containers of one engine and image."""

    engine: CliEngine | OciEngine
    image: str
    limits: Limits = field(default_factory=Limits)

    def spec(
        self,
        source: str,
        *,
        limits: Limits | None = None,
        labels: dict[str, str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> SandboxSpec:
        return SandboxSpec(
            image=self.image,
            name=f"mcp-bridge-test-{uuid.uuid4().hex[:12]}",
            argv=["python3", "-E", "-c", source],
            limits=limits or self.limits,
            labels={OWNER_LABEL: owner_label()} | (labels or {}),
            environment=ENVIRONMENT if environment is None else environment,
        )

    async def start(self, source: str, **options: Any) -> CliProcess | OciProcess:
        return await self.engine.start(self.spec(source, **options))

    async def run(self, source: str, stdin: bytes = b"", **options: Any) -> Ended:
        process = await self.start(source, **options)
        chunks: dict[str, bytes] = {"stdout": b"", "stderr": b""}

        async def collect(name: str) -> None:
            async for chunk in getattr(process, name):
                chunks[name] += chunk

        try:
            with anyio.fail_after(DEADLINE_SECONDS):
                async with anyio.create_task_group() as group:
                    group.start_soon(collect, "stdout")
                    group.start_soon(collect, "stderr")
                    if stdin:
                        await process.stdin.send(stdin)
                    await process.stdin.aclose()
                status = await process.wait()
        finally:
            await process.aclose()
        return Ended(chunks["stdout"].decode(), chunks["stderr"].decode(), status)


@pytest.fixture(scope="session")
def runner(engine: CliEngine | OciEngine, image: str) -> Runner:
    return Runner(engine, image)
