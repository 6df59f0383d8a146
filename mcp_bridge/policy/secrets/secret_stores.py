"""Secrets in a file that only its owner can read; `system_keyring` is the other place where the bridge keeps them."""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from mcp_bridge.atomic_files import write_private
from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import lock
from mcp_bridge.private_files import state_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")

FILE_NAME = "secrets.json"

LOGINS_FILE_NAME = "logins.json"
"""What logins to remote servers are kept in: a file of its own, so that no `[secrets.NAME]` can name one."""

PRINCIPAL_TOKENS_FILE_NAME = "principal-tokens.json"
"""What is kept of the tokens that principals authenticate with: hashes, in a file of its own for the same reason."""

FILE_NAMES = (FILE_NAME, LOGINS_FILE_NAME, PRINCIPAL_TOKENS_FILE_NAME)

_FORMAT = 1

MAX_FILE_BYTES = 16 << 20

LOCK_SECONDS = 5.0
"""How long a writer waits for another one, which needs milliseconds: longer, and it is stopped or gone astray."""

_LOCK_POLL_SECONDS = 0.02

_MENDS = {errno.ENOSPC: "Free the disk", errno.EDQUOT: "Free the disk", errno.EROFS: "Mount it writable"}
"""What to do about errors of writing, but for those that come from whose a file is."""


