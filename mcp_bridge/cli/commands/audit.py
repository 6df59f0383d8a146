"""`mcp-bridge audit …`: verification and proofs, for the ledger here or from a file alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, TypeAlias

import typer

from mcp_bridge.atomic_files import create_private
from mcp_bridge.cli import audit_verification, configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import finish, print_json, require_ledger, run_with_database
from mcp_bridge.cli.options import Config, Json  # noqa: TC001  (typer reads the annotations)
from mcp_bridge.cli.verdicts import verdict_lines, verdict_status
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp_bridge.ledger.log.quota import Measured
    from mcp_bridge.ledger.proofs.signing import Verifier
    from mcp_bridge.ledger.publish.protocol import TargetState
    from mcp_bridge.ledger.storage.database import Database

audit = typer.Typer(
    help="Verify the record of what happened, and prove it to others.",
    no_args_is_help=True,
    epilog="What a valid signature does and doesn't prove, and against whom, is in SECURITY.md.",
)

Keys: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--key", metavar="VKEY|FILE", help="Trust this key of a log or a witness, or those in a file; repeatable."
    ),
]
Kept: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--checkpoint", metavar="NOTE", help="A checkpoint that was stored elsewhere; repeatable."),
]


Offline: TypeAlias = Annotated[
    bool, typer.Option("--offline", help="Don't query the ledger.publish targets for checkpoints.")
]
Payloads: TypeAlias = Annotated[
    bool, typer.Option("--payloads", help="With arguments, results, code and outputs, in the clear.")
]
Acknowledge: TypeAlias = Annotated[bool, typer.Option("--acknowledge", help="Clear the alarms shown by `audit stats`.")]
Lost: TypeAlias = Annotated[
    bool,
    typer.Option("--lost", help="Replace a lost key. Readers can't verify the change: give them the new key yourself."),
]


@audit.command(
    epilog="Examples:\n\nmcp-bridge audit verify --checkpoint /mnt/usb/checkpoints.txt\n\n"
    "mcp-bridge audit verify ledger.jsonl --key 'mcp-code-bridge/0a1b…+c2d3e4f5+AYr…'"
)
def verify(
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="An export, a .tlog-proof or a copy of the ledger; the ledger itself without.")
    ] = None,
    key: Keys = None,
    checkpoint: Kept = None,
    offline: Offline = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Verify a ledger, an export or a proof: every entry, hash and signature.

    The ledger here is verified by its own key, unless --key names others, and compared with what all `ledger.publish`
    targets have seen; it is not verified while there is an alarm. A file is verified by --key alone; without one,
    only its consistency is checked.
    """

    def work() -> int:
        keys = audit_verification.read_keys(key)
        notes = [note for path in checkpoint or () for note in audit_verification.read_notes(path)]
        if file is None:
            facts = audit_verification.verify_own_ledger(
                configuration_loading.load(config or ctx.obj), keys, notes, offline=offline
            )
        else:
            # The file, and perhaps the folder, is a stranger's: the folder's configuration is ignored.
            facts = audit_verification.verify_given_file(
                file, keys, notes, lambda: configuration_loading.load(config or ctx.obj, folder=False).settings
            )
        if as_json:
            print_json({"status": verdict_status(facts), **facts})
        else:
            for line in verdict_lines(facts):
                terminal_output.echo(line)
        return exit_statuses.OK

    finish(work, as_json=as_json)


