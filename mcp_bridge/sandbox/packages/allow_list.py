"""The operator's list of the packages that may be asked for, and the line that would allow one that isn't on it.

The list is a right. It says what scripts may ask for; whether what that needs comes with it is a setting.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.near_names import spelled_like
from mcp_bridge.sandbox.packages.requirements import exact_version, parse_requirement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packaging.specifiers import SpecifierSet

    from mcp_bridge.sandbox.packages.package_set import PackageSet
    from mcp_bridge.sandbox.packages.requirements import PackageRequirement

MAX_SHOWN = 20
"""Most entries of a list in an error."""


class AllowList:
    """A list of the packages that may be asked for.

    Args:
        entries: Valid requirements. A package that has several may be had by each of them.
        table: The table of the configuration that has the list, and its key there.
    """

    def __init__(self, entries: Sequence[str], table: str = "install", key: str = "allow") -> None:
        self._entries = tuple(entries)
        self._table, self._key = table, key
        self._by_name: dict[str, list[PackageRequirement]] = {}
        for entry in map(parse_requirement, entries):
            self._by_name.setdefault(entry.name, []).append(entry)

    @property
    def entries(self) -> tuple[str, ...]:
        """As they are configured."""
        return self._entries

    @property
    def names(self) -> frozenset[str]:
        """The names of the packages that are listed, normalised."""
        return frozenset(self._by_name)

    def has(self, name: str) -> bool:
        """Whether a package is listed, in whatever version."""
        return name in self._by_name

    def require(self, asked: PackageRequirement) -> None:
        """Refuse what isn't listed.

        Raises:
            BridgeError: `package_refused`, with the line that would allow it.
        """
        listed = self._by_name.get(asked.name)
        if listed is None:
            near = spelled_like(asked.name, list(self._by_name), count=1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise self._refused(f"The package {asked.name} isn't on the operator's list.{meant}", asked.name)
        listed = [entry for entry in listed if set(asked.extras) <= set(entry.extras)]
        if not listed:
            raise self._refused(
                f"The operator's list has {asked.name} without {', '.join(asked.extras)}.",
                f"{asked.name}[{','.join(asked.extras)}]",
            )
        wanted = exact_version(asked.versions)
        if wanted is not None and not any(entry.versions.contains(wanted, prereleases=True) for entry in listed):
            allowed = " or ".join(map(str, listed))
            raise self._refused(f"The operator's list has {allowed}, and not {asked}.", str(asked))

    def versions_of(self, name: str) -> SpecifierSet | None:
        """The versions that may be had of a listed package that has one entry; None for any, or where several do."""
        listed = self._by_name.get(name, [])
        return listed[0].versions if len(listed) == 1 and listed[0].versions else None

    def require_set(self, packages: PackageSet, *, only_listed: bool) -> None:
        """Refuse a set that has a package in a version, or with `only_listed` at all, that isn't listed.

        Raises:
            BridgeError: `package_refused`.
        """
        unlisted = [one.name for one in packages.packages if one.name not in self._by_name]
        if unlisted and only_listed:
            raise self._refused(
                f"These come along, and aren't on the operator's list: {', '.join(unlisted[:MAX_SHOWN])}.", *unlisted
            )
        for one in packages.packages:
            listed = self._by_name.get(one.name)
            if listed and not any(entry.versions.contains(one.version, prereleases=True) for entry in listed):
                allowed = " or ".join(map(str, listed))
                raise self._refused(f"{one.pin} would be needed, and the operator's list has {allowed}.", one.pin)

    def _refused(self, message: str, *missing: str) -> BridgeError:
        line = f"{self._key} = {json.dumps([*self._entries, *missing])}"
        shown = len(self._entries) + len(missing) <= MAX_SHOWN
        what = f"{line}" if shown else f"{', '.join(map(json.dumps, missing[:MAX_SHOWN]))} into {self._key}"
        return BridgeError(
            "package_refused",
            message,
            hint=f"To allow it, the operator writes below [{self._table}]: {what}",
            packages=list(missing[:MAX_SHOWN]),
        )