class SecretFile:
    """Secrets in a file of the state directory: `{"format": 1, "secrets": {id: plaintext}}`, mode 0600.

    Args:
        state_dir: The state directory; made by the first write.
        name: The file's name.
        remedy: What to do when its content is lost, for hints.
    """

    def __init__(self, state_dir: Path, name: str = FILE_NAME, remedy: str = "set the secrets again") -> None:
        self.path = state_dir / name
        self._directory = state_dir
        self._remedy = remedy

    def stamp(self) -> object | None:
        """A value that differs once the file has been written; None if there is no file."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        # Each write makes a new file.
        return status.st_ino, status.st_mtime_ns, status.st_size

    def get(self, secret_id: str) -> str | None:
        """The secret, or None if there is none of that id.

        Raises:
            BridgeError: As `read`.
        """
        return self.read().get(secret_id)

    def read(self) -> dict[str, str]:
        """The secrets by id; none where there is no file.

        Raises:
            BridgeError: `secrets_file_unsafe` (somebody else owns it or can read it), `secrets_file_damaged`,
                `secrets_file_unreadable`.
        """
        try:
            # Not through a link, which others may point elsewhere, and not stuck on a pipe.
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        except OSError as exc:
            if self.path.is_symlink():
                raise self._unsafe("is a symbolic link", f"Put the file itself at {self.path}.") from None
            raise self._unreadable(exc) from None
        try:
            # Of the open file: what has that name may change meanwhile.
            self._check(os.fstat(fd))
            with os.fdopen(fd, "rb", closefd=False) as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as exc:
            raise self._unreadable(exc) from None
        finally:
            os.close(fd)
        return self._decode(data)

    def set(self, secret_id: str, plaintext: str) -> None:
        """Keep a secret, in place of one of that id.

        Raises:
            BridgeError: As `read`; `secrets_file_busy`; `secrets_file_unwritable`, in which case nothing has changed.
        """
        self.edit(lambda secrets: secrets.update({secret_id: plaintext}))

    def remove(self, secret_id: str) -> bool:
        """Forget a secret; whether there was one.

        Raises:
            BridgeError: As `set`.
        """
        # Where it isn't there, nothing is made: neither a directory nor a lock in it.
        return secret_id in self.read() and self.edit(lambda secrets: secrets.pop(secret_id, None) is not None)

    def edit(self, change: Callable[[dict[str, str]], T]) -> T:
        """Change the secrets, with no other writer in between; what `change` returns.

        Args:
            change: Changes the secrets in place. Nothing is written if it raises, or leaves them as they were.

        Raises:
            BridgeError: As `set`; as `change`.
        """
        with self._locked():
            before = self.read()
            secrets = dict(before)
            outcome = change(secrets)
            if secrets != before:
                self._write(secrets)
            return outcome

    def _check(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise self._unsafe("is no regular file", "Move it away.")
        if status.st_uid != os.geteuid():
            raise self._unsafe(
                f"belongs to the user id {status.st_uid}, and this process runs as {os.geteuid()}",
                f"Run as that user, or move {self.path} away and {self._remedy}.",
            )
        if status.st_mode & 0o077:
            raise self._unsafe(
                f"can be read or written by others (mode {stat.S_IMODE(status.st_mode):04o})",
                f"chmod 600 {self.path} mends it; replace the secrets, if somebody may have read them.",
            )

    def _decode(self, data: bytes) -> dict[str, str]:
        try:
            content = json.loads(data.decode("utf-8")) if len(data) <= MAX_FILE_BYTES else None
        except (ValueError, RecursionError):
            content = None
        secrets = content.get("secrets") if isinstance(content, dict) and content.get("format") == _FORMAT else None
        if not isinstance(secrets, dict) or not all(isinstance(value, str) for value in secrets.values()):
            raise BridgeError(
                "secrets_file_damaged",
                f"{self.path} is not what this version writes.",
                hint=f"Move it away and {self._remedy}.",
                file=str(self.path),
            )
        return secrets

    def _write(self, secrets: dict[str, str]) -> None:
        data = json.dumps({"format": _FORMAT, "secrets": secrets}, indent=1, sort_keys=True).encode()
        # One name for all: the lock is held, so what has it was left by a writer that died, secrets and all.
        new = self.path.with_name(f".{self.path.name}.new")
        try:
            if len(data) > MAX_FILE_BYTES:
                raise OSError(errno.EFBIG, f"it would be over {MAX_FILE_BYTES} bytes")
            write_private(self.path, data, durable=True, temporary=new)
        except OSError as exc:
            raise self._unwritable(exc) from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A file of its own: the one that is locked must not be replaced. The system lets go when its holder dies.
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            state_directory(self._directory)
            path = self._directory / f".{self.path.name}.lock"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise self._unwritable(exc) from None
        try:
            try:
                is_ours = lock(fd, seconds=LOCK_SECONDS)
            except OSError as exc:
                raise self._unwritable(exc) from None
            if not is_ours:
                raise BridgeError(
                    "secrets_file_busy",
                    f"Another process has been writing {self.path} for {LOCK_SECONDS:g} s.",
                    hint=f"Find it with: fuser {path}",
                    file=str(self.path),
                )
            yield
        finally:
            os.close(fd)

    def _unsafe(self, why: str, hint: str) -> BridgeError:
        return BridgeError("secrets_file_unsafe", f"{self.path} {why}.", hint=hint, file=str(self.path))

    def _unreadable(self, exc: OSError) -> BridgeError:
        hint = "See to the owner and mode of it and of its directory."
        if exc.errno == errno.ENOTDIR:
            hint = "Set MCP_BRIDGE_STATE_DIR, or state_dir in the configuration, to a directory."
        return BridgeError(
            "secrets_file_unreadable", f"{self.path} can't be read: {exc.strerror}.", hint=hint, file=str(self.path)
        )

    def _unwritable(self, exc: OSError) -> BridgeError:
        mend = _MENDS.get(exc.errno or 0, "See to its owner and mode")
        if not os.path.lexists(self.path):
            # Where there is a file, another directory wouldn't have it: a token that is revoked there stays good here.
            mend = f"{mend}, or set MCP_BRIDGE_STATE_DIR to a directory that can be written"
        hint = f"{mend}."
        if exc.errno == errno.EFBIG:
            hint = "Shorten what is to be kept, or remove something first."
        return BridgeError(
            "secrets_file_unwritable",
            f"{self.path} can't be written: {exc.strerror}.",
            hint=f"Nothing has changed. {hint}",
            file=str(self.path),
        )
