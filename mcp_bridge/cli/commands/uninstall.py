"""`mcp-bridge image prune` and `mcp-bridge uninstall`: removal of what the bridge has created on this machine.

Neither probes an engine, because a probe may build an image first.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge import escaping
from mcp_bridge.cli import asking, configuring, exit_statuses, showing
from mcp_bridge.cli.opening import print_json
from mcp_bridge.errors import BridgeError
from mcp_bridge.settings import user_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_bridge.sandbox.flags import EngineName, RuntimeChoice
    from mcp_bridge.sandbox.image.store import ImageInfo
    from mcp_bridge.settings import Loaded, Settings

CACHES = ("catalog", "probe-*", "image-build*", "run", "oci", "ui-*.html", "owners", "files.total")
"""Patterns (`fnmatch`) of files in the state directory that are recreated when missing."""


class Engine(NamedTuple):
    """An engine that answers, and its images of ours."""

    choice: RuntimeChoice
    images: tuple[ImageInfo, ...]


async def engines(settings: Settings) -> tuple[list[Engine], list[EngineName]]:
    """The engines that the settings allow and that answer, and the names of installed ones that don't."""
    from mcp_bridge.sandbox.engine_info import EngineInfo, engine_info
    from mcp_bridge.sandbox.flags import RuntimeChoice
    from mcp_bridge.sandbox.open_driver import open_images

    everything: tuple[EngineName, ...] = ("oci", "podman", "docker")
    names = everything if settings.runtime == "auto" else (settings.runtime,)
    found: list[Engine] = []
    silent: list[EngineName] = []
    for name in names:
        if name == "oci":
            # What it has made is in the state directory, whether or not a runtime is still installed.
            choice = RuntimeChoice("oci", "", "", rootless=os.geteuid() != 0)
            if (settings.state_dir / "oci").is_dir():
                images = await open_images(choice, settings.state_dir).images()
                found.append(Engine(choice, tuple(images)))
            continue
        path = shutil.which(name)
        if path is None:
            continue
        info = await engine_info(name, path)
        if isinstance(info, EngineInfo):
            images = await open_images(info.choice, settings.state_dir).images()
            found.append(Engine(info.choice, tuple(images)))
        elif info.code != "engine_alias":
            silent.append(name)
    return found, silent


# --- image prune ---


def prune(loaded: Loaded, *, everything: bool, as_json: bool) -> int:
    """Remove the built images that this configuration doesn't use; return the exit status.

    Args:
        loaded: The configuration.
        everything: Whether to remove the image in use, too: the next run builds it again.
        as_json: Whether to print the removed images as JSON.

    Raises:
        BridgeError: `engine_failed`; as `image.image_reference`.
    """
    import anyio

    from mcp_bridge.sandbox.image import image

    settings = loaded.settings
    wanted = image.image_reference(image.ImageRequest(settings.profile, tuple(settings.packages)))
    kept = set() if everything else {wanted, settings.image}

    async def work() -> tuple[list[ImageInfo], list[tuple[str, str]]]:
        gone, left = [], []
        for engine in (await engines(settings))[0]:
            chosen = [one for one in engine.images if one.reference not in kept]
            done, failed = await _remove_images(engine.choice, settings.state_dir, chosen)
            gone += done
            left += failed
        return gone, left

    gone, left = anyio.run(work)
    if as_json:
        print_json({"removed": [one.reference for one in gone], "left": [reference for reference, _ in left]})
    else:
        for one in gone:
            showing.echo(f"removed {one.reference}, {one.size / 1e6:.0f} MB")
        if not gone and not left:
            showing.echo("No image to remove.")
        _print_left(left)
    return exit_statuses.FAILED if left else exit_statuses.OK


def _print_left(left: Sequence[tuple[str, str]]) -> None:
    for reference, why in left:
        showing.echo_err(
            f"mcp-bridge: image_left: {reference} could not be removed: {why} End what uses it, and try again."
        )


async def _remove_images(
    choice: RuntimeChoice, state_dir: Path, images: Sequence[ImageInfo]
) -> tuple[list[ImageInfo], list[tuple[str, str]]]:
    """Remove images; return the removed ones, and the others' names with the engine's errors."""
    from mcp_bridge.sandbox.open_driver import open_images

    store = open_images(choice, state_dir)
    removed, left = [], []
    for one in images:
        try:
            await store.remove(one.reference)
        except BridgeError as exc:
            left.append((one.reference, exc.message))
        else:
            removed.append(one)
    return removed, left


# --- uninstall ---


class _Found(NamedTuple):
    """What can be removed."""

    engines: list[Engine]
    silent: list[EngineName]
    containers: list[tuple[Engine, str]]
    caches: list[Path]
    state: list[Path]
    strange: list[Path]


def uninstall(loaded: Loaded, *, state: bool, yes: bool) -> int:
    """Show what the bridge has created on this machine, ask, and remove it; return the exit status.

    Args:
        loaded: The configuration.
        state: Whether to remove the ledger, its keys, secrets, artifacts and memories, too.
        yes: Whether to skip the question.

    Raises:
        BridgeError: `bridge_at_work`, `not_asked`, `uninstall_failed`.
    """
    import anyio

    directory = loaded.settings.state_dir
    found = anyio.run(_look, loaded.settings)
    _refuse_at_work(directory)
    told = list(_described(found, directory, state=state))
    for line in told:
        showing.echo(escaping.escape_line(line))
    if told and not yes and not _confirm(state=state):
        showing.echo_err("mcp-bridge: nothing was removed.")
        return exit_statuses.REFUSED
    left = anyio.run(_remove, found, directory, state)
    _print_left(left)
    with suppress(OSError):
        directory.rmdir()
    for line in _remaining(found, loaded, state=state):
        showing.echo(escaping.escape_line(line))
    return exit_statuses.FAILED if left else exit_statuses.OK


