"""Requirements of packages (PEP 508), as scripts ask for them, and the operator's list of what may be asked for.

A requirement is a name with versions, and nothing else: an address, a path, an option or a marker is refused.
The list is a right. It says what scripts may ask for; whether what that needs comes with it is a setting.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidName, canonicalize_name

from mcp_bridge.errors import BridgeError
from mcp_bridge.near_names import spelled_like

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    from mcp_bridge.sandbox.packages.locked import PackageSet

MAX_REQUIREMENTS = 50
"""Most requirements of one request."""

MAX_CHARS = 200
"""Longest requirement."""

MAX_SHOWN = 20
"""Most entries of a list in an error."""

_OPERATORS = frozenset({"==", "!=", "<=", ">=", "<", ">", "~="})
_HINT = "Write a name, and versions if need be: polars, requests>=2,<3, or httpx[http2]==0.28.1"


class PackageRequirement(NamedTuple):
    """A valid requirement.

    Attributes:
        name: The package's normalised name.
        extras: The extras that are wanted, sorted.
        versions: The versions that will do.
    """

    name: str
    extras: tuple[str, ...]
    versions: SpecifierSet

    def __str__(self) -> str:
        """The requirement in its normal form."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}{self.versions}"


def parse_requirement(text: str) -> PackageRequirement:
    """Decode a requirement.

    Raises:
        BridgeError: `bad_package`.
    """
    if len(text) > MAX_CHARS:
        raise bad_package(f"A requirement has {len(text)} characters; the limit is {MAX_CHARS}.")
    if not (text.isascii() and text.isprintable()):
        raise bad_package(
            f"{text!r} is not the requirement of a package: it has other characters than a name can have."
        )
    try:
        parsed = Requirement(text)
    except InvalidRequirement:
        raise bad_package(f"{text!r} is not the requirement of a package.") from None
    if parsed.url is not None:
        raise bad_package(f"{text!r} names an address: packages come from the operator's index alone.")
    if parsed.marker is not None:
        raise bad_package(f"{text!r} has a condition, and each requirement is meant.")
    if any(one.operator not in _OPERATORS for one in parsed.specifier):
        raise bad_package(f"{text!r} compares versions as texts.")
    try:
        extras = tuple(sorted({canonicalize_name(extra, validate=True) for extra in parsed.extras}))
        return PackageRequirement(canonicalize_name(parsed.name, validate=True), extras, parsed.specifier)
    except InvalidName:
        raise bad_package(f"{text!r} is not the name of a package.") from None


def bad_package(message: str) -> BridgeError:
    """The error for what can't be a requirement."""
    return BridgeError("bad_package", message, hint=f"{_HINT}.")


def parse_requirements(texts: Sequence[str]) -> tuple[PackageRequirement, ...]:
    """Decode the requirements of a request, each once, in the order of their names.

    Raises:
        BridgeError: `bad_package`.
    """
    if len(texts) > MAX_REQUIREMENTS:
        raise bad_package(f"{len(texts)} packages are asked for; the limit is {MAX_REQUIREMENTS}.")
    if not texts:
        raise bad_package("No package is named.")
    found = {str(parsed): parsed for parsed in map(parse_requirement, texts)}
    return tuple(found[text] for text in sorted(found))


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


def exact_version(versions: SpecifierSet) -> Version | None:
    """The one version that a specifier allows; None if it may allow several."""
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415

    for one in versions:
        if one.operator == "==" and not one.version.endswith(".*"):
            try:
                return Version(one.version)
            except InvalidVersion:
                return None
    return None


def meets(requirements: Iterable[PackageRequirement], packages: PackageSet) -> str | None:
    """The first requirement that a set doesn't meet, or None."""
    there = {one.name: one.version for one in packages.packages}
    for asked in requirements:
        version = there.get(asked.name)
        if version is None or not asked.versions.contains(version, prereleases=True):
            return str(asked)
    return None
