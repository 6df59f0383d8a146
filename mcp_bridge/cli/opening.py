"""How a command works: with a bridge or with the record of executions alone, to an exit status, whatever happens."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from mcp_bridge.cli import common
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    import anyio

    from mcp_bridge.host.service import Bridge
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.settings import Settings

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Terminated(Exception):  # noqa: N818  (it is what happened, and no fault)
    """SIGTERM came, and what was under way was ended in order."""


def finish(work: Callable[[], int], *, as_json: bool = False) -> NoReturn:
    """Do a command's work and leave with its exit status; what goes wrong is said on standard error.

    Args:
        work: Gives the exit status.
        as_json: Errors are for programs too: as `{"status": "refused", "exit_code", "error"}` on standard output.
    """
    try:
        status = work()
    except BridgeError as exc:
        if as_json:
            status = common.exit_code(exc, common.FAILED)
            print_json({"status": "refused", "exit_code": status, "error": exc.record()})
        else:
            status = common.complain(exc, common.FAILED)
    except KeyboardInterrupt:
        status = common.INTERRUPTED
    except Terminated:
        status = 128 + signal.SIGTERM
    raise typer.Exit(status)


def in_bridge(configuration: common.Configuration, work: Callable[[Bridge], Awaitable[T]]) -> T:
    """What some work with a bridge gives. No container is started unless the work does.

    Raises:
        BridgeError: As `open_bridge` and the work; `nested_bridge`.
        Terminated: SIGTERM came.
    """
    import anyio  # noqa: PLC0415

    common.refuse_nesting(configuration)
    found = anyio.run(with_bridge, configuration, work)
    if found is None:
        raise Terminated
    return found


async def with_bridge(configuration: common.Configuration, work: Callable[[Bridge], Awaitable[T]]) -> T | None:
    """As `in_bridge`, inside a loop; None when SIGTERM came."""
    import anyio  # noqa: PLC0415

    from mcp_bridge.host.service import open_bridge  # noqa: PLC0415  (imports most of the project)

    specs = list(configuration.discovery.servers.values())
    error: BridgeError | None = None
    found: T | None = None
    missing = configuration.discovery.missing
    opened = open_bridge(configuration.settings, specs, configuration.governance, missing=missing)
    async with opened as bridge, anyio.create_task_group() as tasks:
        tasks.start_soon(_end_on_sigterm, tasks.cancel_scope)
        try:
            found = await work(bridge)
        except BridgeError as exc:
            # Out of a task group it would come as one of a group.
            error = exc
        tasks.cancel_scope.cancel()
    if error is not None:
        raise error
    return found


def in_record(settings: Settings, work: Callable[[Database], Awaitable[T]], *, looks: bool = False) -> T:
    """What some work with the record of executions gives: no servers, no tools of the operator's, no engine.

    Args:
        settings: They say where it is.
        work: Is given it.
        looks: Whether it writes nothing unless somebody asks for that: it may look at a record that is on read-only
            media, or that ends before what it had come to.

    Raises:
        BridgeError: `database_unusable`, `database_busy`, `database_newer`, `ledger_damaged`, `key_missing`,
            `key_unusable`, `keyring_missing`, `state_unusable`; as the work.
    """
    import anyio  # noqa: PLC0415

    from mcp_bridge.executions.artifacts import Files  # noqa: PLC0415
    from mcp_bridge.executions.retention import tidy  # noqa: PLC0415
    from mcp_bridge.ledger.log.rotation import is_behind  # noqa: PLC0415
    from mcp_bridge.ledger.storage.database import Database  # noqa: PLC0415
    from mcp_bridge.ledger.storage.schema import FILE_NAME  # noqa: PLC0415
    from mcp_bridge.private_files import state_directory  # noqa: PLC0415
    from mcp_bridge.sandbox.owner import owner_label  # noqa: PLC0415

    async def opened() -> T:
        state_directory(settings.state_dir, durable=True)
        path, config = settings.state_dir / FILE_NAME, settings.ledger
        if looks and path.exists() and (not _is_writable(path) or (path.stat().st_size and is_behind(path))):
            async with Database(path, config.master_key, quota=config.quota, reading=True) as database:
                return await work(database)
        async with Database(path, config.master_key, owner_label(), config.quota) as database:
            if database.is_new:
                logger.warning("a ledger begins in %s. %s", settings.state_dir, config.retention())
            await tidy(database, Files(settings.state_dir, config.max_files_size), config)
            return await work(database)

    return anyio.run(opened)


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


async def _end_on_sigterm(scope: anyio.CancelScope) -> None:
    import anyio  # noqa: PLC0415

    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


def print_json(value: Any, *, indent: bool = False) -> None:
    """Print JSON that is both whole and harmless: what a terminal would take for a command is written as its escape."""
    text = json.dumps(value, ensure_ascii=False, indent=2 if indent or sys.stdout.isatty() else None)
    sys.stdout.flush()
    sys.stdout.buffer.write(common.escaped_json(text).encode() + b"\n")
    sys.stdout.buffer.flush()
