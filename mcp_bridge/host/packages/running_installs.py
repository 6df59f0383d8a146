"""Packages that a running script asks for, and the files of these, which go to its sandbox over the channel."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import MAX_POSITION
from mcp_bridge.sandbox.packages.package_set import LockedPackage, PackageSet
from mcp_bridge.sandbox.packages.requirements import bad_package, parse_requirement, parse_requirements

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp_bridge.sandbox.packages.installer import Installer, PackageRights

MAX_ADDED = 1000
"""Most packages that a sandbox may say it has been given."""


class RunningInstalls:
    """The packages that one script asks for while it runs.

    Args:
        installer: Resolves and fetches them.
        rights: What may be asked for.
        there: What the sandbox began with, as `name==version`; of two of one package, the first is there.
        is_same_python: Whether the sandbox has this host's Python, for which packages are found.
        notify: Told what takes time.
    """

    def __init__(
        self,
        installer: Installer,
        rights: PackageRights,
        there: Sequence[str],
        notify: Callable[[str], None] | None = None,
        *,
        is_same_python: bool = True,
    ) -> None:
        self._installer = installer
        self._rights = rights
        self._there = tuple(there)
        self._is_same_python = is_same_python
        self._notify = notify
        # A script can ask for many at once, and the bridge looks for few: its own wait for each other.
        self._turn = anyio.Lock()
        self._offered: dict[str, LockedPackage] = {}
        """The packages whose files the sandbox may have, by their hashes."""

    async def resolve(self, requirements: Sequence[Any], added: Sequence[Any]) -> list[dict[str, str]]:
        """The rows of the packages that a script is to be given, all of which are in the cache.

        Args:
            requirements: What it asks for, as it came from the sandbox.
            added: What it has been given before, as the sandbox says: what it gets agrees with that.

        Raises:
            BridgeError: `bad_package`, `package_native`; as `Installer.resolve` and `Installer.fetch`.
        """
        if not all(isinstance(one, str) for one in (*requirements, *added)):
            raise bad_package("The requirement of a package is a text.")
        if len(added) > MAX_ADDED:
            raise bad_package(f"{len(added)} packages are there; the limit is {MAX_ADDED}.")
        if not self._is_same_python:
            raise BridgeError(
                "packages_unavailable",
                "Packages can't be added here: the operator's image has another Python than the bridge.",
                hint="The operator adds them to the image.",
            )
        asked = parse_requirements(requirements)
        there = _each_once([*self._there, *added])
        async with self._turn:
            found = await self._installer.resolve(asked, self._rights, there, self._notify, replaces=False)
        packages = found.without(there)
        native = [one for one in packages.packages if not one.is_pure]
        if native:
            names = ", ".join(one.pin for one in native)
            wanted = ", ".join(repr(str(one)) for one in asked)
            raise BridgeError(
                "package_native",
                f"{names} can't be added to a sandbox that runs: what has compiled modules has to be there from the"
                " start.",
                hint=f"Ask for it in the call: packages=[{wanted}], or mcp-bridge run --package.",
            )
        for files in await self._installer.fetch(packages, self._notify):
            if files.native:
                raise BridgeError(
                    "package_native",
                    f"{files.name}=={files.version} has compiled modules, though its wheel is for any platform.",
                    hint="Ask for it in the call: packages=[...], or mcp-bridge run --package.",
                )
        return packages.rows()

    async def offer(self, rows: Sequence[dict[str, Any]]) -> None:
        """Let the sandbox have the files of packages: those of the answer that it is given.

        Args:
            rows: As `resolve` gave them, now or when the script ran before.

        Raises:
            BridgeError: As `Installer.fetch`.
        """
        try:
            packages = PackageSet.from_rows(rows)
        except (TypeError, ValueError):
            raise BridgeError("packages_failed", "The recorded packages can't be read.") from None
        await self._installer.fetch(packages, self._notify)
        self._offered |= {one.sha256: one for one in packages.packages}

    async def part(self, sha256: str, start: int) -> dict[str, Any]:
        """A part of a package's files, as `messages.PackageRead` has it.

        Raises:
            BridgeError: `bad_request`: it isn't of a package that was given; as `Installer.archive_part`.
        """
        package = self._offered.get(sha256)
        if package is None or not 0 <= start < MAX_POSITION:
            raise BridgeError("bad_request", "This sandbox was given no such package.")
        data, following = await self._installer.archive_part(package, start)
        return {"base64": base64.b64encode(data).decode(), "next": following}


def _each_once(pins: Sequence[str]) -> list[str]:
    """The first of each package, in normal form: an image has names as their packages write them."""
    found: dict[str, str] = {}
    for pin in pins:
        parsed = parse_requirement(pin)
        found.setdefault(parsed.name, str(parsed))
    return list(found.values())
