"""`mcp-bridge doctor`: what works on this host, what doesn't, and how to fix it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from rich.console import Console

from mcp_bridge.cli import configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import has_begun
from mcp_bridge.cli.doctor_checks import input_and_package_checks, network_variables
from mcp_bridge.configured_values import shown_size
from mcp_bridge.downstream.configuration.discovery import user_servers
from mcp_bridge.downstream.configuration.known_clients import CLIENTS
from mcp_bridge.downstream.configuration.remote_entries import is_in_the_clear, shown_url
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.erasure_for_room import FULL
from mcp_bridge.file_locks import locked_directory
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.host.engine_setup import Prepared, not_enforced, prepare
from mcp_bridge.host.pool_report import pool_reports
from mcp_bridge.private_files import require_writable, state_directory

if TYPE_CHECKING:
    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.error_codes import Code
    from mcp_bridge.ledger.config import LedgerConfig
    from mcp_bridge.ledger.log.quota import Measured
    from mcp_bridge.settings import Settings


class Find(Protocol):
    """Notes a finding: `level` is one of `MARKS`."""

    def __call__(self, level: str, code: Code, message: str, hint: str | None = None) -> None: ...  # noqa: D102


class Fail(Protocol):
    """Notes an error, which makes the exit status; `also` is added to its hint."""

    def __call__(self, error: BridgeError, also: str = "") -> None: ...  # noqa: D102


MARKS = {"ok": ("ok  ", "green"), "warning": ("warn", "yellow"), "error": ("fail", "red")}

_OWN_LEDGER = "doctor-"
"""What the name of the folder begins with, in the state directory, that has a doctor's own ledger."""

_UNLOCKED_SECONDS = 10.0
"""How long after it was made or written to such a folder may be without its doctor's lock."""


def doctor(config: Path | None, *, as_json: bool) -> int:
    """Repeat the probe, run a script, and print the findings; return the exit status."""
    console = Console(stderr=as_json)
    findings: list[dict[str, Any]] = []
    status = exit_statuses.OK

    def find(level: str, code: Code, message: str, hint: str | None = None) -> None:
        findings.append({"level": level, "code": code, "message": message} | ({"hint": hint} if hint else {}))

    def fail(error: BridgeError, also: str = "") -> None:
        nonlocal status
        for found in error.details.get("findings", []):
            findings.append(found)
        find("error", error.code, error.message, " ".join(filter(None, (error.hint, also))))
        status = status or exit_statuses.exit_code(error)

    prepared: Prepared | None = None
    find_room: Find = find
    with ExitStack() as stack:
        try:
            configuration = configuration_loading.configure(config, quiet=True)
            configuration_loading.keep_information_off_terminal()
            _configured(configuration, findings, find)
            settings = configuration.settings
            try:
                require_writable(state_directory(settings.state_dir, durable=True))
            except BridgeError as exc:
                try:
                    directory = stack.enter_context(TemporaryDirectory(prefix="mcp-bridge-"))
                except OSError:
                    raise exc from None
                fail(exc, "The rest is tried in a temporary directory.")
                # There would be another disk's room.
                settings, find_room = _elsewhere(settings, Path(directory)), _ignore
            with console.status("Probing the container engine…"):
                prepared = anyio.run(_prepare, settings)
            findings += [finding.record() for finding in prepared.report.findings]
            image = prepared.image
            find(
                "ok",
                "image",
                f"Image {image.reference}: Python {image.python or 'unknown'}, {image.size / 1e6:.0f} MB.",
            )
            with console.status("Running a script…"):
                milliseconds = anyio.run(_try, settings, find_room, fail)
            find("ok", "script", f"A script ran in a fresh container in {milliseconds:.0f} ms.")
            for report in pool_reports(settings.state_dir):
                find("ok", "pool", str(report))
        except BridgeError as exc:
            fail(exc)
    if as_json:
        sys.stdout.write(
            json.dumps({"ok": status == exit_statuses.OK, "findings": findings, **_facts(prepared)}) + "\n"
        )
    else:
        _print(findings)
    return status


