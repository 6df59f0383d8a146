"""A backup: all of a state directory that can't be recreated, as one file.

What a state directory holds is listed here, once: what a backup has, and what it hasn't. The ledger is copied first:
what its entries tell of is on the disk before they are, so the files that are copied afterwards are all that it knows.
"""

from __future__ import annotations

import errno
import functools
import io
import logging
import os
import secrets
import shutil
import sqlite3
import stat
import tempfile
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcp_bridge.atomic_files import create_private, rename_noreplace, sync_directory
from mcp_bridge.backup import age, archive
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import FOLDERS, is_kept
from mcp_bridge.file_locks import locked_directory
from mcp_bridge.ledger.audit import file_verification, ledger_copies
from mcp_bridge.ledger.keys import master_key_sources
from mcp_bridge.ledger.keys.signing_key_files import KEY_FILE, NEXT_KEY_FILE, PUBLIC_KEY_FILE, own_vkey
from mcp_bridge.ledger.log.reading import open_ledger, require
from mcp_bridge.ledger.proofs.signing import Signer, Verifier
from mcp_bridge.ledger.storage import old_references, sealing
from mcp_bridge.ledger.storage.position_file import PositionFile
from mcp_bridge.ledger.storage.restore_staging import RESTORING
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.ledger.witness import witness_files, witness_head
from mcp_bridge.policy.secrets import secret_stores
from mcp_bridge.private_files import private_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mcp_bridge.backup.age import Recipient
    from mcp_bridge.ledger.log.reading import Ledger

logger = logging.getLogger(__name__)

MASTER = master_key_sources.FILE_NAME

OLD_KEY = old_references.KEY_FILE
"""Key file of a directory that only version 0.1.0 has used. Later versions move it into the ledger."""

KEYS = (MASTER, KEY_FILE, OLD_KEY)
"""What a ledger's keys are called, in a backup and in a state directory. A further one is one more name here, and in
`needs` if the ledger can't go on without it. What they are is not looked at: one may be sealed under another."""

CREDENTIALS = (secret_stores.FILE_NAME, secret_stores.PRINCIPAL_TOKENS_FILE_NAME, witness_head.KEY_FILE)
"""What else is in a backup with keys alone."""

DATABASES = (FILE_NAME, witness_files.STATE_FILE)
"""What is copied by SQLite. `FOLDERS` are the rest of what is in a backup."""

OF_THIS_LEDGER = ("ledger.head", PUBLIC_KEY_FILE, witness_head.HEAD_FILE)
"""Files that tell of the ledger beside them how far it had come, and its public key, and of the witness how much it
knows: in no backup, removed where one is restored, and made anew when that is opened."""

WORK = ".backup"
"""In the state directory: what a backup that is being made, or was killed, has copied and not encrypted yet."""

LEFT_OUT = (
    *OF_THIS_LEDGER,
    # Of a backup or a restore that is under way, or was killed.
    *(WORK, RESTORING),
    # Of the processes that are there: locks, containers and the images
    # that they share, pages that lead to a viewer, builds.
    *("owners", "run", "oci", "ui-*.html", "image-build-work-*"),
    *("files.total", "clock.doubted", "memory.lock", "image-build.lock", "login-locks"),
    *(f".{name}.lock" for name in secret_stores.FILE_NAMES),
    # A refresh token that was replaced since must not be used again: that would end the login, and look like a theft.
    secret_stores.LOGINS_FILE_NAME,
    # What is found out anew, and packages, of which the ledger has what each run was given.
    *("catalog", "probe-*", "doctor-*", "packages"),
    # Whoever can write to a backup's place could have the user trust their folders.
    "trust",
    # What was changed in this machine's clients.
    "client-setup",
    # The key that signs is in a backup under its own name; another is of a rotation that never was.
    NEXT_KEY_FILE,
    *(f"{name}-{kind}" for name in DATABASES for kind in ("wal", "shm")),
)
"""What is in no backup, as patterns of `fnmatch`."""

MAX_SMALL_BYTES = 16 << 20
"""Largest key file, or file of secrets."""

_TRIES = 5
"""How often a copy is made anew since the key was rotated meanwhile."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was made.

    Attributes:
        size: How many entries its ledger has.
        root: Their root.
        authenticated: Whether they are signed with the key that is here; it is missing otherwise.
        keys: The names of the keys that are in it.
        apart: The names of those that it needs to be restored, and that are not in it.
        files: How many artifacts, outputs and memories are in it.
    """

    size: int
    root: bytes
    authenticated: bool
    keys: tuple[str, ...]
    apart: tuple[str, ...]
    files: int


