"""Runs a command's work with a bridge, or with the ledger alone, and turns every outcome into an exit status."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from mcp_bridge import escaping
from mcp_bridge.cli import argument_decoding, configuration_loading, exit_statuses, terminal_output
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    import anyio

    from mcp_bridge.host.bridge import Bridge
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.execution_store import StoredExecution
    from mcp_bridge.settings import Settings

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Terminated(Exception):  # noqa: N818  (an event, not an error)
    """SIGTERM was received, and the work was ended in an orderly way."""


def finish(work: Callable[[], int], *, as_json: bool = False) -> NoReturn:
    """Run a command's work and exit with its status; errors are printed on standard error.

    Args:
        work: Returns the exit status.
        as_json: Whether to print errors as JSON on standard output, too, as `exit_statuses.error_record`.
    """
    try:
        status = work()
    except BridgeError as exc:
        if as_json:
            status = exit_statuses.exit_code(exc, exit_statuses.FAILED)
            print_json(exit_statuses.error_record(exc, status))
        else:
            status = exit_statuses.print_error(exc, exit_statuses.FAILED)
    except KeyboardInterrupt:
        status = exit_statuses.INTERRUPTED
    except Terminated:
        status = 128 + signal.SIGTERM
    raise typer.Exit(status)


def run_with_bridge(configuration: configuration_loading.Configuration, work: Callable[[Bridge], Awaitable[T]]) -> T:
    """Run work with an open bridge; return its result. Containers are started only by the work itself.

    Raises:
        BridgeError: As `open_bridge` and the work; `nested_bridge`.
        Terminated: SIGTERM was received.
    """
    import anyio

    configuration_loading.refuse_nesting(configuration)
    outcome = anyio.run(with_bridge, configuration, work)
    if outcome is None:
        raise Terminated
    return outcome


async def with_bridge(
    configuration: configuration_loading.Configuration, work: Callable[[Bridge], Awaitable[T]]
) -> T | None:
    """As `run_with_bridge`, inside an event loop; None if SIGTERM was received."""
    import anyio

    from mcp_bridge.host.bridge import open_bridge

    specs = list(configuration.discovery.servers.values())
    error: BridgeError | None = None
    outcome: T | None = None
    missing = configuration.discovery.missing
    opened = open_bridge(configuration.settings, specs, configuration.governance, missing=missing)
    async with opened as bridge, anyio.create_task_group() as tasks:
        tasks.start_soon(_end_on_termination, tasks.cancel_scope)
        try:
            outcome = await work(bridge)
        except BridgeError as exc:
            # A task group would wrap it in an exception group.
            error = exc
        tasks.cancel_scope.cancel()
    if error is not None:
        raise error
    return outcome


def run_with_database(
    settings: Settings, work: Callable[[Database], Awaitable[T]], *, allow_read_only: bool = False
) -> T:
    """Run work with the database of executions: without servers, operator's tools and engine.

    Args:
        settings: The settings, which locate the database.
        work: Called with the database.
        allow_read_only: Whether the work only reads by default: the database may then be on read-only media or on a
            full disk, or end before its recorded position.

    Raises:
        BridgeError: `database_unusable` (there is none, too), `database_busy`, `database_newer`, `ledger_damaged`,
            `key_missing`, `key_unusable`, `keyring_missing`, `state_unusable`; as the work.
    """
    import anyio

    from mcp_bridge.executions.artifacts import Files
    from mcp_bridge.executions.erasure_with_files import tidy
    from mcp_bridge.ledger.admin.recorded_losses import is_behind
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.schema import FILE_NAME
    from mcp_bridge.private_files import state_directory
    from mcp_bridge.sandbox.ownership import owner_label

    require_ledger(settings)

    async def opened() -> T:
        state_directory(settings.state_dir, durable=True)
        path, config = settings.state_dir / FILE_NAME, settings.ledger
        if allow_read_only and path.exists() and (not _is_writable(path) or (path.stat().st_size and is_behind(path))):
            async with Database(path, config.master_key, quota=config.quota, reading=True) as database:
                return await work(database)
        async with Database(path, config.master_key, owner_label(), config.quota) as database:
            if database.is_new:
                # Whoever made the file was ended before it could begin the log.
                logger.warning("a ledger begins in %s. %s", settings.state_dir, config.retention())
            await tidy(database, Files(settings.state_dir, config.max_files_size), config)
            return await work(database)

    return anyio.run(opened)


def read_database(settings: Settings, work: Callable[[Database], Awaitable[T]]) -> T:
    """As `run_with_database`, for work that only reads. Where no ledger has begun, none begins: it reads an empty one.

    Raises:
        BridgeError: As `run_with_database`.
    """
    import tempfile
    from pathlib import Path

    import anyio

    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.schema import FILE_NAME

    if has_begun(settings.state_dir):
        return run_with_database(settings, work, allow_read_only=True)

    async def opened(folder: str) -> T:
        async with Database(Path(folder) / FILE_NAME) as database:
            return await work(database)

    # A ledger of its own, and not None for the work: then each would have to say by itself what there isn't.
    try:
        made = tempfile.TemporaryDirectory()
    except OSError as exc:
        raise BridgeError(
            "database_unusable",
            f"No ledger has begun in {settings.state_dir}, and an empty one can't be made to read: {exc.strerror}.",
            hint="TMPDIR names a directory that can be written.",
        ) from None
    with made as folder:
        return anyio.run(opened, folder)


def refuse_without_ledger(settings: Settings, look: Callable[[Database], Awaitable[object]]) -> None:
    """Where no ledger has begun, say that there isn't what a command changes. None begins: a backup may be for there.

    Args:
        settings: The settings, which locate the ledger.
        look: Looks for it, here in an empty ledger, and raises what says that it isn't there.

    Raises:
        BridgeError: As `look`, and as `read_database`.
    """
    if not has_begun(settings.state_dir):
        read_database(settings, look)


async def find_execution(database: Database, ident: str) -> StoredExecution:
    """As `argument_decoding.execution`, of a database."""
    from mcp_bridge.ledger.storage.execution_store import ProgramStore

    return await argument_decoding.execution(ProgramStore(database), ident)


def require_ledger(settings: Settings) -> None:
    """Refuse to go on where no ledger has begun.

    Raises:
        BridgeError: `database_unusable`.
    """
    from mcp_bridge.ledger.log import reading
    from mcp_bridge.ledger.storage.schema import FILE_NAME

    if not has_begun(settings.state_dir):
        reading.require(settings.state_dir / FILE_NAME)


def has_begun(directory: Path) -> bool:
    """Whether a ledger has begun in a state directory, or that can't be seen, of which opening it says more."""
    from mcp_bridge.ledger.keys.signing_key_files import KEY_FILE
    from mcp_bridge.ledger.storage.position_file import PositionFile
    from mcp_bridge.ledger.storage.restore_staging import RESTORING
    from mcp_bridge.ledger.storage.schema import FILE_NAME

    try:
        names = {path.name for path in directory.iterdir()}
    except FileNotFoundError:
        return False
    except OSError:
        return True
    # Of one that is lost, the key, the position or what a restore has left may be there.
    return not names.isdisjoint({FILE_NAME, KEY_FILE, PositionFile(directory / FILE_NAME).path.name, RESTORING})


