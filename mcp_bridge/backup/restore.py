"""A state directory from a backup: everything is read, checked and staged first, and then put in its place.

The ledger is placed last, and no bridge begins one while a restore is under way (`ledger.storage.restore_staging`). So
a directory is as it was, or restored; one whose restore has died says so, and can be restored again.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_bridge.atomic_files import create_private, write_private
from mcp_bridge.backup import age, archive
from mcp_bridge.backup.age import damaged
from mcp_bridge.backup.create import (
    CREDENTIALS,
    DATABASES,
    KEYS,
    MASTER,
    MAX_SMALL_BYTES,
    OLD_KEY,
    needs,
    read_private,
    signing_key,
    signs,
)
from mcp_bridge.backup.restore_placement import place_all, refuse_occupied, staging_directory
from mcp_bridge.errors import BridgeError, unreadable
from mcp_bridge.executions.artifacts import is_kept
from mcp_bridge.ledger.admin import key_rotation, recorded_losses
from mcp_bridge.ledger.audit import file_verification, ledger_copies
from mcp_bridge.ledger.keys import master_key_sources
from mcp_bridge.ledger.keys.signing_key_files import KEY_FILE, NEXT_KEY_FILE
from mcp_bridge.ledger.log.reading import check_master, open_ledger
from mcp_bridge.ledger.proofs.signing import Verifier
from mcp_bridge.ledger.storage import sealing
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.ledger.witness import witness_files, witness_head
from mcp_bridge.private_files import KEY_BYTES, private_directory

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO

    from mcp_bridge.backup.age import Identity
    from mcp_bridge.ledger.log.reading import Ledger

_SQLITE = b"SQLite format 3\0"

_MAX_SECONDS = 1e11
"""Upper bound of a plausible time, in the year 5138. NaN isn't below it either."""

CAN_BE_LOST = (KEY_FILE, OLD_KEY)
"""Keys without which a ledger can go on: with a new one, or with none."""


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """What a backup is opened with, and what is added to it.

    Attributes:
        passphrase: Gives it, when it is needed.
        identities: Of recipients.
        keys: A directory with keys that are not in the backup.
        lost: Names of keys that are lost for good.
        verifiers: The log's public keys that are trusted; None for the one whose private key comes with it.
        by: Who restores it, as its log will say.
    """

    passphrase: Callable[[], str]
    identities: Sequence[Identity] = ()
    keys: Path | None = None
    lost: frozenset[str] = frozenset()
    verifiers: Sequence[Verifier] | None = None
    by: str = "restore"


@dataclass(frozen=True, slots=True)
class Restored:
    """What was in a backup.

    Attributes:
        origin, vkey: Its log's.
        size: How many entries that has.
        authenticated: Whether they are signed with a key that is trusted.
        made: When the backup was made, in seconds since 1970; None if it doesn't say.
        going: How many executions can go on, by their status.
        published: The targets that its checkpoints were published to.
        keys: The names of the keys that it is restored with.
        apart: The names of keys that it needs, and that were not there.
        lost: The names of keys that were lost, and that it goes on without.
        has_witness: Whether a witness's state is in it.
        entry: The number of the entry by which its log says that it was restored; None where that was only tried.
    """

    origin: str
    vkey: str
    size: int
    authenticated: bool
    made: float | None
    going: dict[str, int]
    published: tuple[str, ...]
    keys: tuple[str, ...]
    apart: tuple[str, ...]
    lost: tuple[str, ...]
    has_witness: bool
    entry: int | None = None

    def record(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "origin": self.origin,
            "key": self.vkey,
            "size": self.size,
            "authenticated": self.authenticated,
            "made": self.made,
            "executions": self.going,
            "published": list(self.published),
            "keys": list(self.keys),
            "missing": list(self.apart),
            "lost": list(self.lost),
            "witness": self.has_witness,
            "entry": self.entry,
        }


