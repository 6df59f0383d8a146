"""The place of a script in a session."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.payloads import CellRef
from mcp_bridge.sandbox.languages import SHOWN
from mcp_bridge.sandbox.packages.package_set import PackageSet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.ledger.storage.execution_store import StoredExecution
    from mcp_bridge.sandbox.languages import Language

SEED_BYTES = 32

HASH_SEED_DIGITS = 8
"""Hexadecimal digits at a seed's begin that are the hash seed."""

RENDERING_VERSION = 2
"""Which texts the guest shows of values and errors. It changes where those of the same value or error do: the layout of
tables, stacks, types and advice; the line of an error, and the bridge's own messages. Stored with an execution, so that
one of another version isn't taken for one that did something else."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell. Its execution's bundle has these fields.

    Attributes:
        session: The session's name.
        number: Its number, from 1.
        previous: The execution that is the cell before; empty for a first one.
        seed: What the session's randomness comes from, in hexadecimal. A fork has that of its origin.
        packages: The package set of the session's sandboxes, which is that of its first cell; or None.
        language: What its cells are written in.
    """

    session: str
    number: int
    previous: str
    seed: str
    packages: PackageSet | None = None
    language: Language = "python"

    @classmethod
    def first(cls, session: str) -> Cell:
        """The first cell of a new session."""
        return cls(session, 1, "", secrets.token_hex(SEED_BYTES))

    @classmethod
    def of(cls, stored: StoredExecution) -> Cell | None:
        """The place of a stored execution; None if it is no cell."""
        fields = stored.bundle.get("cell")
        return None if fields is None else cls(**fields | {"packages": stored_packages(fields)})

    def after(self, execution: str, session: str | None = None) -> Cell:
        """The place after this one.

        Args:
            execution: The execution that is this cell.
            session: The name of the session that goes on from here; by default this one.
        """
        return replace(self, session=session or self.session, number=self.number + 1, previous=execution)

    @property
    def hash_seed(self) -> int:
        """What the hashes of texts come from (PYTHONHASHSEED)."""
        return int(self.seed[:HASH_SEED_DIGITS], 16)

    def with_hash_seed(self, hash_seed: int) -> Cell:
        """A first cell with the hash seed of a container that waits for one."""
        return replace(self, seed=f"{hash_seed:0{HASH_SEED_DIGITS}x}{self.seed[HASH_SEED_DIGITS:]}")

    def to_bundle(self) -> dict[str, Any]:
        """Its fields, as `of` reads them."""
        fields: dict[str, Any] = {
            "session": self.session,
            "number": self.number,
            "previous": self.previous,
            "seed": self.seed,
        }
        if self.packages is not None:
            fields["packages"] = self.packages.rows()
        if self.language != "python":
            fields["language"] = self.language
        return fields

    def ref(self, session: str) -> CellRef:
        """As the entry of its start has it.

        Args:
            session: The name, projected.
        """
        return CellRef(session, self.number, self.previous or None, self.seed)


def is_of_this_rendering(stored: StoredExecution) -> bool:
    """Whether an execution was run by a guest that shows values and errors as that of now does."""
    return bool(stored.bundle.get("showing") == RENDERING_VERSION)


def stored_packages(bundle: Mapping[str, Any]) -> PackageSet | None:
    """The package set that a stored script or cell has; None for none."""
    rows = bundle.get("packages")
    return None if rows is None else PackageSet.from_rows(rows)


def require_language(language: Language, cell: Cell) -> None:
    """Refuse a cell in another language than its session's.

    Args:
        language: What the cell is written in.
        cell: That cell.

    Raises:
        BridgeError: `session_language`.
    """
    if language != cell.language:
        raise BridgeError(
            "session_language",
            f"The session {cell.session!r} is in {SHOWN[cell.language]}, and this is {SHOWN[language]}.",
            hint="Write it in the session's language, or give it a session of another name.",
            language=cell.language,
        )


def is_same_packages(requirements: Sequence[str], known: StoredExecution) -> bool:
    """Whether a request for packages may be the one that an execution came of, of which the set alone is known.

    Args:
        requirements: What is asked for, valid.
        known: The stored execution.
    """
    place = Cell.of(known)
    found = stored_packages(known.bundle) if place is None else place.packages
    if not requirements:
        # A later cell has its session's without asking.
        return found is None or (place is not None and place.number > 1)
    from mcp_bridge.sandbox.packages.requirements import meets, parse_requirement  # noqa: PLC0415  (few have packages)

    return found is not None and meets(map(parse_requirement, requirements), found) is None


def require_in_session(requirements: Sequence[str], cell: Cell) -> None:
    """Refuse packages that a session doesn't have: its sandbox is there already.

    Args:
        requirements: What a later cell asks for, valid.
        cell: That cell.

    Raises:
        BridgeError: `session_packages`.
    """
    if not requirements:
        return
    from mcp_bridge.sandbox.packages.requirements import meets, parse_requirement  # noqa: PLC0415  (few have packages)

    unmet = meets(map(parse_requirement, requirements), cell.packages or PackageSet(()))
    if unmet is not None:
        raise BridgeError(
            "session_packages",
            f"The session {cell.session!r} has begun without {unmet}: its packages are those of its first cell.",
            hint="In the cell: await runtime.install(name), if it has no compiled modules. Or begin another session.",
        )


class Turn(NamedTuple):
    """What a cell that begins now would be.

    Attributes:
        cell: Its place.
        head: The session's last cell as it was read; empty for a new session.
        blocked: Why no cell can begin now but the one that waits; or None.
        has_no_suspended_cell: Whether it is known that no cell of the session is suspended, or has an undelivered
            result.
    """

    cell: Cell
    head: str
    blocked: BridgeError | None = None
    has_no_suspended_cell: bool = False