@audit.command(
    epilog="Examples:\n\nmcp-bridge audit prove 42 --out 42.tlog-proof\n\n"
    "mcp-bridge audit prove 42 ledger.jsonl --key ledger.pub --out 42.tlog-proof"
)
def prove(
    ctx: typer.Context,
    entry: Annotated[
        int, typer.Argument(metavar="ENTRY", help="Its number, as `execution show` and `export` have it.")
    ],
    file: Annotated[
        Path | None, typer.Argument(help="An export or a copy of the ledger; the ledger itself without.")
    ] = None,
    key: Keys = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Instead of standard output.")] = None,
    payload: Annotated[bool, typer.Option(help="Include the entry's payload, not just its hash.")] = True,
    config: Config = None,
) -> None:
    """Write the proof that an entry is in the log, as a tlog-proof, for anyone with the key and `audit verify`.

    An export is verified by --key first; without one, its proof is good for anyone who has the key.
    """

    def work() -> int:
        from mcp_bridge.ledger.proofs import tlog_proof

        named = audit_verification.read_keys(key)
        keys: Sequence[Verifier] | None = named
        if file is None:
            data = audit_verification.prove_own_entry(
                configuration_loading.load(config or ctx.obj).settings, entry, payload=payload
            )
        else:
            data, keys = audit_verification.prove_by(
                file,
                named,
                entry,
                lambda: configuration_loading.load(config or ctx.obj, folder=False).settings,
                payload=payload,
            )
        # An entry of a damaged ledger may have no valid proof.
        tlog_proof.verify(data, keys)
        _write(out, lambda file: file.write(data))
        if keys != named:
            signed = ", ".join(key.vkey for key in (keys or ())[len(named or ()) :])
            terminal_output.echo_err(
                f"the proof verifies with --key '{signed}', for which the key that was named vouches"
            )
        return exit_statuses.OK

    finish(work)


@audit.command(epilog="Example:\n\nmcp-bridge audit checkpoint >> /mnt/usb/checkpoints.txt")
def checkpoint(ctx: typer.Context, config: Config = None, as_json: Json = False) -> None:
    """Print the signed checkpoint of all entries: to be kept where this machine can't change it."""

    def work() -> int:
        from mcp_bridge.ledger.audit import proving
        from mcp_bridge.ledger.log.reading import open_own_ledger

        with open_own_ledger(
            audit_verification.ledger_file(configuration_loading.load(config or ctx.obj).settings)
        ) as ledger:
            note, size, vkey = proving.checkpoint(ledger), ledger.size, ledger.vkey
        if as_json:
            print_json({"checkpoint": note, "size": size, "key": vkey})
        else:
            # Printed unchanged: it is signed, and with further text it would not be a valid note.
            sys.stdout.flush()
            sys.stdout.buffer.write(note.encode())
        return exit_statuses.OK

    finish(work, as_json=as_json)


@audit.command(epilog='Example:\n\nmcp-bridge audit verify ledger.jsonl --key "$(mcp-bridge audit key)"')
def key(ctx: typer.Context, config: Config = None) -> None:
    """Print the public key of the log, for whoever is to verify what it signs."""

    def work() -> int:
        from mcp_bridge.ledger.keys.signing_key_files import known_vkey

        terminal_output.echo(
            known_vkey(audit_verification.ledger_file(configuration_loading.load(config or ctx.obj).settings))
        )
        return exit_statuses.OK

    finish(work)