def restore(file: Path, directory: Path, master: str | Sequence[str], means: RestoreOptions) -> Restored:
    """Restore a backup.

    Args:
        file: A backup, or a copy of a ledger's file alone.
        directory: The state directory, in which there is nothing yet that a backup has.
        master: Where the master key is, as `master_key_sources.master_key` takes it: that is where the backup's is put.
        means: What it is opened with.

    Raises:
        BridgeError: `restore_exists`, `restore_busy`, `restore_failed`; `backup_unusable`, `backup_damaged`,
            `backup_newer`, `wrong_passphrase`, `wrong_identity`; `key_missing`, `key_unusable`, `keyring_missing`;
            `bad_argument`; as `file_verification.verify_file`. Nothing has changed then.
    """
    with ExitStack() as stack:
        stack.enter_context(_naming(file))
        refuse_occupied(directory)
        reader = _opened(file, means, stack)
        _require(file, reader, means, master, directory)
        staging = stack.enter_context(staging_directory(directory))
        try:
            found = _read(file, reader, _Place(staging, master, whole=True), means)
            if found.apart:
                raise _missing(found.apart)
            _put_keys(staging, found, master)
            lost = KEY_FILE in means.lost
            vkey = key_rotation.replace_lost_key(staging / FILE_NAME, master) if lost else None
            # Before it is in its place: a restore that was done has said so, once, whenever its process was killed.
            entry = recorded_losses.record_restore(
                staging / FILE_NAME, master, means.by, found.restored.made, old_key_is_lost=OLD_KEY in means.lost
            )
            place_all(staging, directory)
        except OSError as exc:
            raise BridgeError(
                "restore_failed", f"{directory} can't be restored: {exc.strerror}.", hint="Nothing has changed."
            ) from None
        return replace(found.restored, vkey=vkey or found.restored.vkey, entry=entry)


def check(file: Path, directory: Path, master: str | Sequence[str], means: RestoreOptions) -> Restored:
    """Try a backup, and restore nothing. The arguments and errors are those of `restore`.

    The ledger is verified in a temporary directory. Keys are written nowhere.
    """
    with ExitStack() as stack:
        stack.enter_context(_naming(file))
        reader = _opened(file, means, stack)
        _wanted(file, reader, means)
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mcp-bridge-")))
            return _read(file, reader, _Place(folder, master, directory), means).restored
        except OSError as exc:
            raise BridgeError(
                "restore_failed",
                f"{file} can't be checked: {exc.strerror}.",
                hint="TMPDIR names a directory with room for its ledger.",
            ) from None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a backup is read to.

    Attributes:
        folder: Where its files are written.
        master: Where the master key is, if it is neither in the backup nor added.
        beside: A state directory whose keys verify, if they fit and no others are there.
        whole: Whether files are written that verifying doesn't need.
    """

    folder: Path
    master: str | Sequence[str]
    beside: Path | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    """What was read: keys and credentials by name, and what there is to tell."""

    small: dict[str, bytes]
    apart: tuple[str, ...]
    restored: Restored


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Have errors about a backup name its file."""
    try:
        yield
    except BridgeError as exc:
        if exc.code not in {"backup_damaged", "backup_newer", "wrong_passphrase", "wrong_identity"}:
            raise
        raise BridgeError(exc.code, f"{file}: {exc.message}", hint=exc.hint, **exc.details) from None


def _opened(file: Path, means: RestoreOptions, stack: ExitStack) -> archive.Reader | None:
    """The archive in a file; None where it is a ledger's."""
    try:
        opened = stack.enter_context(file.open("rb"))
        beginning = opened.read(512)
        opened.seek(0)
        if beginning.startswith(_SQLITE):
            return None
        if beginning.startswith(age.INTRO):
            return archive.Reader(_decrypted(opened, means))
        if beginning.startswith(archive.FIRST_NAME.encode() + b"\0"):
            return archive.Reader(opened)
    except OSError as exc:
        raise unreadable(file, exc) from None
    raise BridgeError(
        "backup_unusable",
        f"{file} is no backup, and no ledger.",
        hint="If it was one, its beginning is damaged: take another one.",
    )


def _decrypted(opened: IO[bytes], means: RestoreOptions) -> age.Decrypted:
    header = age.Header.read(opened)
    if header.wants_passphrase:
        return age.Decrypted(opened, header.open_with_passphrase(means.passphrase()))
    return age.Decrypted(opened, header.open_with(means.identities))


