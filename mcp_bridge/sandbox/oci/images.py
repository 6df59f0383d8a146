"""The OCI driver's images: root file systems in the state directory, which all its sandboxes share, read-only.

An image is unpacked once, into `oci/images/DIGEST`, a folder that is named by the hash of the tar file that it came
from. The files belong to the user who runs the bridge, who has no id in a sandbox: even the sandbox's user 0
can't change them.

An image is verified when it is opened. Each file's inode, change time and further metadata are compared with those
after unpacking; no program can set a change time. If they differ, as after a restored backup, the contents are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import stat
import uuid
import weakref
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio.from_thread
import anyio.to_thread

from mcp_bridge.atomic_files import write_private
from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import try_lock
from mcp_bridge.sandbox.engine_errors import os_failure
from mcp_bridge.sandbox.image.store import (
    LABEL_MAGIC,
    LABEL_PACKAGES,
    LABEL_PROFILE,
    LABEL_PYTHON,
    LABEL_RECIPE,
    ImageInfo,
    ImageStore,
)

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

ROOT = "rootfs"
_DESCRIPTION = "image.json"
_LOCK = "in-use"
_PARTIAL = ".partial-"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Opened:
    """An image that is in use.

    Attributes:
        name: Its folder's name.
        root: Its root file system.
    """

    name: str
    root: Path


@dataclass(frozen=True, slots=True)
class _Description:
    """The content of `image.json`.

    Attributes:
        reference: The image's name; empty if another image has taken it.
        labels: Its labels.
        size: The size of all its files, in bytes.
        created: When it was created (RFC 3339).
        metadata, contents: Hashes of its files' metadata and contents.
    """

    reference: str
    labels: dict[str, str]
    size: int
    created: str
    metadata: str
    contents: str


class BundleImages(ImageStore):
    """The images in a state directory.

    Args:
        directory: The driver's directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "images"
        self._opened: dict[str, Opened] = {}
        self._locks: dict[str, Callable[[], object]] = {}
        """Release the locks of opened images, by their folders' names."""

    async def open(self, reference: str) -> Opened | None:
        """Open an image, in use as long as this object; None if it doesn't exist, or isn't intact."""
        if (known := self._opened.get(reference)) is not None:
            return known
        opened = await anyio.to_thread.run_sync(self._open, reference)
        if opened is not None:
            self._opened[reference] = opened
        return opened

    def _open(self, reference: str) -> Opened | None:
        for folder, description in self._intact([reference]):
            # A removal that has the lock has removed it before another can get it.
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not try_lock(lock, shared=True) or not (folder / _DESCRIPTION).exists():
                os.close(lock)
                continue
            release = weakref.finalize(self, os.close, lock)
            if folder.name in self._locks:
                # Under another name; one lock will do.
                release()
            else:
                self._locks[folder.name] = release
            logger.debug("the image %s is %s", description.reference, folder)
            return Opened(folder.name, folder / ROOT)
        return None

    def release(self, opened: Opened) -> None:
        """An image that was opened isn't used any more: it may be removed."""
        for reference in [reference for reference, one in self._opened.items() if one.name == opened.name]:
            del self._opened[reference]
        if (release := self._locks.pop(opened.name, None)) is not None:
            release()

    def opened(self, reference: str) -> Opened | None:
        """An image that is open, or None."""
        return self._opened.get(reference)

    async def inspect(self, references: Sequence[str]) -> list[ImageInfo]:
        """The images of these names or ids that are there and intact."""
        return await anyio.to_thread.run_sync(lambda: [_info(*found) for found in self._intact(references)])

    async def images(self) -> list[ImageInfo]:
        """All images, newest first; not verified."""
        found = await anyio.to_thread.run_sync(lambda: [_info(*found) for found in self._all()])
        return sorted(found, key=lambda image: image.created, reverse=True)

    async def add(self, tar: Path, reference: str, labels: Mapping[str, str]) -> None:
        """Unpack a root file system.

        Raises:
            OSError: It can't be written.
        """
        await anyio.to_thread.run_sync(self._add, tar, reference, dict(labels))

    async def remove(self, reference: str) -> None:
        """Remove an image.

        Raises:
            BridgeError: `engine_failed`: it is in use; as `os_failure`.
        """
        await anyio.to_thread.run_sync(self._remove_all, reference)

    async def remove_replaced(self, recipe: str) -> None:
        """Remove images of a recipe whose name another image has taken."""

        def remove() -> None:
            for folder, description in self._all():
                if not description.reference and description.labels.get(LABEL_RECIPE) == recipe:
                    try:
                        _remove(folder)
                    except OSError as error:
                        # The next build tries again.
                        logger.warning("the replaced image in %s can't be removed: %s", folder, error)

        await anyio.to_thread.run_sync(remove)

    def _all(self) -> Iterator[tuple[Path, _Description]]:
        if not self._directory.is_dir():
            return
        for folder in sorted(self._directory.iterdir()):
            if not folder.name.startswith(_PARTIAL) and (description := _read(folder)) is not None:
                yield folder, description

    def _intact(self, references: Sequence[str]) -> Iterator[tuple[Path, _Description]]:
        for folder, description in self._all():
            if {description.reference, folder.name}.isdisjoint(references):
                continue
            if (fault := _fault(folder, description)) is None:
                yield folder, description
            else:
                logger.warning("the image %s in %s %s, and isn't used", description.reference, folder, fault)

    def _add(self, tar: Path, reference: str, labels: dict[str, str]) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._directory.glob(f"{_PARTIAL}*"):
            # Builds hold a lock, so this is a killed one's.
            shutil.rmtree(left, ignore_errors=True)
        with tar.open("rb") as file:
            folder = self._directory / hashlib.file_digest(file, "sha256").hexdigest()
        known = _read(folder)
        if known is None or _fault(folder, known) is not None:
            known = self._unpack(tar, folder)
        known = replace(known, reference=reference, labels=labels, created=datetime.now(UTC).isoformat())
        for other, description in self._all():
            if description.reference == reference and other != folder:
                _write(other, replace(description, reference=""))
        _write(folder, known)

    def _unpack(self, tar: Path, folder: Path) -> _Description:
        partial = self._directory / f"{_PARTIAL}{uuid.uuid4().hex}"
        try:
            root = partial / ROOT
            root.mkdir(parents=True)
            root.chmod(0o755)  # whatever the umask is
            import tarfile  # noqa: PLC0415  (an idle bridge has unpacked nothing)

            with tarfile.open(tar) as archive:
                for member in archive:
                    anyio.from_thread.check_cancelled()
                    _extract(archive, member, root)
            description = _Description("", {}, _size(root), "", _metadata(root), _contents(root))
            # The files are on the disk before the description that vouches for them.
            os.sync()
            _write(partial, description)
            if folder.exists():
                folder.rename(self._directory / f"{_PARTIAL}{uuid.uuid4().hex}")
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        # Renaming has changed none of the metadata: those of the root directory's parent aren't among them.
        return description

    def _remove_all(self, reference: str) -> None:
        for folder, description in self._all():
            if reference not in {description.reference, folder.name}:
                continue
            try:
                is_gone = _remove(folder)
            except OSError as error:
                raise os_failure(error, f"{error.filename or folder} can't be removed") from error
            if not is_gone:
                raise BridgeError(
                    "engine_failed",
                    f"The image {reference} is in use by a bridge that is running.",
                    hint="End what uses it, and try again.",
                )


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    """Extract a member of our own tar file, which has parents before their content and three types of members."""
    path = root / member.name
    if member.isdir():
        path.mkdir(exist_ok=True)
        path.chmod(member.mode)
    elif member.issym():
        path.symlink_to(member.linkname)
    else:
        source = archive.extractfile(member)
        if source is None:
            raise OSError(f"{member.name} is no file")
        with source, path.open("xb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
            os.fchmod(file.fileno(), member.mode)
        os.utime(path, (member.mtime, member.mtime))


def _read(folder: Path) -> _Description | None:
    try:
        data: dict[str, Any] = json.loads((folder / _DESCRIPTION).read_text())
        return _Description(**data)
    except (OSError, ValueError, TypeError):
        return None


def _write(folder: Path, description: _Description) -> None:
    write_private(folder / _DESCRIPTION, json.dumps(asdict(description)).encode(), durable=True)


def _remove(folder: Path) -> bool:
    """Remove an image unless a bridge has it in use."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not try_lock(lock):
            return False
        # From here on it isn't listed.
        (folder / _DESCRIPTION).unlink(missing_ok=True)
        shutil.rmtree(folder)
        return True
    finally:
        os.close(lock)


def _info(folder: Path, description: _Description) -> ImageInfo:
    labels = description.labels
    packages = labels.get(LABEL_PACKAGES, "")
    return ImageInfo(
        reference=description.reference or folder.name,
        id=folder.name,
        size=description.size,
        profile=labels.get(LABEL_PROFILE, ""),
        python=labels.get(LABEL_PYTHON, ""),
        magic=labels.get(LABEL_MAGIC, ""),
        packages=tuple(packages.split(",")) if packages else (),
        created=description.created,
        labels=labels,
    )


_intact: set[tuple[str, str]] = set()
"""Folders that this process has verified, with the metadata that it has found."""


def _fault(folder: Path, description: _Description) -> str | None:
    """What is wrong with an image, to follow its name; None if it is intact."""
    root = folder / ROOT
    key = (str(folder), description.metadata)
    if key in _intact:
        return None
    try:
        metadata = _metadata(root)
        if metadata != description.metadata and _contents(root) != description.contents:
            return "was changed"
    except OSError as error:
        return f"can't be read ({error})"
    if metadata != description.metadata:
        # What can't be written costs the next process the same comparison.
        with contextlib.suppress(OSError):
            _write(folder, replace(description, metadata=metadata))
    _intact.update({key, (str(folder), metadata)})
    return None


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """A directory and all below it, in a fixed order, by their relative paths."""
    pending = [""]
    yield "", root.lstat()
    while pending:
        here = pending.pop()
        with os.scandir(root / here) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                status = entry.stat(follow_symlinks=False)
                path = f"{here}/{entry.name}" if here else entry.name
                yield path, status
                if stat.S_ISDIR(status.st_mode):
                    pending.append(path)


def _size(root: Path) -> int:
    return sum(status.st_size for _, status in _walk(root) if stat.S_ISREG(status.st_mode))


def _metadata(root: Path) -> str:
    digest = hashlib.sha256()
    for path, status in _walk(root):
        row = (
            path,
            status.st_mode,
            status.st_uid,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
        )
        digest.update(repr(row).encode())
    return digest.hexdigest()


def _contents(root: Path) -> str:
    digest = hashlib.sha256()
    for path, status in _walk(root):
        here = root / path
        digest.update(repr((path, status.st_mode, status.st_uid == os.getuid())).encode())
        if stat.S_ISREG(status.st_mode):
            with here.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        elif stat.S_ISLNK(status.st_mode):
            digest.update(repr(str(here.readlink())).encode())
    return digest.hexdigest()
