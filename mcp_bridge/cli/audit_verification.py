"""Verification for `mcp-bridge audit`: keys, kept checkpoints and given files."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_bridge import escaping
from mcp_bridge.cli import terminal_output
from mcp_bridge.cli.verdicts import log_record, proof_record
from mcp_bridge.errors import BridgeError, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mcp_bridge.cli.verdicts import VerdictRecord
    from mcp_bridge.ledger.proofs.signing import Verifier
    from mcp_bridge.ledger.publish.protocol import TargetState
    from mcp_bridge.ledger.publish.targets import Target
    from mcp_bridge.ledger.storage.sealing import MasterKey
    from mcp_bridge.settings import Loaded, Settings

    ReadSettings = Callable[[], Settings]
    """Reads the configuration on demand: a user who only has a file may have none."""

MAX_NOTES_BYTES = 64 << 20
"""Size limit of a file with checkpoints: one a minute makes this in half a year."""

MAX_KEYS_BYTES = 64 << 10
"""Size limit of a file with public keys."""

_SQLITE = b"SQLite format 3\0"
_PROOF = b"c2sp.org/"
_BACKUPS = (b"backup.json\0", b"age-encryption.")
"""The first bytes of a plain and of an encrypted backup."""


def ledger_file(settings: Settings) -> Path:
    """The path of the ledger."""
    from mcp_bridge.ledger.storage.schema import FILE_NAME

    return settings.state_dir / FILE_NAME


def configured_targets(loaded: Loaded) -> dict[str, Target]:
    """The targets of `ledger.publish`, their files absolute, by their ids."""
    base = loaded.layers[-1].base
    return {target.id: target for target in (each.resolved(base) for each in loaded.settings.ledger.publish)}


def master_key(settings: Settings) -> MasterKey:
    """The master key of this state directory.

    Raises:
        BridgeError: `key_missing`, `key_unusable`, `keyring_missing`.
    """
    from mcp_bridge.ledger.keys.master_key_sources import master_key as read

    return read(settings.ledger.master_key, settings.state_dir, make=False)


def read_keys(keys: Sequence[str] | None) -> list[Verifier] | None:
    """The public keys given with --key; None without any.

    Raises:
        BridgeError: `bad_key`, `bad_argument`.
    """
    from mcp_bridge.ledger.proofs.signing import Verifier

    return [Verifier.parse(key) for argument in keys for key in _key_texts(argument)] if keys else None


def _key_texts(argument: str) -> list[str]:
    """The public keys in an argument: one key, or a file with one key a line, such as the output of `audit key`."""
    # A text that is too long for a file name isn't a file.
    if not os.path.exists(argument):  # noqa: PTH110
        return [argument.strip()]
    path = Path(argument)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_KEYS_BYTES + 1).decode(errors="replace")
    except OSError as exc:
        raise BridgeError("bad_argument", f"{argument:.200} can't be read: {exc.strerror}.") from None
    texts = text.split() if len(text) <= MAX_KEYS_BYTES else []
    if not texts:
        raise BridgeError("bad_argument", f"{path} is no file with public keys, one a line.")
    return texts


def read_notes(path: Path) -> list[str]:
    """The signed notes in a file: one, or several that were appended.

    Raises:
        BridgeError: `bad_argument`.
    """
    from mcp_bridge.ledger.proofs.note_files import notes_in

    try:
        with path.open("rb") as file:
            data = file.read(MAX_NOTES_BYTES + 1)
        if len(data) > MAX_NOTES_BYTES:
            raise BridgeError("bad_argument", f"{path} has more than {MAX_NOTES_BYTES} bytes.")
    except OSError as exc:
        raise BridgeError("bad_argument", f"{path} can't be read: {exc.strerror}.") from None
    # A note that a crash has truncated may be invalid UTF-8.
    notes = notes_in(data.decode(errors="replace"))
    if not notes:
        raise BridgeError("bad_argument", f"There is no checkpoint in {path}.")
    return notes


def verify_own_ledger(
    loaded: Loaded, keys: Sequence[Verifier] | None, notes: Sequence[str], *, offline: bool = False
) -> VerdictRecord:
    """Verify the ledger and compare it with its publishing targets.

    Args:
        loaded: The configuration: the ledger's location and its publishing targets.
        keys: The trusted keys; None for the key in the state directory.
        notes: Checkpoints that were kept elsewhere.
        offline: Whether to ask no targets.

    Raises:
        BridgeError: As `known_vkey` and `verify_file`; `publish_conflict`: a target has seen another history, now or
            at an alarm that nobody has acknowledged; as `ComparedArtifacts.require_same`.
    """
    import anyio

    from mcp_bridge.executions.artifacts import Files
    from mcp_bridge.ledger.audit.file_verification import verify_file
    from mcp_bridge.ledger.audit.statistics import published
    from mcp_bridge.ledger.keys.signing_key_files import foreign_public_key, known_vkey
    from mcp_bridge.ledger.log.reading import open_ledger
    from mcp_bridge.ledger.proofs.signing import Verifier
    from mcp_bridge.ledger.publish.checkpoints_seen import FileLog, check_targets
    from mcp_bridge.ledger.storage.file_opening import require_end
    from mcp_bridge.ledger.storage.position_file import PositionFile

    settings = loaded.settings
    path = ledger_file(settings)
    require_end(path)
    targets = list(configured_targets(loaded).values())
    # The key in the state directory, and not the one in the ledger: a forger of the ledger can't have changed it.
    trusted = keys or [Verifier.parse(known_vkey(path))]
    witnesses = [Verifier.parse(target.key) for target in targets if target.key is not None]
    try:
        master = master_key(settings)
    except BridgeError as exc:
        # Verification works without the key that decrypts payloads.
        if exc.code != "key_missing":
            raise
        master = None
    with _in_words(trusted):
        progress = terminal_output.Progress(f"verifying {path}")
        verdict = verify_file(path, [*trusted, *witnesses], notes, master, PositionFile(path), progress)
    with open_ledger(path) as ledger:
        states = published(ledger)
        foreign = foreign_public_key(path.parent, ledger.vkey)
    _refuse_alarms(states)
    record = log_record(path, verdict.log, trusted)
    record["foreign_public_key"] = foreign
    record["erased"], record["opened"] = verdict.erased, verdict.opened
    artifacts = Files(settings.state_dir).compared(verdict.artifacts)
    record["artifacts"] = artifacts.number
    record["targets"], record["offline"] = [], offline and bool(targets)
    if targets and not offline:
        log = FileLog(path, {target: state.size for target, state in states.items()})
        record["targets"] = [each.record() for each in anyio.run(check_targets, targets, log, states)]
    # Last: another history of the log is worse, and an artifact wouldn't hide it.
    artifacts.require_same()
    return record


def verify_given_file(
    file: Path, keys: Sequence[Verifier] | None, notes: Sequence[str], settings: ReadSettings
) -> VerdictRecord:
    """Verify an export, a proof, or a copy of a ledger.

    Args:
        file: The file to verify.
        keys: The trusted keys; None to trust none.
        notes: Checkpoints that were kept elsewhere.
        settings: Reads the settings, which locate the master key that may decrypt a copy's payloads.

    Raises:
        BridgeError: `bad_argument`; as `verify_export`, `proofs.verify` and `verify_file`; `publish_conflict`: the copy
            was made during an alarm.
    """
    from mcp_bridge.ledger.audit.file_verification import verify_file
    from mcp_bridge.ledger.audit.statistics import published
    from mcp_bridge.ledger.log.reading import open_ledger
    from mcp_bridge.ledger.proofs import tlog_proof
    from mcp_bridge.ledger.proofs.export_verification import verify_export

    progress = terminal_output.Progress(f"verifying {file}")
    try:
        with file.open("rb") as opened, _in_words(keys):
            beginning = opened.read(len(_SQLITE))
            opened.seek(0)
            if beginning == _SQLITE:
                copy = verify_file(file, keys, notes, _master_of(file, settings), progress=progress)
                with open_ledger(file) as ledger:
                    _refuse_alarms(published(ledger))
                record = log_record(file, copy.log, keys)
                record["erased"], record["opened"] = copy.erased, copy.opened
                return record
            _refuse_backup(file, beginning)
            if beginning.startswith(_PROOF):
                proved = tlog_proof.verify(opened.read(tlog_proof.MAX_PROOF_BYTES + 1), keys, notes)
                return proof_record(file, proved, keys)
            export = verify_export(opened, keys, notes, progress=progress)
            record = log_record(file, export, keys)
            record["erased"], record["withheld"] = export.erased, export.withheld
            return record
    except OSError as exc:
        raise unreadable(file, exc) from None


@contextmanager
def _in_words(keys: Sequence[Verifier] | None) -> Iterator[None]:
    """If no log key was given, report that instead of the place in the file where it was missing."""
    from mcp_bridge.ledger.proofs.signing import COSIGNATURE

    try:
        yield
    except BridgeError as exc:
        if exc.code not in {"untrusted_key", "unknown_key"} or not keys:
            raise
        if any(key.kind != COSIGNATURE for key in keys):
            raise
        names = ", ".join(escaping.plain_name(key.name) for key in keys)
        raise BridgeError(
            "untrusted_key",
            f"No key of the log was named, only that of the witness {names}: a witness says that a log has only grown, "
            "and the log's own key says whose log it is.",
            hint="Name the log's key with --key too, from a source that you trust: `mcp-bridge audit key` prints it.",
        ) from None


def _refuse_alarms(states: Mapping[str, TargetState]) -> None:
    """Refuse to call a ledger verified during an alarm that nobody has acknowledged.

    Raises:
        BridgeError: `publish_conflict`.
    """
    alarms = [(target, state.conflict) for target, state in states.items() if state.conflict is not None]
    if alarms:
        (target, alarm), *more = alarms
        others = f" There are alarms of {len(more)} other targets." if more else ""
        raise BridgeError(
            "publish_conflict",
            f"There is an alarm of {terminal_output.moment(alarm['time'])}: {alarm['message']}{others}",
            hint="The entries agree with each other. If you have looked into the alarm and know its cause: "
            "`mcp-bridge audit publish --acknowledge` takes it away.",
            target=target,
        )


def prove_own_entry(settings: Settings, entry: int, *, payload: bool) -> bytes:
    """The proof of an entry of the ledger.

    Raises:
        BridgeError: As `proving.prove` and `open_own_ledger`.
    """
    from mcp_bridge.ledger.audit import proving
    from mcp_bridge.ledger.log.reading import open_own_ledger, require

    path = ledger_file(settings)
    require(path)
    with open_own_ledger(path, master_key(settings) if payload else None) as ledger:
        return proving.prove(ledger, entry, payload=payload)


def prove_by(
    file: Path, keys: Sequence[Verifier] | None, entry: int, settings: ReadSettings, *, payload: bool
) -> tuple[bytes, Sequence[Verifier] | None]:
    """The proof of an entry of an export or of a ledger's copy, and the keys to verify it with.

    Those are the given keys; or, if none of them has signed the proof's checkpoint, the keys that they vouch for in the
    export.

    Args:
        file: The export or copy.
        keys: The trusted keys; None to trust none.
        entry: The entry's number.
        settings: Reads the settings, which locate the master key that may decrypt a copy's payloads.
        payload: Whether to disclose the entry's payload.

    Raises:
        BridgeError: `bad_argument`; as `proving.prove_by`, `proving.prove` and `open_ledger`.
    """
    from mcp_bridge.ledger.audit import proving
    from mcp_bridge.ledger.log.reading import open_ledger

    progress = terminal_output.Progress(f"verifying {file}")
    try:
        with file.open("rb") as opened:
            if (beginning := opened.read(len(_SQLITE))) != _SQLITE:
                _refuse_backup(file, beginning)
                opened.seek(0)
                with _in_words(keys):
                    proven = proving.prove_by(opened, keys, entry, payload=payload, progress=progress)
                vouched = keys is not None and not set(proven.keys) & set(keys)
                return proven.data, [*(keys or ()), *proven.keys] if vouched else keys
    except OSError as exc:
        raise unreadable(file, exc) from None
    with open_ledger(file, _master_of(file, settings)) as ledger:
        return proving.prove(ledger, entry, payload=payload), keys


def _refuse_backup(file: Path, beginning: bytes) -> None:
    if beginning.startswith(_BACKUPS):
        raise BridgeError(
            "bad_argument",
            f"{file} is a backup.",
            hint="`mcp-bridge restore --check FILE` verifies it; age and tar take its ledger.sqlite out.",
        )


def _master_of(file: Path, settings: ReadSettings) -> MasterKey | None:
    """The master key if it is that of the copy; None for another machine's ledger, whose payloads stay encrypted."""
    from mcp_bridge.ledger.log.reading import open_ledger

    try:
        master = master_key(settings())
        with open_ledger(file, master):
            return master
    except BridgeError as exc:
        if exc.code not in {"key_missing", "key_unusable"}:
            raise
        return None