def _wanted(
    file: Path, reader: archive.Reader | None, means: RestoreOptions
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that a backup says it needs, and those that are in it.

    Raises:
        BridgeError: `bad_argument`: what is said to be lost can't be, or isn't.
    """
    for name in means.lost:
        if name not in CAN_BE_LOST:
            raise BridgeError(
                "bad_argument",
                f"--lost {name[:100]}: nothing can be restored without it.",
                hint=f"What can be lost: {' and '.join(CAN_BE_LOST)}.",
            )
    there: tuple[str, ...] = ()
    if reader is None:
        with open_ledger(file) as ledger:
            wanted = needs(ledger)
    else:
        wanted, there = _names(reader, "needs"), _names(reader, "keys")
    # Whether an added signing key is this log's is seen once the ledger is read.
    at_hand = (*there, *(name for name in _added_keys(means) if name != KEY_FILE))
    for name in sorted(means.lost):
        if name in at_hand:
            raise _not_lost(name)
        if name not in wanted:
            raise BridgeError("bad_argument", f"--lost {name}: its ledger needs none.", hint="Leave --lost out.")
    return wanted, there


def _not_lost(name: str) -> BridgeError:
    return BridgeError("bad_argument", f"--lost {name}: it is there.", hint="Leave --lost out.")


def _require(
    file: Path, reader: archive.Reader | None, means: RestoreOptions, master: str | Sequence[str], directory: Path
) -> None:
    """See that all keys are there that a backup says it needs, before anything is made."""
    wanted, there = _wanted(file, reader, means)
    there = (*there, *_added_keys(means))
    if MASTER not in there and master != "file":
        # It is asked for now: it may not be there.
        master_key_sources.read_master(master, directory, make=False)
        there = (*there, MASTER)
    apart = tuple(name for name in wanted if name not in {*there, *means.lost})
    if apart:
        raise _missing(apart)


def _names(reader: archive.Reader, what: str) -> tuple[str, ...]:
    names = reader.first.get(what)
    if not isinstance(names, list) or not set(map(str, names)) <= set(KEYS):
        raise damaged("its list of keys is invalid")
    return tuple(map(str, names))


def _added_keys(means: RestoreOptions) -> tuple[str, ...]:
    """The keys that are added, by their names in a backup; that one is the log's is seen later."""
    if means.keys is None:
        return ()
    names = {name: (name,) for name in KEYS} | {KEY_FILE: (KEY_FILE, NEXT_KEY_FILE)}
    return tuple(name for name, files in names.items() if any(os.path.lexists(means.keys / file) for file in files))


def _missing(names: Sequence[str]) -> BridgeError:
    return BridgeError(
        "key_missing",
        f"The backup has no {', no '.join(names)}, without which its ledger can't be continued.",
        hint="Put copies of them into a directory, and name it with --keys. Of one that is lost for good, say --lost"
        f" NAME ({' or '.join(CAN_BE_LOST)}).",
        missing=list(names),
    )


def _read(file: Path, reader: archive.Reader | None, to: _Place, means: RestoreOptions) -> _Found:
    """Read a backup to its end, and verify it; of a ledger's file `reader` is None."""
    copy = to.folder / FILE_NAME
    if reader is None:
        small: dict[str, bytes] = {}
        # As it stands, with what is in its journal: a copy of the file alone would be without.
        ledger_copies.backup(file, copy, None, None)
    else:
        small = _unpack(reader, to.folder, whole=to.whole)
        if not copy.is_file():
            raise damaged("there is no ledger in it")
    with open_ledger(copy) as ledger:
        if means.keys is not None:
            _add_keys(small, ledger, means.keys, means.lost)
        root = _root(small, ledger, to)
        if reader is not None and root is not None:
            reader.check_mac(root)
        signed = _signed(small, ledger, to)
        there = {*small, *means.lost}
        if root is not None and (to.beside is None or to.master != "file"):
            # One beside it verifies, and isn't where it would be restored to.
            there.add(MASTER)
        apart = tuple(name for name in needs(ledger) if name not in there)
        origin, vkey = ledger.origin, ledger.vkey
        going = resumable(ledger.connection)
        rows = ledger.connection.execute("SELECT target FROM published ORDER BY target")
        targets = tuple(str(target) for (target,) in rows)
    log = file_verification.verify_file(
        copy, means.verifiers or ([Verifier.parse(vkey)] if signed else None), (), root
    ).log
    said = {} if reader is None else reader.manifest
    made = said.get("made")
    restored = Restored(
        origin,
        vkey,
        log.size,
        log.authenticated,
        made if isinstance(made, float) and abs(made) < _MAX_SECONDS else None,
        going,
        targets,
        tuple(name for name in KEYS if name in small),
        apart,
        tuple(name for name in CAN_BE_LOST if name in means.lost),
        witness_files.STATE_FILE in said.get("files", ()) and witness_head.KEY_FILE in small,
    )
    return _Found(small, apart, restored)


def resumable(connection: sqlite3.Connection) -> dict[str, int]:
    """How many executions can be resumed, by their stored status."""
    rows = connection.execute(
        "SELECT status, count(*) FROM executions WHERE status IN ('running', 'interrupted', 'suspended')"
        # An interrupted script without a key can't be; a suspended one has a key, if only a generated one.
        " AND NOT (status <> 'suspended' AND kind = 'script' AND key IS NULL) GROUP BY status"
    )
    return dict(rows.fetchall())


def _root(small: dict[str, bytes], ledger: Ledger, to: _Place) -> sealing.MasterKey | None:
    """The master key that a backup's ledger is under; None if it isn't there."""
    try:
        if (own := small.get(MASTER)) is None:
            master_key = master_key_sources.master_key(to.master, to.beside or to.folder, make=False)
        elif len(own) == KEY_BYTES:
            master_key = sealing.MasterKey(own)
        else:
            why = f"The {MASTER} that is there is damaged."
            raise BridgeError("key_unusable", why, hint="Name a directory that has it whole with --keys.")
        check_master(ledger.connection, master_key)
    except BridgeError as exc:
        if exc.code == "key_missing" or (MASTER not in small and to.beside is not None and exc.code == "key_unusable"):
            return None
        raise
    return master_key


def _add_keys(small: dict[str, bytes], ledger: Ledger, directory: Path, lost: frozenset[str]) -> None:
    """Add what is missing of a directory's keys and credentials.

    Raises:
        BridgeError: `bad_argument`: the signing key is there, and not lost.
    """
    if KEY_FILE not in small and (seed := signing_key(directory, ledger)) is not None:
        if KEY_FILE in lost:
            raise _not_lost(KEY_FILE)
        # By any of its names: a rotation may have died there.
        small[KEY_FILE] = seed
    for name in (*KEYS, *CREDENTIALS):
        # A signing key that is there although this log's is lost is another one: the log was rotated to it later.
        if name not in small and name not in lost and (data := read_private(directory / name)) is not None:
            small[name] = data


def _signed(small: dict[str, bytes], ledger: Ledger, to: _Place) -> bool:
    """Whether the key that a log is signed with is there."""
    if KEY_FILE not in small and to.beside is not None and signing_key(to.beside, ledger) is not None:
        # Somebody else's: it tells whose log it is, and isn't the backup's.
        return True
    if KEY_FILE in small and not signs(small[KEY_FILE], ledger):
        raise BridgeError(
            "key_unusable",
            f"The {KEY_FILE} that is there is not the key that the log is signed with, {ledger.vkey}.",
            hint=f"Name a directory that has it with --keys. If it is lost for good, say --lost {KEY_FILE}.",
        )
    return KEY_FILE in small


def _unpack(reader: archive.Reader, folder: Path, *, whole: bool) -> dict[str, bytes]:
    """Write a backup's files into a directory; keys and credentials by name."""
    small = {}
    for member in reader.members():
        if member.name in {*KEYS, *CREDENTIALS}:
            if member.size > MAX_SMALL_BYTES:
                raise damaged(f"{member.name} is too large")
            small[member.name] = reader.read(member.size)
        elif member.name in DATABASES or is_kept(member.name):
            if whole or member.name == FILE_NAME:
                _write(folder / member.name, member, reader)
        else:
            raise damaged(f"{member.name!r:.300} doesn't belong in it")
    return small


def _write(path: Path, member: archive.Member, reader: archive.Reader) -> None:
    private_directory(path.parent)
    with create_private(path) as file:
        while piece := reader.read(archive.PIECE_BYTES):
            file.write(piece)
    with suppress(OverflowError):
        os.utime(path, (member.changed, member.changed))


def _put_keys(staging: Path, found: _Found, master: str | Sequence[str]) -> None:
    """Put the keys beside a ledger that was read, the master key where the configuration says."""
    has_witness = (staging / witness_files.STATE_FILE).exists()
    for name, data in found.small.items():
        # A witness's key without what it has cosigned would be one that has forgotten it.
        if (name != MASTER or master == "file") and (name != witness_head.KEY_FILE or has_witness):
            write_private(staging / name, data)
    if (own := found.small.get(MASTER)) is not None and master != "file":
        _give_back(own, master, staging)
    if witness_head.KEY_FILE not in found.small:
        # Under another key it would be another witness, which hasn't seen any of that.
        (staging / witness_files.STATE_FILE).unlink(missing_ok=True)


def _give_back(own: bytes, master: str | Sequence[str], directory: Path) -> None:
    """See that the master key is where the configuration says, or put it there."""
    try:
        there = master_key_sources.read_master(master, directory, make=False)
    except BridgeError as exc:
        if exc.code != "key_missing" or master != "keyring":
            raise
        master_key_sources.store_in_keyring(own)
        return
    if there != own:
        what = "The system's keyring has" if master == "keyring" else "The command of master_key gives"
        raise BridgeError(
            "key_unusable",
            f"{what} another master key than the backup's.",
            hint='Restore it with master_key = "file" in [ledger].',
        )
