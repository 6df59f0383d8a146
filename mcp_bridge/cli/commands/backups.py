"""`mcp-bridge backup`, `restore` and `backup-key`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from mcp_bridge.cli import audit_verification, configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import finish, print_json
from mcp_bridge.cli.options import Config, Json  # noqa: TC001  (typer reads the annotations)
from mcp_bridge.cli.terminal_prompts import login_name, read_secret
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.backup.age import Identity, Recipient
    from mcp_bridge.backup.restore import Restored

MAX_KEYS_BYTES = 64 << 10
"""Size limit of a file with recipients or identities."""

Recipients: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--recipient", metavar="AGE1…|FILE", help="Encrypt it to this key, or those in a file; repeatable."),
]
Passphrase: TypeAlias = Annotated[
    bool, typer.Option("--passphrase", help="Encrypt it under a passphrase: asked for, or standard input.")
]
WithoutKeys: TypeAlias = Annotated[
    bool,
    typer.Option("--without-keys", help="Exclude keys and secrets, and don't encrypt; back those up separately."),
]
Lost: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Restore although this key file is lost (checkpoint.key, or 0.1.0's references.key); repeatable. A "
        "new checkpoint.key is made, and you must give its public key to the log's readers. Without "
        "references.key, idempotency keys from 0.1.0 are refused.",
    ),
]
Identities: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--identity", metavar="FILE", help="The private key of a recipient; repeatable."),
]


def backup(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The backup file to create.")],
    passphrase: Passphrase = False,
    recipient: Recipients = None,
    without_keys: WithoutKeys = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Back up all that can't be recreated, while it is in use: ledger, keys, secrets, artifacts and memories.

    The copy is verified. It is an age file of a tar, which `age` and `tar` can open, too; without keys it is the tar.
    """

    def work() -> int:
        from mcp_bridge.backup.create import back_up

        if str(file) == "-":
            raise BridgeError(
                "bad_argument", "A backup is a file: it isn't written to standard output.", hint="Name a new one."
            )
        if passphrase + bool(recipient) + without_keys > 1:
            raise BridgeError("bad_argument", "Name one of --passphrase, --recipient and --without-keys.")
        if not (passphrase or recipient or without_keys or sys.stdin.isatty()):
            raise BridgeError(
                "bad_argument",
                "The keys in a backup are encrypted, and nothing says for whom.",
                hint="Name --passphrase or --recipient; or --without-keys, and keep copies of the keys apart.",
            )
        settings = configuration_loading.load(config or ctx.obj).settings
        to: str | Sequence[Recipient] | None = None
        if recipient:
            to = _recipients(recipient)
        elif not without_keys:
            to = _new_passphrase()
        made = back_up(settings.state_dir, settings.ledger.master_key, file, to)
        if as_json:
            facts: dict[str, Any] = {"file": str(file), "size": made.size, "root": made.root.hex()}
            print_json(facts | {"authenticated": made.authenticated, "keys": made.keys, "apart": made.apart})
            return exit_statuses.OK
        by = (
            "verified"
            if made.authenticated
            else "which agree with each other; they are not verified by a key: checkpoint.key is missing or damaged"
        )
        terminal_output.echo(f"{made.size} entries and {made.files} files in {file}, {by}")
        if made.apart:
            terminal_output.echo(
                f"Not in it, and needed to restore it: {', '.join(made.apart)}. Keep copies apart from it."
            )
        return exit_statuses.OK

    finish(work, as_json=as_json)


