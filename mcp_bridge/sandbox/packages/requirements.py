"""Requirements of packages (PEP 508), as scripts ask for them.

A requirement is a name with versions, and nothing else: an address, a path, an option or a marker is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidName, canonicalize_name

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    from mcp_bridge.sandbox.packages.package_set import PackageSet

MAX_REQUIREMENTS = 50
"""Most requirements of one request."""

MAX_CHARS = 200
"""Longest requirement."""

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
