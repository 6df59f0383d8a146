"""Packages for scripts: decided by the operator's list, resolved to an exact set once, and fetched into the cache."""

from __future__ import annotations

import errno
import logging
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from packaging.specifiers import SpecifierSet

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.image.host_tools import disk_full
from mcp_bridge.sandbox.image.rootfs import running_interpreter
from mcp_bridge.sandbox.packages.cache import WheelCache, request_hash
from mcp_bridge.sandbox.packages.requirements import exact_version, meets, parse_requirement
from mcp_bridge.sandbox.packages.resolver import resolve
from mcp_bridge.sandbox.packages.uv import Uv
from mcp_bridge.sandbox.packages.wheel_tree import overlay_packages, write_archive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mcp_bridge.sandbox.packages.allow_list import AllowList
    from mcp_bridge.sandbox.packages.install_settings import InstallSettings
    from mcp_bridge.sandbox.packages.package_set import LockedPackage, PackageSet
    from mcp_bridge.sandbox.packages.requirements import PackageRequirement
    from mcp_bridge.sandbox.packages.wheel_tree import WheelFiles

logger = logging.getLogger(__name__)

RESOLVES_AT_ONCE = 2
"""Sets of one bridge that are looked for at the same time: the machine is the operator's."""

FETCHES_AT_ONCE = 8
"""Wheels of one set that are fetched at the same time: most of what each takes is the index's time."""

PART_BYTES = 512 << 10
"""Bytes of a package's archive in one answer to a sandbox."""


@dataclass(frozen=True, slots=True)
class PackageRights:
    """What may be asked for: what every list allows.

    Attributes:
        lists: The operator's list, and perhaps a principal's.
        whole: Those of them that have to have what a package needs, too.
    """

    lists: tuple[AllowList, ...]
    whole: tuple[AllowList, ...] = ()

    def require(self, requirements: Sequence[PackageRequirement]) -> None:
        """Refuse what isn't allowed.

        Raises:
            BridgeError: `package_refused`.
        """
        for one in requirements:
            for allowed in self.lists:
                allowed.require(one)

    def require_set(self, packages: PackageSet) -> None:
        """Refuse a set that isn't allowed.

        Raises:
            BridgeError: `package_refused`.
        """
        for allowed in self.lists:
            allowed.require_set(packages, only_listed=allowed in self.whole)

    def allows(self, name: str) -> bool:
        """Whether a package may be asked for, in some version."""
        return all(allowed.has(name) for allowed in self.lists)

    @property
    def shown(self) -> tuple[str, ...]:
        """The entries that may be asked for, as the last list has them."""
        return tuple(entry for entry in self.lists[-1].entries if self.allows(parse_requirement(entry).name))


