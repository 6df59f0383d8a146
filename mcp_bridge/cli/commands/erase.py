"""`mcp-bridge erase`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.cli import argument_decoding, configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import print_json, refuse_without_ledger, run_with_database
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_bridge.executions.erasure_with_files import What
    from mcp_bridge.ledger.erasure.execution_erasure import Erased
    from mcp_bridge.ledger.storage.database import Database

MAX_REASON_CHARS = 2000

_REFERENCE = "vault://ref/"


def erase(
    config: Path | None,
    *,
    execution: str | None,
    subject: str | None,
    ref: str | None,
    reason: str | None,
    as_json: bool,
) -> int:
    """Erase what is stored of an execution, a subject, or a reference; return the exit status.

    Raises:
        BridgeError: `bad_argument`; as `erasure_with_files.erase`.
    """
    from mcp_bridge.cli.terminal_prompts import login_name
    from mcp_bridge.executions.artifacts import Files
    from mcp_bridge.executions.erasure_with_files import erase as work
    from mcp_bridge.ledger.storage.execution_store import ProgramStore

    targets: list[tuple[What, str]] = []
    if execution is not None:
        targets.append(("execution", execution))
    if subject is not None:
        targets.append(("subject", subject))
    if ref is not None:
        targets.append(("reference", ref.removeprefix(_REFERENCE)))
    if len(targets) != 1:
        raise BridgeError(
            "bad_argument", "Name what to erase: one of --execution, --subject and --ref.", hint="It can't be undone."
        )
    if reason is not None and len(reason) > MAX_REASON_CHARS:
        raise BridgeError("bad_argument", f"--reason: it is text of at most {MAX_REASON_CHARS} characters.")
    loaded = configuration_loading.load(config)
    configuration_loading.refuse_nesting(loaded)
    ((what, name),) = targets

    async def erased(database: Database) -> Erased:
        wanted = (await argument_decoding.execution(ProgramStore(database), name)).id if what == "execution" else name
        files = Files(loaded.settings.state_dir, loaded.settings.ledger.max_files_size)
        return await work(database, files, what, wanted, by=login_name(), reason=reason)

    refuse_without_ledger(loaded.settings, erased)
    result = run_with_database(loaded.settings, erased)
    if as_json:
        print_json({"erased": {"executions": list(result.executions), "references": result.references}})
    elif result.references:
        terminal_output.echo(f"erased: the value behind {_REFERENCE}{name}, in {result.references} executions")
    else:
        terminal_output.echo(f"erased: {len(result.executions)} executions")
        for one in result.executions:
            terminal_output.echo(f"  {one}")
    return exit_statuses.OK