async def _look(settings: Settings) -> _Found:
    from mcp_bridge.sandbox.engine import OWNER_LABEL
    from mcp_bridge.sandbox.open_driver import open_engine
    from mcp_bridge.sandbox.ownership import Owner

    found, silent = await engines(settings)
    orphans = []
    with tempfile.TemporaryDirectory(prefix="mcp-bridge-uninstall-") as scratch:
        for engine in found:
            running = open_engine(engine.choice, _driver_state(engine, settings.state_dir, Path(scratch)))
            for container in await running.list(OWNER_LABEL):
                owner = Owner.parse(container.labels.get(OWNER_LABEL, ""))
                if owner is not None and owner.is_orphaned():
                    orphans.append((engine, container.id))
    directory = settings.state_dir
    entries = sorted(directory.iterdir()) if directory.is_dir() else []
    caches = [path for path in entries if _is_one_of(path.name, CACHES)]
    state = [path for path in entries if path not in caches and _is_one_of(path.name, _state_names())]
    strange = [path for path in entries if path not in caches and path not in state]
    return _Found(found, silent, orphans, caches, state, strange)


def _driver_state(engine: Engine, directory: Path, scratch: Path) -> Path:
    """A state directory for a driver. An engine's containers are found from anywhere, and nothing is to be made."""
    return directory if engine.choice.engine == "oci" else scratch


def _state_names() -> tuple[str, ...]:
    """Patterns of the files in a state directory: nothing else in the directory is ever removed."""
    from mcp_bridge.backup import create
    from mcp_bridge.executions import artifacts

    return (*create.KEYS, *create.CREDENTIALS, *create.DATABASES, *artifacts.FOLDERS, *create.LEFT_OUT)


def _is_one_of(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _refuse_at_work(directory: Path) -> None:
    """Refuse while a bridge is running: it would recreate removed files, or write to deleted ones.

    Raises:
        BridgeError: `bridge_at_work`.
    """
    from mcp_bridge.ledger.storage.live_bridges import others
    from mcp_bridge.sandbox.ownership import owner_label

    if others(directory, owner_label()):
        raise BridgeError(
            "bridge_at_work",
            f"Nothing was removed: a bridge is at work in {directory}.",
            hint="End the clients and the commands that use it (`pgrep -af mcp-bridge` lists them), and try again.",
        )


def _described(found: _Found, directory: Path, *, state: bool) -> Iterator[str]:
    for engine, container in found.containers:
        yield f"container {container[:12]} of {engine.choice.engine}, left by a bridge that was killed"
    for engine in found.engines:
        for one in engine.images:
            yield f"image {one.reference} of {engine.choice.engine}, {one.size / 1e6:.0f} MB"
    for path in found.caches:
        yield f"cache {path}"
    for path in found.state if state else ():
        yield f"state {path}"
    if state and found.state and any(path.name == "master.key" for path in found.state):
        yield f"With the keys in {directory} goes all that is recorded: what isn't in a backup is lost for good."


async def _remove(found: _Found, directory: Path, state: bool) -> list[tuple[str, str]]:
    """Remove everything; return the names of images that can't be removed, with the reasons.

    Raises:
        BridgeError: `uninstall_failed`: a file can't be removed; as the engine.
    """
    from mcp_bridge.sandbox.open_driver import open_engine

    with tempfile.TemporaryDirectory(prefix="mcp-bridge-uninstall-") as scratch:
        for engine, container in found.containers:
            await open_engine(engine.choice, _driver_state(engine, directory, Path(scratch))).remove(container)
    left = []
    for engine in found.engines:
        left += (await _remove_images(engine.choice, directory, engine.images))[1]
    for path in [*found.caches, *(found.state if state else ())]:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as exc:
            raise BridgeError(
                "uninstall_failed",
                f"{exc.filename or path} can't be removed: {exc.strerror}.",
                hint="See to its owner and mode, and run `mcp-bridge uninstall` again.",
            ) from None
    return left


def _remaining(found: _Found, loaded: Loaded, *, state: bool) -> Iterator[str]:
    """What remains, and the commands that remove it."""
    directory = loaded.settings.state_dir
    for name in found.silent:
        yield f"left: the images of {name}, if it has any: it doesn't answer. `mcp-bridge doctor` says why."
    if found.state and not state:
        yield f"left: {directory}, the record with its keys. `mcp-bridge uninstall --state` removes it, too."
    for path in found.strange:
        yield f"left: {path}, which no bridge has made."
    for file in dict.fromkeys((user_file(), *(layer.file for layer in loaded.layers if layer.file))):
        if file.is_file():
            yield f"left: {file}, your configuration. Remove it by hand."
    log = loaded.settings.log_file
    for file in (log, log.with_name(f"{log.name}.1")) if log else ():
        if file.is_file():
            yield f"left: {file}, the log. Remove it by hand."
    for row in configuring.discover_servers(loaded, quiet=True).skipped:
        if row.is_self:
            yield (
                f"left: the entry {row.name!r} in {row.file}. `claude mcp remove {row.name}` removes Claude Code's."
                " `mcp-bridge install CLIENT --uninstall` removes that of any client."
            )
    yield "left: the program itself. `uv tool uninstall mcp-code-bridge`, or as you have installed it."


def _confirm(*, state: bool) -> bool:
    """Ask for confirmation.

    Raises:
        BridgeError: `not_asked`: there is nobody to ask.
    """
    refusal = BridgeError(
        "not_asked",
        "Nothing was removed: there is no terminal to ask in.",
        hint=f"Write `mcp-bridge uninstall{' --state' if state else ''} --yes`.",
    )
    return asking.confirm("Remove all of this?", refusal)
