"""Package sets: exactly these wheels, each known by its hash."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from packaging.tags import Tag


@dataclass(frozen=True, slots=True, order=True)
class LockedPackage:
    """One wheel.

    Attributes:
        name: The package's normalised name.
        version: Its version, as the index has it.
        file: The wheel's file name.
        sha256: The wheel's hash, 64 hexadecimal digits.
    """

    name: str
    version: str
    file: str
    sha256: str

    @property
    def pin(self) -> str:
        """`name==version`."""
        return f"{self.name}=={self.version}"

    @property
    def is_pure(self) -> bool:
        """Whether the wheel is for any platform: then it has no compiled modules."""
        return self.file.removesuffix(".whl").rpartition("-")[2] == "any"

    @property
    def tags(self) -> frozenset[Tag]:
        """The Pythons and machines that the wheel is for; none if its name doesn't say."""
        from packaging.utils import InvalidWheelFilename, parse_wheel_filename  # noqa: PLC0415  (as for `_normal`)

        try:
            return parse_wheel_filename(self.file)[3]
        except InvalidWheelFilename:
            return frozenset()


@dataclass(frozen=True, slots=True)
class PackageSet:
    """Wheels that are installed together.

    Attributes:
        packages: One for each package, by name.
    """

    packages: tuple[LockedPackage, ...]

    @classmethod
    def of(cls, packages: Iterable[LockedPackage]) -> PackageSet:
        """The set of some packages, in whatever order."""
        return cls(tuple(sorted(packages)))

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> PackageSet:
        """The set that `rows` had, as it was stored.

        Raises:
            TypeError, ValueError: These are no rows of a set.
        """
        packages = [LockedPackage(**row) for row in rows]
        for one in packages:
            if not all(isinstance(value, str) for value in asdict(one).values()) or not _is_sha256(one.sha256):
                raise ValueError("not the row of a package")
        return cls.of(packages)

    def rows(self) -> list[dict[str, str]]:
        """The set as JSON: an object of texts for each package."""
        return [asdict(one) for one in self.packages]

    @property
    def digest(self) -> str:
        """What the set is known by: SHA-256 in hexadecimal."""
        return hashlib.sha256(json.dumps(self.rows(), sort_keys=True).encode()).hexdigest()

    @property
    def pins(self) -> tuple[str, ...]:
        """The packages as `name==version`."""
        return tuple(one.pin for one in self.packages)

    def without(self, pins: Sequence[str]) -> PackageSet:
        """The packages that aren't among these `name==version`."""
        there = {_normal(pin) for pin in pins}
        return PackageSet(tuple(one for one in self.packages if one.pin not in there))

    def require_fit(self) -> None:
        """Refuse a recorded set that isn't for this Python, which sandboxes with a package set have.

        Raises:
            BridgeError: `packages_incompatible`.
        """
        unfit = [one for one in self.packages if one.tags and one.tags.isdisjoint(tags_here())]
        if unfit:
            raise _incompatible(unfit)


@functools.cache
def tags_here() -> frozenset[Tag]:
    """The tags of the wheels that this Python can use on this machine."""
    from packaging.tags import sys_tags  # noqa: PLC0415  (as for `_normal`)

    return frozenset(sys_tags())


def _incompatible(unfit: Sequence[LockedPackage]) -> BridgeError:
    platforms = {tag.platform for tag in tags_here()}
    of_other_machine = [one for one in unfit if platforms.isdisjoint(tag.platform for tag in one.tags)]
    if of_other_machine:
        files = ", ".join(one.file for one in of_other_machine)
        return BridgeError(
            "packages_incompatible",
            f"The recorded packages are for another kind of machine than this one: {files}.",
            hint="Nothing has run. Run the bridge on such a machine with this state to resume suspended executions "
            "there.",
        )
    # Of those that later Pythons can use, too, the earliest is named.
    wanted = ".".join(map(str, max(min(_python(tag) for tag in one.tags) for one in unfit)))
    files = ", ".join(one.file for one in unfit)
    return BridgeError(
        "packages_incompatible",
        f"The recorded packages are for Python {wanted}; this bridge has {platform.python_version()}: {files}.",
        hint=f"Nothing has run. Run the bridge with Python {wanted} to resume suspended executions there.",
    )


def _python(tag: Tag) -> tuple[int, int]:
    """The Python that a tag is of, such as `cp311`."""
    digits = tag.interpreter.strip("abcdefghijklmnopqrstuvwxyz_")
    return int(digits[:1] or 0), int(digits[1:] or 0)


def _normal(pin: str) -> str:
    from packaging.utils import canonicalize_name  # noqa: PLC0415  (few scripts have packages)

    name, _, version = pin.partition("==")
    return f"{canonicalize_name(name)}=={version}"


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and not text.strip("0123456789abcdef")  # noqa: PLR2004