class Installer:
    """Resolves and fetches package sets.

    Args:
        state_dir: The state directory.
        limits: The operator's limits.
    """

    def __init__(self, state_dir: Path, limits: InstallSettings) -> None:
        self._limits = limits
        self.cache = WheelCache(state_dir, limits)
        self._resolving = anyio.Semaphore(RESOLVES_AT_ONCE)
        self._uv: Uv | None = None

    async def resolve(
        self,
        requirements: Sequence[PackageRequirement],
        rights: PackageRights,
        there: Sequence[str] = (),
        notify: Callable[[str], None] | None = None,
        *,
        replaces: bool = True,
    ) -> PackageSet:
        """The set that requirements stand for. The index is asked once in a while, however many ask here.

        Args:
            requirements: What is wanted.
            rights: What may be had.
            there: What the sandbox has, as `name==version`: the set agrees with it.
            notify: Told in a sentence what takes time.
            replaces: Whether what is asked for in another version than the sandbox has takes its place. If not, it is
                for a sandbox that runs: wheels without compiled modules are preferred.

        Raises:
            BridgeError: `package_refused`, `packages_unavailable`; as `resolver.resolve`.
        """
        rights.require(requirements)
        constraints = [pin for pin in there if not (replaces and _excludes(requirements, parse_requirement(pin)))]
        for allowed in rights.lists:
            names = {parse_requirement(entry).name for entry in allowed.entries}
            versions = {name: allowed.versions_of(name) for name in sorted(names)}
            constraints += [
                f"{name}{allowed_versions}" for name, allowed_versions in versions.items() if allowed_versions
            ]
        asked = [str(one) for one in requirements]
        interpreter = running_interpreter()
        request = request_hash(
            asked, sorted(constraints), interpreter.version, interpreter.abi, interpreter.system, replaces
        )
        try:
            async with self.cache.in_use(), self.cache.turn(request):
                packages = await anyio.to_thread.run_sync(self.cache.resolved, request)
                if packages is None or len(packages.packages) > self._limits.max_packages:
                    if notify is not None:
                        notify(f"looking for the packages {', '.join(asked)}")
                    async with self._resolving, self.cache.work_directory() as work:
                        packages = await resolve(
                            await self._found_uv(work),
                            asked,
                            constraints,
                            interpreter.executable,
                            work,
                            self._limits,
                            pure=not replaces,
                        )
                    if (unmet := meets(requirements, packages)) is not None:
                        raise BridgeError("packages_failed", f"uv found packages that don't meet {unmet}.")
                    await anyio.to_thread.run_sync(self.cache.keep_resolved, request, packages)
        except OSError as exc:
            raise _unwritable(exc) from exc
        rights.require_set(packages)
        # With the versions that were found: an entry may allow extras of some, and another one other versions.
        rights.require(_exact(requirements, packages))
        return packages

    async def fetch(self, packages: PackageSet, notify: Callable[[str], None] | None = None) -> list[WheelFiles]:
        """Have all wheels of a set in the cache; gives what they have, in the set's order.

        Raises:
            BridgeError: `packages_unavailable`; as `WheelCache.fetch`.
        """
        try:
            async with self.cache.in_use():
                return await self._fetch(packages, notify)
        except OSError as exc:
            raise _unwritable(exc) from exc

    async def _fetch(self, packages: PackageSet, notify: Callable[[str], None] | None) -> list[WheelFiles]:
        def missing() -> list[LockedPackage]:
            return [one for one in packages.packages if not self.cache.has(one)]

        absent = await anyio.to_thread.run_sync(missing)
        if absent:
            if notify is not None:
                notify(f"fetching {len(absent)} packages" if len(absent) > 1 else f"fetching {absent[0].pin}")
            async with self.cache.work_directory() as work:
                await self._found_uv(work)
        uv = self._uv or Uv(())
        limit = anyio.CapacityLimiter(FETCHES_AT_ONCE)
        found: dict[LockedPackage, WheelFiles] = {}
        failed: list[BridgeError | OSError] = []

        async def one(package: LockedPackage) -> None:
            try:
                found[package] = await self.cache.fetch(uv, package, limit)
            except (BridgeError, OSError) as exc:
                failed.append(exc)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for package in packages.packages:
                tasks.start_soon(one, package)
        if failed:
            raise failed[0]
        files = [found[package] for package in packages.packages]
        if sum(wheel.size for wheel in files) > 8 * self._limits.max_size:
            raise BridgeError(
                "packages_too_large",
                f"The files of the packages are too large: over {8 * self._limits.max_size / 1e6:.0f} MB.",
                hint="Ask for less. The operator can raise max_size in [install].",
            )
        return files

    async def overlay_packages(
        self, packages: PackageSet, site: Path, notify: Callable[[str], None] | None = None
    ) -> None:
        """Copy a set's files into a directory of packages.

        Raises:
            BridgeError: As `fetch`.
            OSError: They can't be copied.
        """

        def copy() -> None:
            for package in packages.packages:
                overlay_packages(site, self.cache.tree(package), package.name)

        async with self.cache.in_use():
            await self._fetch(packages, notify)
            await anyio.to_thread.run_sync(copy)

    async def archive_part(self, package: LockedPackage, start: int) -> tuple[bytes, int | None]:
        """A part of a package's files as a zip file, and where the next part begins; None at the end.

        Raises:
            BridgeError: As `WheelCache.fetch`.
        """

        def read() -> tuple[bytes, int | None]:
            if not self.cache.has(package):
                raise BridgeError("packages_failed", f"{package.pin} was removed from the cache.", hint="Try again.")
            with write_archive(self.cache.folder(package)).open("rb") as file:
                file.seek(start)
                data = file.read(PART_BYTES)
                return data, None if not file.read(1) else start + len(data)

        try:
            async with self.cache.in_use() if start == 0 else nullcontext():
                if start == 0 and not await anyio.to_thread.run_sync(self.cache.has, package):
                    async with self.cache.work_directory() as work:
                        await self.cache.fetch(await self._found_uv(work), package)
                return await anyio.to_thread.run_sync(read)
        except OSError as exc:
            raise _unwritable(exc) from exc

    async def _found_uv(self, work: Path) -> Uv:
        if self._uv is None:
            self._uv = await Uv.find(work)
        return self._uv


def _excludes(requirements: Sequence[PackageRequirement], pin: PackageRequirement) -> bool:
    """Whether a package is asked for in another version than it is there."""
    version = exact_version(pin.versions)
    return any(
        one.name == pin.name and version is not None and not one.versions.contains(version, prereleases=True)
        for one in requirements
    )


def _exact(requirements: Sequence[PackageRequirement], packages: PackageSet) -> list[PackageRequirement]:
    """Requirements with the versions that a set which meets them has."""
    versions = {one.name: one.version for one in packages.packages}
    return [one._replace(versions=SpecifierSet(f"=={versions[one.name]}")) for one in requirements]


def _unwritable(exc: OSError) -> BridgeError:
    if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
        return disk_full("while packages were fetched.")
    return BridgeError(
        "packages_failed",
        f"The cache of packages can't be used: {exc.strerror or exc}.",
        hint="The operator sees to the folder packages in the state directory.",
    )
