"""The cache of wheels, in the state directory: each fetched once, known by its hash, and kept while there is room.

    packages/wheels/SHA256/     a wheel's files (`tree`), and `manifest.json`, which is written last
    packages/resolved/HASH.json what some requirements stand for, and since when
    packages/images/DIGEST      when the image of a package set was used last
    packages/locks/             locks, by the first digits of a name
    packages/in-use             locked by all that use the cache, and alone by who removes from it

Several processes share it. A wheel is put together beside its place and renamed; what a killed process has left is
removed by the next one that finds itself alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from mcp_bridge.atomic_files import write_private
from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import try_lock
from mcp_bridge.private_files import state_directory
from mcp_bridge.sandbox.image.rootfs import running_interpreter
from mcp_bridge.sandbox.packages.package_set import LockedPackage, PackageSet
from mcp_bridge.sandbox.packages.uv import Uv, failure
from mcp_bridge.sandbox.packages.wheel_tree import TREE, WheelFiles, cleaned, read_manifest, write_manifest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

    from mcp_bridge.sandbox.packages.install_settings import InstallSettings

POLL_SECONDS = 0.05
"""Interval for trying a lock that another process has."""

UNPACKED = 8
"""How many times larger than its wheels a set may be: source code is a fifth of its size when it is packed."""

MAX_RESOLVED = 1000
"""Most requests of which it is kept what they stand for: a script can think up any number."""

_PARTIAL = ".partial-"


class WheelCache:
    """The wheels of a state directory.

    Args:
        state_dir: The state directory.
        limits: How much there may be, and how long it may take.
    """

    def __init__(self, state_dir: Path, limits: InstallSettings) -> None:
        self._state_dir = state_dir
        self._root = state_dir / "packages"
        self._limits = limits
        self._syncing = anyio.Lock()
        self._written = self._synced = 0
        """How many wheels were written, and how many of these are on the disk."""

    @asynccontextmanager
    async def in_use(self) -> AsyncGenerator[None]:
        """Keep what is in the cache from being removed. Afterwards, what is too much is removed if nobody uses it."""
        await anyio.to_thread.run_sync(self._make)
        async with self._locked(self._root / "in-use", shared=True):
            yield
        with anyio.CancelScope(shield=True), suppress(OSError):
            await anyio.to_thread.run_sync(self._tidy)

    def _make(self) -> None:
        state_directory(self._state_dir)
        for name in ("wheels", "resolved", "images", "locks"):
            (self._root / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncGenerator[None]:
        """Do something about a name, a hexadecimal hash, as the only one; a killed process blocks nobody."""
        async with self._locked(self._root / "locks" / name[:2]):
            yield

    @asynccontextmanager
    async def _locked(self, path: Path, *, shared: bool = False) -> AsyncGenerator[None]:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with anyio.move_on_after(2 * self._limits.timeout) as scope:
                while not try_lock(fd, shared=shared):  # noqa: ASYNC110 - another process has it
                    await anyio.sleep(POLL_SECONDS)
            if scope.cancelled_caught:
                raise BridgeError(
                    "packages_timeout",
                    "Another process has been working at the same packages for too long.",
                    hint="Try again.",
                )
            yield
        finally:
            os.close(fd)

    @asynccontextmanager
    async def work_directory(self) -> AsyncGenerator[Path]:
        """An empty directory, which is removed afterwards."""
        work = self._root / "wheels" / f"{_PARTIAL}{uuid.uuid4().hex}"
        await anyio.to_thread.run_sync(lambda: work.mkdir(mode=0o700))
        try:
            yield work
        finally:
            # Shielded: a cancelled download would otherwise leave its files behind.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(lambda: shutil.rmtree(work, ignore_errors=True))

    # --- what requirements stand for ---

    def resolved(self, request: str) -> PackageSet | None:
        """The set that a request stood for, if that isn't too long ago.

        Args:
            request: The hash of all that decides it.
        """
        try:
            data = json.loads((self._root / "resolved" / f"{request}.json").read_text())
            age = time.time() - data["at"]
            return PackageSet.from_rows(data["packages"]) if 0 <= age < self._limits.fresh else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def keep_resolved(self, request: str, packages: PackageSet) -> None:
        """Write down what a request stands for.

        Raises:
            OSError: It can't be written.
        """
        data = json.dumps({"at": time.time(), "packages": packages.rows()}).encode()
        write_private(self._root / "resolved" / f"{request}.json", data)

    # --- wheels ---

    def folder(self, package: LockedPackage) -> Path:
        """Where a wheel is, or would be."""
        return self._root / "wheels" / package.sha256

    def tree(self, package: LockedPackage) -> Path:
        """The directory of a wheel's files."""
        return self.folder(package) / TREE

    def has(self, package: LockedPackage) -> bool:
        """Whether a wheel is there."""
        return read_manifest(self.folder(package)) is not None

    async def fetch(self, uv: Uv, package: LockedPackage, turns: anyio.CapacityLimiter | None = None) -> WheelFiles:
        """A wheel's files, which are downloaded if they aren't there.

        Args:
            uv: Downloads them.
            package: The wheel.
            turns: How many are downloaded at the same time; None for this one alone.

        Raises:
            BridgeError: `package_changed`, `package_unresolved`, `bad_wheel`, `index_unreachable`,
                `packages_too_large`, `packages_timeout`, `disk_full`.
            OSError: The cache can't be written.
        """
        folder = self.folder(package)
        async with AsyncExitStack() as held:
            async with turns or nullcontext():
                await held.enter_async_context(self.turn(package.sha256))
                if (known := await anyio.to_thread.run_sync(read_manifest, folder)) is not None:
                    with suppress(OSError):
                        os.utime(folder)
                    return known
                work = await held.enter_async_context(self.work_directory())
                files = await self._download(uv, package, work)
            await anyio.to_thread.run_sync(_keep_tree_only, work)
            # The files are on the disk before the manifest that vouches for them.
            await self._on_disk()
            await anyio.to_thread.run_sync(_put, work, folder, files)
            return files

    async def _on_disk(self) -> None:
        """Have what was written until now on the disk. Those who come while that is done share the next time."""
        self._written += 1
        mine = self._written
        async with self._syncing:
            if self._synced < mine:
                before = self._written
                await anyio.to_thread.run_sync(os.sync)
                self._synced = before

    async def _download(self, uv: Uv, package: LockedPackage, work: Path) -> WheelFiles:
        lock = work / "lock.txt"
        await anyio.to_thread.run_sync(lock.write_text, f"{package.pin} --hash=sha256:{package.sha256}\n")
        limit = UNPACKED * self._limits.max_size
        result = await uv.run(
            *("pip", "install", "--target", TREE, "--no-deps", "--require-hashes"),
            *("--only-binary", ":all:", "--link-mode", "copy", "--cache-dir", "cache"),
            *("--python", str(running_interpreter().executable), "-r", lock.name),
            work=work,
            seconds=self._limits.timeout,
            max_bytes=2 * limit,
        )
        if result.returncode != 0:
            raise failure(result)
        return await anyio.to_thread.run_sync(cleaned, work / TREE, package, limit)

    def modules(self) -> Iterator[tuple[str, WheelFiles]]:
        """What is in the cache: each wheel's hash, and what it has."""
        with suppress(OSError):
            for folder in sorted((self._root / "wheels").iterdir()):
                if not folder.name.startswith(".") and (files := read_manifest(folder)) is not None:
                    yield folder.name, files

    # --- images ---

    def image_used(self, digest: str) -> None:
        """Note that the image of a set is used now."""
        with suppress(OSError):
            (self._root / "images").mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._root / "images" / digest).touch(mode=0o600)

    def last_use(self, digest: str) -> float:
        """When the image of a set was used last, in seconds since 1970; 0 if that isn't known."""
        try:
            return (self._root / "images" / digest).stat().st_mtime
        except OSError:
            return 0.0

    def forget_image(self, digest: str) -> None:
        """The image of a set is removed."""
        with suppress(OSError):
            (self._root / "images" / digest).unlink()

    # --- room ---

    def _tidy(self) -> None:
        """Remove what was left, and what is too much, the wheels that were used longest ago first."""
        fd = os.open(self._root / "in-use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not try_lock(fd):
                return
            sizes: list[tuple[float, int, Path]] = []
            for folder in (self._root / "wheels").iterdir():
                if folder.name.startswith(".") or (files := read_manifest(folder)) is None:
                    shutil.rmtree(folder, ignore_errors=True)
                else:
                    sizes.append((folder.stat().st_mtime, files.size, folder))
            total = sum(size for _, size, _ in sizes)
            for _, size, folder in sorted(sizes):
                if total <= self._limits.cache_size:
                    break
                total -= size
                # From here on it isn't whole.
                (folder / "manifest.json").unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
            self._tidy_resolved()
        finally:
            os.close(fd)

    def _tidy_resolved(self) -> None:
        oldest = time.time() - self._limits.fresh
        files = sorted(((file.stat().st_mtime, file) for file in (self._root / "resolved").iterdir()), reverse=True)
        for number, (modified, file) in enumerate(files):
            if modified < oldest or number >= MAX_RESOLVED:
                file.unlink(missing_ok=True)


def _keep_tree_only(work: Path) -> None:
    """Remove what uv has written beside a wheel's files."""
    for entry in list(os.scandir(work)):
        if entry.name != TREE:
            shutil.rmtree(entry.path) if entry.is_dir() else (work / entry.name).unlink()


def _put(work: Path, folder: Path, files: WheelFiles) -> None:
    """Put a wheel, whose files are on the disk, into its place."""
    write_manifest(work, files)
    if folder.exists():
        # Without its manifest: a removal was interrupted.
        shutil.rmtree(folder)
    work.rename(folder)


def request_hash(*parts: object) -> str:
    """The hash of all that decides what requirements stand for."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