@audit.command(epilog="Example:\n\nmcp-bridge audit consistency monday.txt friday.txt")
def consistency(
    ctx: typer.Context,
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A checkpoint's note.")],
    new: Annotated[
        Path | None, typer.Argument(metavar="[NEW]", help="A later one; the log as it is now without.")
    ] = None,
    key: Keys = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show that the log of a checkpoint is the beginning of a later one: nothing was changed, removed or inserted."""

    def work() -> int:
        from mcp_bridge.ledger.audit import proving
        from mcp_bridge.ledger.keys.signing_key_files import known_vkey
        from mcp_bridge.ledger.log.reading import open_own_ledger
        from mcp_bridge.ledger.proofs.signing import Verifier

        settings = configuration_loading.load(config or ctx.obj).settings
        (earlier,) = audit_verification.read_notes(old)[-1:]
        later = audit_verification.read_notes(new)[-1] if new is not None else None
        given = audit_verification.read_keys(key)
        own = given or [Verifier.parse(known_vkey(audit_verification.ledger_file(settings)))]
        with open_own_ledger(audit_verification.ledger_file(settings)) as ledger:
            before = [] if given else ledger.signing_keys()
            shown = proving.consistency(ledger, earlier, later, own, before)
        if as_json:
            print_json({"status": "consistent", **shown._asdict()})
        else:
            terminal_output.echo(f"consistent: the first {shown.old} of {shown.new} entries are those of {old}")
        return exit_statuses.OK

    finish(work, as_json=as_json)


@audit.command(epilog="Example:\n\nmcp-bridge audit export ledger.jsonl --payloads")
def export(
    ctx: typer.Context,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The export; - for standard output.")],
    payloads: Payloads = False,
    config: Config = None,
) -> None:
    """Write the whole log as one file that can be verified anywhere with nothing but itself and the key."""

    def work() -> int:
        from mcp_bridge.ledger.audit import ledger_copies
        from mcp_bridge.ledger.log.reading import open_own_ledger, require

        settings = configuration_loading.load(config or ctx.obj).settings
        require(audit_verification.ledger_file(settings))
        with open_own_ledger(
            audit_verification.ledger_file(settings), audit_verification.master_key(settings) if payloads else None
        ) as ledger:
            size = ledger.size
            _write(None if str(out) == "-" else out, lambda file: ledger_copies.export(ledger, file, payloads=payloads))
            vkey = ledger.vkey
        if str(out) != "-":
            terminal_output.echo(f"{size} entries in {out}; verify it with --key '{vkey}'")
        return exit_statuses.OK

    finish(work)


@audit.command()
def stats(ctx: typer.Context, config: Config = None, as_json: Json = False) -> None:
    """Count entries, executions and bytes; tell the log's name and key."""

    def work() -> int:
        from mcp_bridge.ledger.audit import statistics
        from mcp_bridge.ledger.log.reading import open_own_ledger

        loaded = configuration_loading.load(config or ctx.obj)
        with open_own_ledger(audit_verification.ledger_file(loaded.settings)) as ledger:
            numbers = statistics.stats(ledger)
        configured = audit_verification.configured_targets(loaded)
        if as_json:
            facts = numbers.to_json()
            for target, state in facts["published"].items():
                state["configured"] = target in configured
            print_json(facts)
            return exit_statuses.OK
        terminal_output.echo(f"log {numbers.origin}, {numbers.entries} entries, key {numbers.key}")
        terminal_output.echo(f"from {terminal_output.moment(numbers.first)} to {terminal_output.moment(numbers.last)}")
        terminal_output.echo(f"payloads {numbers.payload_bytes} bytes, file {numbers.file_bytes} bytes")
        terminal_output.table(("entries", "number"), [(kind, str(count)) for kind, count in numbers.kinds.items()])
        rows = [*numbers.executions.items()]
        terminal_output.table(("executions", "number"), [(status, str(count)) for status, count in rows])
        for target, state in numbers.published.items():
            no_longer = "" if target in configured else " (no longer configured)"
            terminal_output.echo(f"published to {target}: {state.size} entries, {state.status}{no_longer}")
            if state.conflict:
                when = terminal_output.moment(state.conflict["time"])
                terminal_output.echo(f"  ALARM of {when}: {state.conflict['message']}")
        return exit_statuses.OK

    finish(work, as_json=as_json)


@audit.command(epilog="Example:\n\nmcp-bridge audit compact")
def compact(ctx: typer.Context, config: Config = None, as_json: Json = False) -> None:
    """Write the ledger's file anew, as small as what is in it; no bridge may use it meanwhile.

    A file that version 0.1.0 has begun gives the space of what is erased back only after this; others do by themselves.
    """

    def work() -> int:
        from mcp_bridge.configured_values import shown_size
        from mcp_bridge.ledger.admin import offline_compaction
        from mcp_bridge.sandbox.ownership import owner_label

        async def compacted(database: Database) -> tuple[Measured, Measured]:
            return await offline_compaction.compact(database, owner_label())

        before, after = run_with_database(configuration_loading.load(config or ctx.obj).settings, compacted)
        was, now = before.used + before.unused, after.used + after.unused
        if as_json:
            print_json({"before_bytes": was, "after_bytes": now})
        else:
            terminal_output.echo(f"the ledger had {shown_size(was)}, and has {shown_size(now)}")
        return exit_statuses.OK

    finish(work, as_json=as_json)


@audit.command(epilog="Example:\n\nmcp-bridge audit publish")
def publish(
    ctx: typer.Context,
    acknowledge: Acknowledge = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Send the newest checkpoint to all targets of `ledger.publish`, now. A bridge that runs does so by itself."""

    def work() -> int:
        loaded = configuration_loading.load(config or ctx.obj)
        if not loaded.settings.ledger.publish and not acknowledge:
            raise BridgeError(
                "bad_argument",
                "Nothing is published: there is no [[ledger.publish]].",
                hint="See docs/proof-and-audit.md.",
            )

        async def published(database: Database) -> dict[str, TargetState]:
            from mcp_bridge.ledger.publish import target_state as kept
            from mcp_bridge.ledger.publish.open_publisher import open_publisher

            if acknowledge:
                await kept.acknowledge(database)
            publishing = await open_publisher(database, loaded.settings.ledger, loaded.layers[-1].base)
            return dict(await publishing.publish_now())

        states = run_with_database(loaded.settings, published)
        if as_json:
            print_json({"targets": [state.record() for state in states.values()]})
        else:
            if acknowledge:
                terminal_output.echo("the alarms that there were are taken away")
            for state in states.values():
                why = f": {state.error['message']}" if state.error else ""
                terminal_output.echo(f"{state.target}: {state.status}, {state.size} entries{why}")
        return exit_statuses.OK if all(state.status == "ok" for state in states.values()) else exit_statuses.FAILED

    finish(work, as_json=as_json)


@audit.command("rotate-key", epilog="Example:\n\nmcp-bridge audit rotate-key")
def rotate_key(
    ctx: typer.Context,
    lost: Lost = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Sign with a new key from here on; the log says so, signed by the old one."""

    def work() -> int:
        from mcp_bridge.ledger.admin import key_rotation

        settings = configuration_loading.load(config or ctx.obj).settings
        if lost:
            vkey = key_rotation.replace_lost_key(audit_verification.ledger_file(settings), settings.ledger.master_key)
        else:
            vkey = run_with_database(settings, key_rotation.rotate_key)
        if as_json:
            print_json({"key": vkey})
        else:
            terminal_output.echo(f"new key: {vkey}")
        return exit_statuses.OK

    finish(work, as_json=as_json)


@audit.command("accept-clock")
def accept_clock(ctx: typer.Context, config: Config = None) -> None:
    """Go on although the clock is behind the last entry: it is right now, and was ahead before."""

    def work() -> int:
        from mcp_bridge.cli.terminal_prompts import login_name
        from mcp_bridge.ledger.admin import accepted_clock

        async def accepted(database: Database) -> float:
            return await accepted_clock.accept_clock(database, login_name())

        behind = run_with_database(configuration_loading.load(config or ctx.obj).settings, accepted)
        terminal_output.echo(f"accepted: the clock is {behind:.0f} s behind the entry before")
        return exit_statuses.OK

    finish(work)


@audit.command("accept-loss", epilog="Example:\n\nmcp-bridge audit accept-loss")
def accept_loss(ctx: typer.Context, config: Config = None, as_json: Json = False) -> None:
    """Go on although the ledger ends before what it had come to (`ledger_behind`); the log says so from then on.

    What was recorded after its end is not known any more: it may have happened, and is done again by whoever asks for
    it again, under the same key too. Look at what your tools have done since, and at `execution list`, first. A file
    or a witness of `ledger.publish` that has seen more refuses the log from then on: name a new one.
    """

    def work() -> int:
        from mcp_bridge.cli.terminal_prompts import login_name
        from mcp_bridge.ledger.admin import recorded_losses
        from mcp_bridge.private_files import state_directory

        loaded = configuration_loading.load(config or ctx.obj)
        settings = loaded.settings
        require_ledger(settings)
        state_directory(settings.state_dir, durable=True)
        loss = recorded_losses.accept_loss(
            audit_verification.ledger_file(settings), settings.ledger.master_key, login_name()
        )
        targets = list(audit_verification.configured_targets(loaded))
        if as_json:
            print_json({"had": loss.had, "has": loss.has, "published": targets})
        else:
            had = "how many it had is unknown" if loss.had is None else f"it had {loss.had}"
            terminal_output.echo(f"accepted: the log has {loss.has} entries, and {had}")
            for line in terminal_output.refusing_targets(targets, "is left"):
                terminal_output.echo(line)
        return exit_statuses.OK

    finish(work, as_json=as_json)


def _write(path: Path | None, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file that doesn't exist yet, or standard output."""
    if path is None:
        sys.stdout.flush()
        write(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    try:
        file = create_private(path)
    except OSError as exc:
        raise BridgeError("bad_argument", f"{path} can't be made: {exc.strerror}.", hint="Name a new file.") from None
    try:
        with file:
            write(file)
    except BaseException as exc:
        path.unlink(missing_ok=True)
        if isinstance(exc, OSError):
            raise BridgeError("disk_full", f"{path} can't be written: {exc.strerror}.") from None
        raise
