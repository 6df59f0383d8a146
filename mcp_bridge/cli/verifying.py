"""What `mcp-bridge audit` verifies, and by what: keys, kept checkpoints, files as they are named, and the verdicts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_bridge.cli import showing
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp_bridge.ledger.exports import Verdict
    from mcp_bridge.ledger.proofs import Proved
    from mcp_bridge.ledger.sealing import MasterKey
    from mcp_bridge.ledger.signing import Verifier
    from mcp_bridge.settings import Settings

    ReadSettings = Callable[[], Settings]
    """Reads the configuration where it is needed: who has only a file need not have one."""

MAX_NOTES_BYTES = 64 << 20
"""Of a file with checkpoints: one a minute makes as much in half a year."""

MAX_KEYS_BYTES = 64 << 10
"""Of a file with public keys."""

_SQLITE = b"SQLite format 3\0"
_PROOF = b"c2sp.org/"
_BACKUPS = (b"backup.json\0", b"age-encryption.")
"""How a backup begins, and one that is encrypted."""


def ledger_file(settings: Settings) -> Path:
    """Where the ledger is."""
    from mcp_bridge.ledger.schema import FILE_NAME  # noqa: PLC0415

    return settings.state_dir / FILE_NAME


def master_key(settings: Settings) -> MasterKey:
    """The master key that is here.

    Raises:
        BridgeError: `key_missing`, `key_unusable`, `keyring_missing`.
    """
    from mcp_bridge.ledger.sealing import master_key as read  # noqa: PLC0415

    return read(settings.ledger.master_key, settings.state_dir, make=False)


def read_keys(keys: Sequence[str] | None) -> list[Verifier] | None:
    """The public keys that somebody names with --key; None without any.

    Raises:
        BridgeError: `bad_key`, `bad_argument`.
    """
    from mcp_bridge.ledger.signing import Verifier  # noqa: PLC0415

    return [Verifier.parse(key) for given in keys for key in _key_texts(given)] if keys else None


def _key_texts(given: str) -> list[str]:
    """The public keys that somebody names: one, or a file's, one a line, `audit key`'s output for instance."""
    # What can't be a file's name, since it is too long, is none.
    if not os.path.exists(given):  # noqa: PTH110
        return [given.strip()]
    path = Path(given)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_KEYS_BYTES + 1).decode(errors="replace")
    except OSError as exc:
        raise BridgeError("bad_argument", f"{given:.200} can't be read: {exc.strerror}.") from None
    found = text.split() if len(text) <= MAX_KEYS_BYTES else []
    if not found:
        raise BridgeError("bad_argument", f"{path} is no file with public keys, one a line.")
    return found


def read_notes(path: Path) -> list[str]:
    """The signed notes of a file: one, or several that were appended to each other.

    Raises:
        BridgeError: `bad_argument`.
    """
    from mcp_bridge.ledger.publishing_file import notes_in  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            data = file.read(MAX_NOTES_BYTES + 1)
        if len(data) > MAX_NOTES_BYTES:
            raise BridgeError("bad_argument", f"{path} has more than {MAX_NOTES_BYTES} bytes.")
    except OSError as exc:
        raise BridgeError("bad_argument", f"{path} can't be read: {exc.strerror}.") from None
    # What a crash has left of a note need be no text.
    found = notes_in(data.decode(errors="replace"))
    if not found:
        raise BridgeError("bad_argument", f"There is no checkpoint in {path}.")
    return found


def verify_here(settings: Settings, keys: Sequence[Verifier] | None, notes: Sequence[str]) -> dict[str, Any]:
    """Verify the ledger here; what there is to tell of it, as JSON.

    Args:
        settings: They say where it is.
        keys: The keys that are trusted; None for the one that is here.
        notes: Checkpoints that were kept elsewhere.

    Raises:
        BridgeError: As `own_vkey` and `verify_file`.
    """
    from mcp_bridge.ledger.audit import verify_file  # noqa: PLC0415
    from mcp_bridge.ledger.opening import own_vkey  # noqa: PLC0415
    from mcp_bridge.ledger.signing import Verifier  # noqa: PLC0415

    path = ledger_file(settings)
    # The key that is here, and not the one that the file says: whoever changes the file can't have changed that.
    trusted = keys or [Verifier.parse(own_vkey(path))]
    found = verify_file(path, trusted, notes, master_key(settings))
    return {"file": str(path), **_facts(found.log), "erased": found.erased, "opened": found.opened}


def verify_given(
    file: Path, keys: Sequence[Verifier] | None, notes: Sequence[str], settings: ReadSettings
) -> dict[str, Any]:
    """Verify an export, a proof, or a copy of a ledger; what there is to tell of it, as JSON.

    Args:
        file: It.
        keys: The keys that are trusted; None to trust none.
        notes: Checkpoints that were kept elsewhere.
        settings: Where the master key is that may open a copy's payloads.

    Raises:
        BridgeError: `bad_argument`; as `verify_export`, `proofs.verify` and `verify_file`.
    """
    from mcp_bridge.ledger import proofs  # noqa: PLC0415
    from mcp_bridge.ledger.audit import verify_file  # noqa: PLC0415
    from mcp_bridge.ledger.exports import verify_export  # noqa: PLC0415

    try:
        with file.open("rb") as opened:
            beginning = opened.read(len(_SQLITE))
            opened.seek(0)
            if beginning == _SQLITE:
                copy = verify_file(file, keys, notes, _master_of(file, settings))
                return {"file": str(file), **_facts(copy.log), "erased": copy.erased, "opened": copy.opened}
            _refuse_backup(file, beginning)
            if beginning.startswith(_PROOF):
                proved = proofs.verify(opened.read(proofs.MAX_PROOF_BYTES + 1), keys, notes)
                return {"file": str(file), **_proof_facts(proved), "compared": proved.compared}
            return {"file": str(file), **_facts(verify_export(opened, keys, notes))}
    except OSError as exc:
        raise BridgeError("bad_argument", f"{file} can't be read: {exc.strerror}.") from None


def prove_here(settings: Settings, entry: int, *, payload: bool) -> bytes:
    """The proof of an entry of the ledger here.

    Raises:
        BridgeError: As `audit.prove` and `open_ledger`.
    """
    from mcp_bridge.ledger import audit  # noqa: PLC0415
    from mcp_bridge.ledger.reading import open_ledger, require  # noqa: PLC0415

    path = ledger_file(settings)
    require(path)
    with open_ledger(path, master_key(settings) if payload else None) as ledger:
        return audit.prove(ledger, entry, payload=payload)


def prove_by(
    file: Path, keys: Sequence[Verifier] | None, entry: int, settings: ReadSettings, *, payload: bool
) -> bytes:
    """The proof of an entry of an export or of a copy of a ledger.

    Args:
        file: It.
        keys: The keys that are trusted; None to trust none.
        entry: The entry's number.
        settings: Where the master key is that may open a copy's payloads.
        payload: Whether what the entry is about is disclosed.

    Raises:
        BridgeError: `bad_argument`; as `audit.prove_exported`, `audit.prove` and `open_ledger`.
    """
    from mcp_bridge.ledger import audit  # noqa: PLC0415
    from mcp_bridge.ledger.reading import open_ledger  # noqa: PLC0415

    try:
        with file.open("rb") as opened:
            if (beginning := opened.read(len(_SQLITE))) != _SQLITE:
                _refuse_backup(file, beginning)
                opened.seek(0)
                return audit.prove_exported(opened, keys, entry, payload=payload)
    except OSError as exc:
        raise BridgeError("bad_argument", f"{file} can't be read: {exc.strerror}.") from None
    with open_ledger(file, _master_of(file, settings)) as ledger:
        return audit.prove(ledger, entry, payload=payload)


def _refuse_backup(file: Path, beginning: bytes) -> None:
    if beginning.startswith(_BACKUPS):
        raise BridgeError(
            "bad_argument",
            f"{file} is a backup.",
            hint="`mcp-bridge restore --check FILE` verifies it; age and tar take its ledger.sqlite out.",
        )


def _master_of(file: Path, settings: ReadSettings) -> MasterKey | None:
    """The master key here, if it is that of a copy; None for another machine's ledger: its payloads stay closed."""
    from mcp_bridge.ledger.beside import check_master  # noqa: PLC0415
    from mcp_bridge.ledger.reading import open_ledger  # noqa: PLC0415

    try:
        master = master_key(settings())
        with open_ledger(file) as ledger:
            check_master(ledger.connection, master)
    except BridgeError as exc:
        if exc.code not in {"key_missing", "key_unusable"}:
            raise
        return None
    return master


