"""Package sets: exactly these wheels, each known by its hash."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


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


def _normal(pin: str) -> str:
    from packaging.utils import canonicalize_name  # noqa: PLC0415  (few scripts have packages)

    name, _, version = pin.partition("==")
    return f"{canonicalize_name(name)}=={version}"


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and not text.strip("0123456789abcdef")  # noqa: PLR2004
