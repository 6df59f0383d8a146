"""Which keys a log's checkpoints may be signed with: the entries that name them, and what a reader can trust by them.

A log's first entry names its first key. A later one names the next key and the one before it: `rotated`, the one before
is at hand and signs the log with that entry in it, so that who trusts the one before can trust the next one; or `lost`,
it is not, and the next key has to be trusted by other means. Neither way does the key before sign anything after that:
whoever has got hold of it since can't go on with the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.payloads import KeyEvent
from mcp_bridge.ledger.proofs import notes, signing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcp_bridge.ledger.proofs.signing import Verifier

MAX_KEYS = 1000
"""Of one log. A rotation a day for years."""


def retired_by(event: KeyEvent, key: Verifier, sequence: int) -> Verifier:
    """A key that was there until an event, the entry `sequence`, as good as it is from then on."""
    return key.retired(sequence + 1 if event.event == "rotated" else sequence)


def keys_of(events: Iterable[tuple[int, KeyEvent]]) -> list[Verifier]:
    """The keys that a log's entries name, in their order; each is good for no longer than it was in use.

    Args:
        events: The entries' numbers, and what they say, in their order.

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
    """The keys of one log while it is read."""

    def __init__(self, origin: str, trusted: Iterable[Verifier] | None) -> None:
        """Begin.

        Args:
            origin: The log's.
            trusted: The keys that the reader trusts at the start; None to trust none.

        Raises:
            BridgeError: `bad_key`: two of the keys can't be told apart.
        """
        self._known = notes.keyring(trusted or ())
        self._given = {by.vkey for by in self._known.values() if by.is_of_log(origin)}
        self._origin = origin
        self._events: list[tuple[int, KeyEvent]] = []
        self._named: set[str] = set()
        self._signed: dict[str, int] = {}

    @property
    def known(self) -> Mapping[tuple[str, bytes], Verifier]:
        """All keys that were given or are named in the log: what they sign has to be right, trusted or not."""
        return self._known

    @property
    def names_log(self) -> bool:
        """Whether one of the keys that were given is of a log of that name."""
        return bool(self._given)

    @property
    def lost(self) -> list[tuple[int, str, str]]:
        """The keys that were replaced as lost: the entry that says so, the key, and the one in its place."""
        return [(sequence, str(event.before), event.vkey) for sequence, event in self._events if event.event == "lost"]

    def take(self, sequence: int, payload: bytes) -> None:
        """Take the next of the log's entries that name a key.

        Raises:
            BridgeError: `bad_entry`, `bad_key`: it names none, or not after the one before. `bad_export`: there are
                too many.
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
            # Whoever has a key that was replaced could put it in use again.
            raise BridgeError("bad_entry", f"Entry {sequence} names a key that the log has had before.")
        if self._events:
            before = signing.Verifier.parse(self._events[-1][1].vkey)
            self._known[before.name, before.key_id] = retired_by(event, before, sequence)
        self._events.append((sequence, event))
        self._named.add(event.vkey)
        self._known = notes.keyring([*self._known.values(), verifier])

    def sign(self, size: int, signers: Iterable[Verifier]) -> None:
        """Take the keys whose signatures of the checkpoint of that size hold, and which may sign it."""
        for by in signers:
            if by.is_of_log(self._origin):
                self._signed[by.vkey] = max(size, self._signed.get(by.vkey, 0))

    def trusted(self) -> list[str]:
        """The keys that can be trusted, given all checkpoints: those given first, then as the log names them."""
        trusted = dict.fromkeys(sorted(self._given))
        for sequence, event in self._events:
            before = event.before
            if event.event == "rotated" and before in trusted and self._signed.get(str(before), 0) > sequence:
                trusted[event.vkey] = None
        return list(trusted)