def restore(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup, or a copy of ledger.sqlite.")],
    keys: Annotated[
        Path | None, typer.Option("--keys", metavar="DIR", help="The directory with the keys that the backup lacks.")
    ] = None,
    identity: Identities = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="VKEY|FILE", help="Require the log to have this public key; repeatable."),
    ] = None,
    lost: Lost = None,
    check: Annotated[bool, typer.Option("--check", help="Only try whether it could be restored.")] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Make a state directory from a backup, and verify it. The directory must have nothing of what is in it.

    What happened after the backup was made isn't known to what is restored, and can happen again. The restored log says
    who has restored it, and from when: `audit verify` tells.
    """

    def work() -> int:
        from mcp_bridge.backup import restore as restoring

        settings = configuration_loading.load(config or ctx.obj).settings
        means = restoring.RestoreOptions(
            lambda: read_secret(f"Passphrase of {file}: ", "bad_passphrase", twice=False),
            _identities(identity or ()),
            keys,
            frozenset(lost or ()),
            audit_verification.read_keys(key),
            login_name(),
        )
        do = restoring.check if check else restoring.restore
        restored = do(file, settings.state_dir, settings.ledger.master_key, means)
        if as_json:
            print_json({"file": str(file), "restored": None if check else str(settings.state_dir), **restored.record()})
        else:
            for line in _lines(restored, file, None if check else settings.state_dir):
                terminal_output.echo(line)
        return exit_statuses.OK

    finish(work, as_json=as_json)


def backup_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The private key, which isn't there yet.")],
) -> None:
    """Make a key for backups: the private one into a file, for `restore --identity`; the public one is printed.

    They are age's. Keep the file where the bridge isn't: whoever has it reads every backup that is encrypted to it.
    """

    def work() -> int:
        from mcp_bridge.atomic_files import create_private, sync_directory
        from mcp_bridge.backup.age import Identity

        new = Identity.new()
        try:
            # In place: a memory stick may have no links.
            opened = create_private(file)
            try:
                with opened:
                    opened.write(f"# public key: {new.recipient}\n{new}\n".encode())
                    opened.flush()
                    os.fsync(opened.fileno())
                sync_directory(file.parent)
            except BaseException:
                file.unlink(missing_ok=True)
                raise
        except OSError as exc:
            raise BridgeError(
                "bad_argument", f"{file} can't be made: {exc.strerror}.", hint="Name a new file."
            ) from None
        try:
            terminal_output.echo(str(new.recipient))
            sys.stdout.flush()
        except BaseException:
            # Nobody knows its public key: asked again, it would be in the way.
            file.unlink(missing_ok=True)
            raise
        return exit_statuses.OK

    finish(work)


def _new_passphrase() -> str:
    from mcp_bridge.policy.secrets.strength import MIN_BITS, bits

    passphrase = read_secret("Passphrase of the backup: ", "bad_passphrase")
    if not passphrase:
        raise BridgeError("bad_passphrase", "The passphrase is empty.", hint="Nothing was written.")
    if bits(passphrase) < MIN_BITS:
        terminal_output.echo_err(
            "mcp-bridge: warning: anyone who has the backup can guess a passphrase as short as this."
        )
    return passphrase


def _recipients(arguments: Sequence[str]) -> list[Recipient]:
    from mcp_bridge.backup.age import Recipient, is_private

    recipients = []
    for each in arguments:
        # A text that is too long for a file name isn't a file.
        named = not each.startswith("age1") and os.path.exists(each)  # noqa: PTH110
        if not (named or each.strip().startswith("age1") or is_private(each)):
            # Not shown: it may be a part of a private key.
            raise BridgeError(
                "bad_recipient",
                "--recipient: that is neither a file that is there nor a recipient of age.",
                hint="A recipient begins with age1, and `mcp-bridge backup-key FILE` or age-keygen prints it.",
            )
        recipients += [Recipient.parse(line) for line in (_keys_in(Path(each)) if named else [each.strip()])]
    return recipients


def _identities(files: Sequence[Path]) -> list[Identity]:
    from mcp_bridge.backup.age import Identity, is_private

    if any(is_private(str(file)) for file in files):
        # A private key must not appear in an error about a file that can't be read.
        raise BridgeError("bad_argument", "--identity: that is a private key.", hint="Name the file that has it.")
    return [Identity.parse(line) for file in files for line in _keys_in(file)]


def _keys_in(file: Path) -> list[str]:
    """The lines of an age key file, without empty lines and comments."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_KEYS_BYTES + 1)
    except OSError as exc:
        raise BridgeError("bad_argument", f"{file} can't be read: {exc.strerror}.") from None
    lines = [line.strip() for line in data.decode(errors="replace").splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys or len(data) > MAX_KEYS_BYTES:
        raise BridgeError("bad_argument", f"{file} is no file with keys of age, one a line.")
    return keys


def _lines(restored: Restored, file: Path, into: Path | None) -> list[str]:
    """What was restored or could be restored, for people."""
    made = f", as of {terminal_output.moment(restored.made)}" if restored.made is not None else ""
    by = "verified" if restored.authenticated else "which agree with each other, by no key that is here"
    whole = f"{restored.size} entries of {restored.origin}{made}, {by}"
    lines = [f"{file} can be read: {whole}" if into is None else f"restored into {into}: {whole}"]
    if restored.apart:
        lines.append(f"Not in it, and needed to restore it (--keys): {', '.join(restored.apart)}")
    if into is not None:
        lines.append(f"Its log says so in entry {restored.entry}.")
        if "references.key" in restored.lost:
            lines.append(
                "Without references.key, idempotency keys of version 0.1.0 can't be matched with their "
                "requests: requests that use one are refused."
            )
        if "checkpoint.key" in restored.lost:
            lines.append("checkpoint.key is a new one.")
            lines.append(f"Give the log's new key to its readers yourself: {restored.vkey}")
        lines += terminal_output.refusing_targets(restored.published, "was restored")
        if restored.has_witness:
            lines.append("The witness in it has forgotten what it cosigned since: its logs can be rolled back to then.")
    if restored.going:
        some = " and ".join(f"{count} {status}" for status, count in sorted(restored.going.items()))
        lines.append(
            f"Executions that can be resumed: {some}. What they did after the backup was made isn't known "
            "here, and would be done again: look before you resume them (mcp-bridge execution list)."
        )
    return lines