def _configured(configuration: configuration_loading.Configuration, findings: list[dict[str, Any]], find: Find) -> None:
    """What there is to say of the configuration, and of what it names."""
    over = f", over your own, {configuration.floor}" if configuration.floor else ""
    find("ok", "configuration", f"Configuration: {configuration.file or 'no file, defaults'}{over}.")
    for file in configuration.ignored_files:
        names = f" Left out: {', '.join(file.servers)}." if file.servers else ""
        find("warning", file.code, f"{file.message}{names}", file.hint)
    findings += [finding.record() for finding in network_variables.findings(os.environ)]
    _servers(configuration, find)
    inputs = configuration.governance.inputs if configuration.governance else {}
    findings += [finding.record() for finding in input_and_package_checks.files(inputs)]
    if (packages := anyio.run(input_and_package_checks.packages, configuration.settings)) is not None:
        findings.append(packages.record())


def _ignore(level: str, code: Code, message: str, hint: str | None = None) -> None:
    """Say nothing of a finding."""
    del level, code, message, hint


def _elsewhere(settings: Settings, directory: Path) -> Settings:
    """The settings with another state directory, on whatever disk, for a ledger of the moment."""
    ledger = settings.ledger.model_copy(update={"master_key": "file", "publish": (), "min_free": 0})
    return settings.model_copy(update={"state_dir": directory, "ledger": ledger})


async def _prepare(settings: Settings) -> Prepared:
    return await prepare(settings, refresh=True)


async def _try(settings: Settings, find_room: Find, fail: Fail) -> float:
    """Run a script, and record it; the milliseconds that it took.

    It is recorded in a ledger of its own where none has begun, since a backup may be to be restored there, and where
    that one can't be opened, which says nothing of the sandbox.

    Raises:
        BridgeError: As `open_bridge`; `sandbox_broken`; why it can't be run.
    """
    if has_begun(settings.state_dir):
        try:
            return await _tried(settings, find_room)
        except _UnopenedError as exc:
            fail(exc.error, "The rest is tried with a ledger of its own.")
    own = settings.ledger.model_copy(update={"master_key": "file", "publish": ()})
    _remove_abandoned(settings.state_dir)
    try:
        made = TemporaryDirectory(prefix=_OWN_LEDGER, dir=settings.state_dir)
    except OSError as exc:
        raise BridgeError("state_unusable", f"{settings.state_dir} can't be written: {exc.strerror}.") from None
    with made as directory, locked_directory(Path(directory)):
        try:
            return await _tried(settings.model_copy(update={"ledger": own}), find_room, Path(directory))
        except _UnopenedError as exc:
            raise exc.error from None


def _remove_abandoned(state_dir: Path) -> None:
    """Remove the ledgers of doctors that were killed. One that is at work has its own locked."""
    for directory in state_dir.glob(f"{_OWN_LEDGER}*"):
        with suppress(OSError), locked_directory(directory) as is_abandoned:
            # One that was made just now may not have its lock yet.
            if is_abandoned and time.time() - directory.stat().st_mtime > _UNLOCKED_SECONDS:
                shutil.rmtree(directory, ignore_errors=True)


class _UnopenedError(Exception):
    """The bridge can't be opened: `error`."""

    def __init__(self, error: BridgeError) -> None:
        super().__init__(error.message)
        self.error = error


async def _tried(settings: Settings, find_room: Find, ledger: Path | None = None) -> float:
    took = 0.0
    failure: BridgeError | None = None
    async with AsyncExitStack() as stack:
        try:
            bridge = await stack.enter_async_context(open_bridge(settings, [], ledger=ledger))
        except BridgeError as exc:
            raise _UnopenedError(exc) from None
        try:
            measured = bridge.measured()
            find_room(*_room(settings.ledger, replace(measured, used=0) if ledger else measured, bridge.files.used()))
            await bridge.sandboxes.prepare()
            began = time.monotonic()
            record = await bridge.run("print('ok')")
            took = (time.monotonic() - began) * 1000
            if record.stdout != b"ok\n":
                wrong = record.error
                message = "it printed something else." if wrong is None else wrong["message"]
                hint = wrong.get("hint") if wrong else None
                failure = BridgeError("sandbox_broken", f"A script in the sandbox failed: {message}", hint=hint)
        except BridgeError as exc:
            # The bridge's task group would wrap it in an exception group.
            failure = exc
    if failure:
        raise failure
    return took


