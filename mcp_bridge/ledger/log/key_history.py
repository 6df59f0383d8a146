"""The history of a log's signing keys: the entries that name them, and which of them a reader can trust.

A log's first entry names its first key. A later key entry names the new key and the old one. After `rotated`, the old
key has signed the log with that entry, so a reader who trusts the old key can trust the new one. After `lost`, the old
key was not available, and the new key must be trusted by other means. In both cases the old key is not valid for later
checkpoints: somebody who has stolen it can't continue the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.log_payloads import KeyEvent
from mcp_bridge.ledger.proofs import notes, signing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcp_bridge.ledger.proofs.signing import Verifier

MAX_KEYS = 1000
"""Most keys of one log: a rotation a day for years."""


def retired_by(event: KeyEvent, key: Verifier, sequence: int) -> Verifier:
    """A key with the validity that it has after a key event, which is the entry `sequence`."""
    return key.retired(sequence + 1 if event.event == "rotated" else sequence)


def keys_of(events: Iterable[tuple[int, KeyEvent]]) -> list[Verifier]:
    """The keys that a log's entries name, in order. Each is valid for the checkpoints of the time when it was in use.

    Args:
        events: The key events with the numbers of their entries, in order.

    Raises:
        BridgeError: `bad_key`.
    """
    verifiers: list[Verifier] = []
    for sequence, event in events:
        if verifiers:
            verifiers[-1] = retired_by(event, verifiers[-1], sequence)
        verifiers.append(signing.Verifier.parse(event.vkey))
    return verifiers


class KeyHistory:
    """The keys of one log, collected while the log is read."""

    def __init__(self, origin: str, trusted: Iterable[Verifier] | None) -> None:
        """Start with the keys that a reader trusts.

        Args:
            origin: The log's name.
            trusted: The keys that the reader trusts at the start; None to trust none.

        Raises:
            BridgeError: `bad_key`: two of the keys have the same name and id.
        """
        self._known = notes.keyring(trusted or ())
        self._given = {by.vkey for by in self._known.values() if by.is_of_log(origin)}
        self._origin = origin
        self._events: list[tuple[int, KeyEvent]] = []
        self._named: set[str] = set()
        self._signed: dict[str, int] = {}

    @property
    def known(self) -> Mapping[tuple[str, bytes], Verifier]:
        """The reader's keys and those that the log names. Their signatures must be right, trusted or not."""
        return self._known

    @property
    def names_log(self) -> bool:
        """Whether one of the reader's keys is of a log of that name."""
        return bool(self._given)

    @property
    def lost(self) -> list[tuple[int, str, str]]:
        """The keys that were replaced as lost: the entry's number, the lost key, and the new one."""
        return [(sequence, str(event.before), event.vkey) for sequence, event in self._events if event.event == "lost"]

    def take(self, sequence: int, payload: bytes) -> None:
        """Add the next key entry of the log.

        Args:
            sequence: The entry's number.
            payload: Its payload.

        Raises:
            BridgeError: `bad_entry`, `bad_key`: it doesn't name a valid new key; `tampered`: it names another old key;
                `bad_export`: there are too many.
        """
        event = KeyEvent.from_bytes(payload)
        if event.before != (self._events[-1][1].vkey if self._events else None):
            raise BridgeError("tampered", f"Entry {sequence} doesn't name the log's key before it.")
        verifier = signing.Verifier.parse(event.vkey)
        if not verifier.is_of_log(self._origin):
            raise BridgeError("bad_key", f"Entry {sequence} names a key that is not one of the log {self._origin!a}.")
        if len(self._events) >= MAX_KEYS:
            raise BridgeError("bad_export", f"The log has had more than {MAX_KEYS} keys.")
        if event.vkey in self._named:
            # Otherwise somebody with a replaced key could put it back into use.
            raise BridgeError("bad_entry", f"Entry {sequence} names a key that the log has had before.")
        if self._events:
            before = signing.Verifier.parse(self._events[-1][1].vkey)
            self._known[before.name, before.key_id] = retired_by(event, before, sequence)
        self._events.append((sequence, event))
        self._named.add(event.vkey)
        self._known = notes.keyring([*self._known.values(), verifier])

    def sign(self, size: int, signers: Iterable[Verifier]) -> None:
        """Add the keys with valid signatures of a checkpoint of that size."""
        for by in signers:
            if by.is_of_log(self._origin):
                self._signed[by.vkey] = max(size, self._signed.get(by.vkey, 0))

    def trusted(self) -> list[str]:
        """The keys that can be trusted, after all checkpoints were read: the reader's, then those they vouch for."""
        trusted = dict.fromkeys(sorted(self._given))
        for sequence, event in self._events:
            before = event.before
            if event.event == "rotated" and before in trusted and self._signed.get(str(before), 0) > sequence:
                trusted[event.vkey] = None
        return list(trusted)