def back_up(directory: Path, master: str | Sequence[str], target: Path, to: str | Sequence[Recipient] | None) -> Backup:
    """Make a backup of a state directory, in use or not, and read it again.

    Args:
        directory: The state directory.
        master: Where the master key is, as `master_key_sources.master_key` takes it.
        target: The file, which must not be there yet.
        to: The passphrase or the recipients that it is encrypted to; None for one without keys, and in the clear.

    Raises:
        BridgeError: `backup_exists`, `backup_failed`, `backup_busy`, `bad_recipient`; `witness_alone`; `key_missing`,
            `key_unusable`; as `file_verification.verify_file`. Nothing is left then.
    """
    if os.path.lexists(target):
        raise _exists(target)
    _refuse_witness_alone(directory)
    require(directory / FILE_NAME)
    new = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}")
    try:
        with _work(directory) as work:
            made = _written(directory, master, work, new, to)
        rename_noreplace(new, target)
        sync_directory(target.parent)
    except FileExistsError:
        raise _exists(target) from None
    except OSError as exc:
        where = str(exc.filename or new)
        named = "" if where in {str(new), str(target.parent)} else f"{where}: "
        raise BridgeError("backup_failed", f"{target} can't be written: {named}{exc.strerror}.") from None
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)
    return made


def _refuse_witness_alone(directory: Path) -> None:
    state, key = directory / witness_files.STATE_FILE, directory / witness_head.KEY_FILE
    if state.exists() and not (directory / FILE_NAME).exists():
        raise BridgeError(
            "witness_alone",
            f"{directory} is a witness's, and has no ledger: there is nothing that `backup` could verify.",
            hint=f"Stop the witness, and copy {key.name}, and {state.name} with its -wal if there is one. Put back"
            " the newest copy only: with an older one, logs can be rolled back to that time.",
        )


@contextmanager
def _work(directory: Path) -> Iterator[Path]:
    """A directory for what a backup copies before it is encrypted: in the state directory, if it can be written to.

    Raises:
        BridgeError: `backup_busy`.
        OSError: The system call failed.
    """
    with locked_directory(directory) as is_mine:
        if not is_mine:
            raise BridgeError("backup_busy", f"Another backup of {directory} is being made.", hint="Wait for its end.")
        work = directory / WORK
        try:
            if os.path.lexists(work):
                # Of one that was killed.
                shutil.rmtree(work)
            work.mkdir(mode=0o700)
        except OSError as exc:
            if exc.errno not in {errno.EROFS, errno.EACCES}:
                raise
            with tempfile.TemporaryDirectory(prefix="mcp-bridge-") as folder:
                yield Path(folder)
            return
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def needs(ledger: Ledger) -> tuple[str, ...]:
    """The keys without which a ledger can't go on."""
    return (MASTER, KEY_FILE, OLD_KEY) if old_references.needs_key(ledger.connection) else (MASTER, KEY_FILE)


def signing_key(directory: Path, ledger: Ledger) -> bytes | None:
    """The private key that a log is signed with, if it is in a directory."""
    for name in (NEXT_KEY_FILE, KEY_FILE):
        with suppress(BridgeError):
            seed = private_key(directory / name, "", make=False)
            if signs(seed, ledger):
                return seed
    return None


def signs(seed: bytes, ledger: Ledger) -> bool:
    """Whether a log is signed with a private key."""
    try:
        return Signer(ledger.origin, Ed25519PrivateKey.from_private_bytes(seed)).vkey == ledger.vkey
    except ValueError:
        return False


def _written(
    directory: Path, master: str | Sequence[str], work: Path, new: Path, to: str | Sequence[Recipient] | None
) -> Backup:
    root = sealing.MasterKey(key := master_key_sources.read_master(master, directory, make=False))
    copy = work / FILE_NAME
    verdict, signer = _copied(directory / FILE_NAME, copy, root)
    with open_ledger(copy) as ledger:
        wanted, facts = needs(ledger), {"origin": ledger.origin, "vkey": ledger.vkey}
    known: dict[str, bytes | None] = {KEY_FILE: signer, MASTER: None}
    if isinstance(master, str) and master in master_key_sources.OWN_SOURCES:
        known[MASTER] = key
    if OLD_KEY not in wanted:
        # With it, values that were erased could be guessed.
        known[OLD_KEY] = None
    small = {} if to is None else _small(directory, known)
    in_it = tuple(name for name in KEYS if name in small)
    with create_private(new) as file:
        encrypted, file_key = (None, None) if to is None else age.encrypt(file, to)
        writer = archive.Writer(encrypted or file, {"needs": wanted, "keys": in_it})
        _add(writer, FILE_NAME, copy)
        for name, data in small.items():
            writer.add(name, len(data), time.time(), io.BytesIO(data))
        if (directory / witness_files.STATE_FILE).exists():
            _copy_database(directory / witness_files.STATE_FILE, work / witness_files.STATE_FILE)
            _add(writer, witness_files.STATE_FILE, work / witness_files.STATE_FILE)
        files = sum(_add(writer, str(path.relative_to(directory)), path) for path in _files_to_keep(directory))
        log = {"size": verdict.log.size, "root": verdict.log.root.hex()}
        writer.close({**facts, **log, "made": time.time()}, root)
        if encrypted is not None:
            encrypted.close()
        file.flush()
        os.fsync(file.fileno())
    _read_again(new, file_key, root)
    apart = tuple(name for name in wanted if name not in in_it)
    return Backup(verdict.log.size, verdict.log.root, verdict.log.authenticated, in_it, apart, files)