def _facts(found: Verdict) -> dict[str, Any]:
    return {
        "origin": found.origin,
        "size": found.size,
        "root": found.root.hex(),
        "authenticated": found.authenticated,
        "keys": list(found.keys),
        "executions": found.executions,
        "disclosed": found.disclosed,
        "undisclosed": found.undisclosed,
        "checkpoints": found.checkpoints,
        "compared": found.compared,
        "witnesses": [{"key": by.vkey, "time": time} for by, time in found.witnesses],
    }


def _proof_facts(found: Proved) -> dict[str, Any]:
    leaf = found.leaf
    payload = found.disclosed.payload
    return {
        "origin": found.checkpoint.origin,
        "size": found.checkpoint.size,
        "root": found.checkpoint.root.hex(),
        "authenticated": found.authenticated,
        "keys": [by.vkey for by, _ in found.signatures],
        "entry": {
            "sequence": leaf.sequence,
            "kind": leaf.kind,
            "execution": leaf.execution,
            "step": leaf.step,
            "time": leaf.time / 1e6,
        },
        "payload": None if payload is None else payload.decode(),
    }


def verdict_lines(facts: dict[str, Any]) -> list[str]:
    """What `verify_here` and `verify_given` tell, for people."""
    whole = f"{facts['file']}: {facts['size']} entries of {facts['origin']}"
    if "entry" in facts:
        entry = facts["entry"]
        whole = (
            f"{facts['file']}: entry {entry['sequence']} ({entry['kind']} of {entry['execution']}, "
            f"{showing.moment(entry['time'])}) is in {facts['origin']} of {facts['size']} entries"
        )
    lines = [f"verified: {whole}" if facts["authenticated"] else f"agrees with itself: {whole}"]
    if not facts["authenticated"]:
        lines.append("by no key: anybody may have made it; name the log's key with --key")
    if facts.get("payload") is not None:
        # Each line of it: it may say "verified: …" itself.
        lines += [f"payload: {line}" for line in facts["payload"].split("\n")]
    if facts.get("erased"):
        lines.append(f"{facts['erased']} executions erased")
    if not facts.get("opened", True):
        lines.append("payloads and the rows beside the log were not opened: no master key of it is here")
    if facts.get("compared"):
        lines.append(f"agrees with {facts['compared']} checkpoints that were kept elsewhere")
    elif "witnesses" in facts and facts["authenticated"] and not facts["witnesses"]:
        lines.append("held against no checkpoint that was kept elsewhere: whoever has its key may have rewritten it")
    lines += [f"cosigned by {row['key'].partition('+')[0]}" for row in facts.get("witnesses", ())]
    return lines
