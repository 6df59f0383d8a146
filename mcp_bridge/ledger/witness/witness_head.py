"""How much a witness has cosigned, kept outside of its database, so that an older copy of that is refused.

SQLite takes its write-ahead log to end at the first bad checksum. After a kill and a changed byte the database would
know less than was cosigned, and a fork would be cosigned like any other growth. So how much it knows is written outside
of it, too, before a cosignature leaves; a database that knows less, or as much and not the same, is refused.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.storage.position_file import Position, PositionFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE = "witness.key"
"""File of the private key in the state directory, PKCS #8 in PEM (RFC 8410)."""

HEAD_FILE = "witness.head"
"""File in the state directory with a measure of the state, by which a rolled-back state is detected; see
`PositionFile`."""


class Cosigned(NamedTuple):
    """The last checkpoint of a log that was cosigned.

    Attributes:
        size: Its size; 0 if there was none.
        root: Its root; that of the empty tree if there was none.
    """

    size: int
    root: bytes


class WitnessHead(PositionFile):
    """A measure of a witness's state, in HEAD_FILE, that only grows. It is bound to the witness's key.

    Args:
        state: The state's file.
        key: The witness's key.
    """

    def __init__(self, state: Path, key: Ed25519PrivateKey) -> None:
        super().__init__(state)
        self._state = state
        self._key = hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest()

    def position(self, known: Mapping[str, Cosigned], conflicts: int) -> Position:
        """The current measure: no operation reduces the sum of the logs' sizes or the number of conflicts."""
        rows = sorted((origin, last.size, last.root.hex()) for origin, last in known.items())
        digest = hashlib.sha256(json.dumps(rows).encode()).digest()
        return Position(self._key, sum(last.size for last in known.values()), digest, conflicts)

    def check_position(self, position: Position) -> None:
        """Compare a state's measure with the largest one recorded.

        Raises:
            BridgeError: `witness_behind`.
        """
        if self.known is None or self.known.origin != self._key:
            return
        if position.size < self.known.size or position.writes < self.known.writes:
            raise self.behind("less than")
        if position.size == self.known.size and position.root != self.known.root:
            raise self.behind("as much as, and not what,")

    def behind(self, known_history: str) -> BridgeError:
        """The error for a state that is older than an earlier one."""
        return BridgeError(
            "witness_behind",
            f"{self._state} knows {known_history} the witness has cosigned, as {self.path.name} says.",
            hint="Its write-ahead log was changed or removed, or an older copy was put in its place. Logs could be"
            " rolled back, so nothing is cosigned. Keep a copy of the directory as it is, and put the file back as it"
            f" was, with its -wal file. If that can't be had, begin as another witness: move {KEY_FILE} and"
            f" {self._state.name} away, and have those who rely on this one name the new key.",
        )

    def unreadable(self, exc: OSError) -> BridgeError:
        """As PositionFile's."""
        return BridgeError(
            "witness_unusable",
            f"{self.path}, which says how much the witness has cosigned, can't be read: {exc.strerror}.",
            hint="See to what it is, and to its owner and mode.",
        )

    def changed(self) -> BridgeError:
        """As PositionFile's."""
        return BridgeError(
            "witness_head_damaged",
            f"{self.path}, which says how much the witness has cosigned, was changed.",
            hint="It may have forgotten checkpoints, so nothing is cosigned. Restore the directory from a copy. If "
            f"you have made sure that {self._state.name} is as the witness left it, remove {self.path.name}.",
        )

    def unwritten(self, exc: OSError) -> BridgeError:
        """As PositionFile's."""
        return BridgeError(
            "witness_unusable",
            f"How much the witness has cosigned can't be written to {self.path}: {exc.strerror}.",
            hint="Nothing is cosigned. See to the disk, and to the owner and mode of the file.",
        )
