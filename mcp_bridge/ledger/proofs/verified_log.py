"""What verification has found of a log, in an export or a ledger's file: its size, by which keys, and what it lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mcp_bridge.ledger.proofs.signing import Verifier


class Lost(NamedTuple):
    """A loss that the log itself records: entries after a given one are missing.

    Attributes:
        entry: The number of the entry that says so: those before it are what was left.
        time: When that was accepted, or the backup restored, in seconds since 1970.
        restored: Whether a backup was restored; if not, the end was lost. None where the payload isn't shown.
        had: How many entries it had had; None where the entry doesn't say.
    """

    entry: int
    time: float
    restored: bool | None
    had: int | None


class Cosigned(NamedTuple):
    """A witness's cosignature of one of a file's checkpoints.

    Attributes:
        size: The checkpoint's: so many entries were there.
        time: When, by the witness's clock, in seconds since 1970.
        by: The witness.
    """

    size: int
    time: int
    by: Verifier


@dataclass(frozen=True, slots=True)
class VerifiedLog:
    """What a log was found to be.

    Attributes:
        origin: The log.
        size: The number of its entries.
        root: The root of its tree.
        authenticated: Whether a trusted key has signed it. If not, the file agrees with itself, and anyone may have
            made it.
        keys: The keys that were trusted, those given first, then those that they vouch for.
        executions: How many executions the entries are of.
        disclosed: How many entries have their payload.
        undisclosed: How many have not: it is erased, or not shown.
        withheld: How many of these it is not shown of, though the log doesn't say that it was erased.
        erased: How many executions are erased, by the log's word.
        checkpoints: How many signed checkpoints the file has.
        compared: How many checkpoints from elsewhere agree with it.
        cosigned: What the known witnesses have cosigned, in the order of the sizes.
        lost: The keys that were replaced as lost: the number of the entry that says so, the key, and the one in its
            place, which nobody who trusts the key before has to trust.
        losses: Where the log lacks what had been recorded.
    """

    origin: str
    size: int
    root: bytes
    authenticated: bool
    keys: tuple[str, ...]
    executions: int
    disclosed: int
    undisclosed: int
    withheld: int
    erased: int
    checkpoints: int
    compared: int
    cosigned: tuple[Cosigned, ...]
    lost: tuple[tuple[int, str, str], ...] = ()
    losses: tuple[Lost, ...] = ()

    @property
    def witnesses(self) -> tuple[tuple[Verifier, int], ...]:
        """The known witnesses, each with the time when it has cosigned most, in seconds since 1970."""
        return tuple((cosigned.by, cosigned.time) for cosigned in self.newest_cosigned)

    @property
    def newest_cosigned(self) -> tuple[Cosigned, ...]:
        """For each known witness, its cosignature of the largest checkpoint."""
        newest: dict[str, Cosigned] = {}
        for cosigned in self.cosigned:
            if cosigned.by.vkey not in newest or newest[cosigned.by.vkey].size < cosigned.size:
                newest[cosigned.by.vkey] = cosigned
        return tuple(newest.values())