def _room(config: LedgerConfig, ledger: Measured, files: int) -> tuple[str, Code, str, str | None]:
    """The finding about retention, and the space used and available."""
    message = (
        f"Kept: the ledger has {shown_size(ledger.used)}, artifacts and outputs {shown_size(files)}; "
        f"{shown_size(ledger.free)} are free on the disk. {config.retention()}"
    )
    if config.max_size != "unlimited" and ledger.used > FULL * config.max_size:
        return "warning", "ledger_room", message, "Erase executions (mcp-bridge erase), or raise max_size in [ledger]."
    if ledger.free < 2 * config.min_free:
        return "warning", "ledger_room", message, "Make room on the disk: below min_free nothing new begins."
    if not ledger.gives_back:
        hint = "It is of version 0.1.0: mcp-bridge audit compact makes it give back the space of what is erased."
        return "warning", "ledger_room", message, hint
    return "ok", "ledger_room", message, None


def _servers(configuration: configuration_loading.Configuration, find: Find) -> None:
    discovery = configuration.discovery
    for problem in discovery.problems:
        where = f"{problem.file}, line {problem.line}" if problem.line else problem.file
        find("warning", "client_config", f"{where}: {problem.message}")
    if configuration.settings.clients:
        _other_clients(configuration, find)
    for spec in discovery.servers.values():
        if not spec.enabled:
            continue
        if spec.problem:
            find("warning", "server", f"Server {spec.name} ({spec.source}): {spec.problem}")
        elif spec.url is not None and _has_credentials(spec) and is_in_the_clear(spec.url):
            what = "headers" if spec.headers else "credentials"
            message = f"Server {spec.name} ({spec.source}): its {what} are sent in the clear to {shown_url(spec.url)}."
            find("warning", "server", message, "Use https:// beyond this machine.")
        if spec.unused and not spec.problem:
            message = f"Server {spec.name} ({spec.source}): not everything of its entry is used: {spec.unused}"
            find("warning", "server", message)
    find("ok", "servers", f"{len(discovery.servers)} servers configured; `mcp-bridge servers list` shows them.")


def _has_credentials(spec: ServerSpec) -> bool:
    return bool(spec.headers or (spec.openapi is not None and spec.openapi.credentials))


def _other_clients(configuration: configuration_loading.Configuration, find: Find) -> None:
    """Servers in the files of clients that aren't read: a user may look for them here."""
    for name, client in CLIENTS.items():
        if name in configuration.settings.clients:
            continue
        specs, problems = user_servers(
            client.name,
            environ=os.environ,
            cwd=Path.cwd(),
            home=Path.home(),
            own_address=configuration_loading.own_address(configuration.settings),
        )
        for problem in problems:
            where = f"{problem.file}, line {problem.line}" if problem.line else problem.file
            message = f"{where} ({client.title}): {problem.message}"
            find("warning", "client_config", message, "Mend it, for its client.")
        names = [spec.name for spec in specs]
        if names:
            shown = configuration_loading.listed(names)
            how = f"A client_configs that names {name!r} has them read where they are."
            if client.is_program:
                how = f"`mcp-bridge servers import {name}` copies them into the configuration. {how}"
            find(
                "warning",
                "client_not_read",
                f"{specs[0].source} ({client.title}) lists servers that the bridge doesn't read: {shown}.",
                how,
            )


def _facts(prepared: Prepared | None) -> dict[str, Any]:
    if prepared is None:
        return {}
    choice = prepared.report.choice
    return {
        "engine": choice.engine,
        "engine_version": choice.version,
        "oci_runtime": choice.oci_runtime,
        "rootless": choice.rootless,
        "seccomp": choice.seccomp,
        "limits_not_enforced": not_enforced(prepared.report),
        "image": prepared.image.reference,
    }


def _print(findings: list[dict[str, Any]]) -> None:
    for finding in findings:
        mark, style = MARKS[finding["level"]]
        terminal_output.print_styled(finding["message"], mark=mark, mark_style=style)
        if finding.get("hint"):
            terminal_output.print_styled(finding["hint"], "dim", mark=" " * 5)