def _is_writable(path: Path) -> bool:
    from mcp_bridge.ledger.storage.storage_errors import is_full

    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK) and not is_full(path)


async def _end_on_termination(scope: anyio.CancelScope) -> None:
    import anyio

    from mcp_bridge.server.ending_signals import terminations

    with anyio.open_signal_receiver(*terminations()) as signals:
        async for _ in signals:
            scope.cancel()


def print_json(value: Any, *, indent: bool = False) -> None:
    """Print complete and harmless JSON: characters that a terminal would interpret are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=2 if indent or sys.stdout.isatty() else None)
    sys.stdout.flush()
    sys.stdout.buffer.write(escaping.escape_controls_in_json(text).encode() + b"\n")
    sys.stdout.buffer.flush()


def drive(
    configuration: configuration_loading.Configuration,
    work: Callable[[Bridge], Awaitable[dict[str, Any]]],
    named: Path | None,
    *,
    as_json: bool,
    settled: bool = False,
) -> dict[str, Any]:
    """Run work on an execution with an open bridge; print and return the execution's record.

    Args:
        configuration: The configuration.
        work: Returns the execution's record.
        named: The file given by `--config`, or None.
        as_json: Whether to print the record as JSON.
        settled: Whether the work has only settled a call, so that an interrupted execution has to be resumed.

    Raises:
        BridgeError: As `run_with_bridge` and the work.
    """

    async def driven(bridge: Bridge) -> tuple[dict[str, Any], str]:
        record = await work(bridge)
        return record, await argument_decoding.short_id(bridge.programs.store, record["trace_id"])

    record, ident = run_with_bridge(configuration, driven)
    if as_json:
        print_json(record)
    elif settled and record["status"] == "interrupted":
        terminal_output.echo(f"settled; resume it with: {terminal_output.command(f'execution resume {ident}', named)}")
    else:
        terminal_output.outcome(record, ident, named)
    return record
