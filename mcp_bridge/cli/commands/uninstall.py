"""`mcp-bridge uninstall`: removal of what the bridge has created on this machine.

No engine is probed: a probe may build an image first.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge import escaping, system_keyring
from mcp_bridge.cli import configuration_loading, exit_statuses, terminal_output, terminal_prompts
from mcp_bridge.cli.commands.image_prune import Engine, engines, print_left, remove_images
from mcp_bridge.cli.configuration_edits.installation_records import Installation, Installations
from mcp_bridge.downstream.configuration.known_clients import CLIENTS
from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.keys.master_key_sources import KEYRING_NAME
from mcp_bridge.settings import user_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_bridge.sandbox.isolation_flags import EngineName
    from mcp_bridge.settings import Loaded, Settings

CACHES = (
    *("catalog", "probe-*", "image-build*", "run", "oci", "ui-*.html", "owners", "files.total", "clock.doubted"),
    "doctor-*",
)
"""Patterns (`fnmatch`) of files in the state directory that are recreated when missing."""


class _Found(NamedTuple):
    """What can be removed."""

    engines: list[Engine]
    silent: list[EngineName]
    containers: list[tuple[Engine, str]]
    caches: list[Path]
    state: list[Path]
    strange: list[Path]
    installations: list[Installation]


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
        terminal_output.echo(escaping.escape_line(line))
    if told and not yes and not _confirm(state=state):
        terminal_output.echo_err("mcp-bridge: nothing was removed.")
        return exit_statuses.REFUSED
    left = anyio.run(_remove, found, directory, state)
    with suppress(OSError):
        directory.rmdir()
    for line in _remaining(found, loaded, state=state):
        terminal_output.echo(escaping.escape_line(line))
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
    return _Found(found, silent, orphans, caches, state, strange, _installations(directory))


def _installations(directory: Path) -> list[Installation]:
    """What `mcp-bridge install` has written, where it still is."""
    try:
        records = Installations(directory).all([])
    except BridgeError:
        # What can't be read stops nobody from removing it.
        return []
    return [record for record in records if Path(record.file).exists()]


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
        yield (
            f"Deleting the keys in {directory} makes the whole record unreadable: what isn't in a backup is lost "
            "for good."
        )
    for record in found.installations if state else ():
        moved = " (with its own servers)" if record.entries or record.local else ""
        yield (
            f"Deleting the state also deletes the backup of {CLIENTS[record.client].title}'s "
            f"{record.file}{moved}. Restore the file first: {_takes_back(record)}."
        )


async def _remove(found: _Found, directory: Path, state: bool) -> list[tuple[str, str]]:
    """Remove everything; name the images that can't be removed, and return their names with the reasons.

    Raises:
        BridgeError: `uninstall_failed`: a file can't be removed; as the engine.
    """
    from mcp_bridge.sandbox.open_driver import open_engine

    with tempfile.TemporaryDirectory(prefix="mcp-bridge-uninstall-") as scratch:
        for engine, container in found.containers:
            await open_engine(engine.choice, _driver_state(engine, directory, Path(scratch))).remove(container)
    left = []
    for engine in found.engines:
        left += (await remove_images(engine.choice, directory, engine.images))[1]
    print_left(left)
    for path in [*found.caches, *(found.state if state else ())]:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as exc:
            mend = "Mount its file system writable" if exc.errno == errno.EROFS else "See to its owner and mode"
            raise BridgeError(
                "uninstall_failed",
                f"{exc.filename or path} can't be removed: {exc.strerror}.",
                hint=f"{mend}, and run `mcp-bridge uninstall` again.",
            ) from None
    return left


def _remaining(found: _Found, loaded: Loaded, *, state: bool) -> Iterator[str]:
    """What remains, and the commands that remove it."""
    directory = loaded.settings.state_dir
    for name in found.silent:
        yield f"left: the images of {name}, if it has any: it doesn't answer. `mcp-bridge doctor` says why."
    if found.state and not state:
        yield f"left: {directory}, the record with its keys. `mcp-bridge uninstall --state` removes it, too."
    yield from _in_keyring(loaded)
    for path in found.strange:
        yield f"left: {path}, which no bridge has made."
    for file in dict.fromkeys((user_file(), *(layer.file for layer in loaded.layers if layer.file))):
        if file.is_file():
            yield f"left: {file}, your configuration. Remove it by hand."
    for record in found.installations:
        was = f", which doesn't return what was moved to {record.config}" if state and record.config else ""
        yield (
            f"left: the bridge's entry in {record.file}, {CLIENTS[record.client].title}'s. {_takes_back(record)} "
            f"removes it{was}."
        )
    log = loaded.settings.log_file
    for file in (log, log.with_name(f"{log.name}.1")) if log else ():
        if file.is_file():
            yield f"left: {file}, the log. Remove it by hand."
    for row in configuration_loading.discover_servers(loaded, quiet=True).skipped:
        if row.is_self and str(Path(row.file).resolve()) not in {record.file for record in found.installations}:
            yield (
                f"left: the entry {row.name!r} in {row.file}. `claude mcp remove {row.name}` removes Claude Code's. "
                "`mcp-bridge install CLIENT --uninstall` removes that of any client."
            )
    yield "left: the program itself. `uv tool uninstall mcp-code-bridge`, or as you have installed it."


def _in_keyring(loaded: Loaded) -> Iterator[str]:
    """What may be in the system's keyring, which can't be asked for all that it has of ours."""
    tables = [table for layer in loaded.layers for table in layer.tables.get("secrets", {}).items()]
    for name in dict.fromkeys(name for name, table in tables if isinstance(table, dict) and table.get("keyring")):
        yield f"left: the secret {name} in the system's keyring, if it is set. `mcp-bridge secret remove {name}`."
    if loaded.settings.logins == "keyring":
        yield "left: logins to servers in the system's keyring, if there are any. `mcp-bridge servers logout NAME`."
    if loaded.settings.ledger.master_key == "keyring":
        yield (
            f"left: {KEYRING_NAME!r} of {system_keyring.SERVICE!r} in the system's keyring, which opens every ledger "
            "of yours that has its key there, and every backup of one. Remove it by hand when there is none."
        )


def _takes_back(record: Installation) -> str:
    client, file = CLIENTS[record.client], Path(record.file)
    if file == client.user_path(Path.home(), os.environ).resolve():
        return f"`mcp-bridge install {client.name} --uninstall`"
    return f"`mcp-bridge install {client.name} --project --uninstall`, in its folder,"


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
    return terminal_prompts.confirm("Remove all of this?", refusal)