def _copied(path: Path, copy: Path, master: sealing.MasterKey) -> tuple[file_verification.FileVerdict, bytes | None]:
    """A verified copy of a ledger that may be in use, and the key that it is signed with, if that is there."""
    position = PositionFile(path)
    for left in reversed(range(_TRIES)):
        behind = _caught(position.load)
        try:
            trusted = [Verifier.parse(own_vkey(path))]
        except BridgeError as exc:
            if exc.code not in {"key_missing", "key_unusable"}:
                raise
            if exc.code == "key_unusable":
                if left:
                    # It may have been rotated each time that this looked.
                    continue
                # One that others can read, or that can't be read, is there.
                read_private(path.with_name(KEY_FILE))
                logger.warning("%s", exc)
            # Before a lost key is replaced there should be a copy.
            trusted = None
        verdict = ledger_copies.backup(path, copy, trusted, master)
        with open_ledger(copy) as ledger:
            key = signing_key(path.parent, ledger)
            behind = behind or _caught(functools.partial(position.check, ledger.connection))
        if key is not None or trusted is None:
            if behind is not None:
                # What there is of a ledger that is refused should be kept before its loss is accepted.
                logger.warning("%s", behind)
            return verdict, key
        copy.unlink()
    raise BridgeError("backup_failed", "The log's key was rotated each time that a copy was made.", hint="Try again.")


def _caught(check: Callable[[], None]) -> BridgeError | None:
    try:
        check()
    except BridgeError as exc:
        return exc
    return None


def _small(directory: Path, known: dict[str, bytes | None]) -> dict[str, bytes]:
    """Keys and credentials by name: those that are there."""
    contents = {}
    for name in (*KEYS, *CREDENTIALS):
        # The master key may come from elsewhere, and the file of one that did be left.
        data = known[name] if name in known else read_private(directory / name)
        if data is not None:
            contents[name] = data
    return contents


def read_private(path: Path) -> bytes | None:
    """The content of a small file that only this user can read; None if it is missing.

    Raises:
        BridgeError: `key_unusable`.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                why = "is not a file that this user alone can read"
                raise BridgeError(
                    "key_unusable", f"{path} {why}.", hint=f"chmod 600 {path}, if nobody else has read it."
                )
            data = file.read(MAX_SMALL_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise BridgeError("key_unusable", f"{path} can't be read: {exc.strerror}.") from None
    if len(data) > MAX_SMALL_BYTES:
        raise BridgeError("key_unusable", f"{path} has more than {MAX_SMALL_BYTES} bytes.")
    return data


def _copy_database(path: Path, copy: Path) -> None:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as opened:
            opened.execute("VACUUM INTO ?", (str(copy),))
    except sqlite3.Error as exc:
        raise BridgeError("backup_failed", f"{path} can't be copied: {exc}.") from None


def _files_to_keep(directory: Path) -> Iterator[Path]:
    def refuse(exc: OSError) -> None:
        # What is gone by now was swept. What can't be read would be missing without a word.
        if not isinstance(exc, FileNotFoundError):
            raise exc

    for folder in FOLDERS:
        for at, _, names in os.walk(directory / folder, onerror=refuse):
            for name in sorted(names):
                path = Path(at) / name
                if is_kept(str(path.relative_to(directory))):
                    yield path


def _add(writer: archive.Writer, name: str, path: Path) -> bool:
    """Add a file, which doesn't change once it has its name. False if it was removed meanwhile."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            # A link to somebody else's file: not part of the state.
            return False
        raise
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return False
        writer.add(name, status.st_size, status.st_mtime, _Named(file, path))
    return True


class _Named:
    """A file whose errors say which one it is. The target's are errors of the same kind."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path

    def read(self, size: int, /) -> bytes:
        try:
            return self._file.read(size)
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, str(self._path)) from None


def _read_again(path: Path, file_key: bytes | None, master: sealing.MasterKey) -> None:
    """See that what was written can be read: a disk that is full or fails need not say so at once."""
    try:
        with path.open("rb") as file:
            if file_key is not None:
                age.Header.read(file)
            reader = archive.Reader(file if file_key is None else age.Decrypted(file, file_key))
            for _ in reader.members():
                pass
            reader.check_mac(master)
    except BridgeError as exc:
        raise BridgeError("backup_failed", f"What was written can't be read again: {exc.message}") from None


def _exists(target: Path) -> BridgeError:
    return BridgeError("backup_exists", f"{target} is there already.", hint="Name a file that isn't.")
