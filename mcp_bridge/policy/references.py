"""Sensitive values that were taken out of outcomes, and the references that stand for them.

A reference is the same for the same value of one principal, so that a program sees equal things as equal, in another
process too, and both sides hold the same bytes. It is a MAC under the principal's own key (RFC 2104), so it tells
nothing of the value to whoever has nothing but it. Who can have text projected can have a guess projected, and compare:
so equal things are equal, also to who guesses. MAX_REFERENCES bounds the guesses of one execution. It resolves only in
the execution that it came from.
"""

from __future__ import annotations

import base64
import hmac
import marshal
import re
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from mcp_bridge.errors import BridgeError
from mcp_bridge.policy.json_walk import leaves, rebuild
from mcp_bridge.policy.uris import (
    REFERENCE,
    REFERENCE_ID_CHARS,
    REFERENCE_PREFIX,
    TOMBSTONE,
    mentions,
    reference_uri,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Scalar: TypeAlias = str | int | float

MIN_KEY_BYTES = 16

MAX_REFERENCES = 100_000
MAX_REFERENCE_CHARS = 64 << 20
"""What one execution may have the host keep, as a number of values and as characters of all of them."""

_IN_BYTES = re.compile(REFERENCE.pattern.encode())

_PREFIX = REFERENCE_PREFIX.encode()

_TREE = 2
"""The form of what Python keeps of its values that writes out each text where it stands."""


class References(Protocol):
    """The references of one execution. A database may take the place of `MemoryReferences`."""

    def put(self, value: Scalar, subject: str | None = None) -> str:
        """Keep a value and give its reference, `vault://ref/<id>`.

        A value that was erased stays so: it gets the reference that it had, and isn't kept again.

        Args:
            value: Text or a number; `1` and `"1"` are two values.
            subject: Whose value it is, for `erase_subject`. A value may be several subjects'.

        Raises:
            BridgeError: `too_many_references`.
        """

    def resolve(self, reference_id: str) -> Scalar:
        """The value, or `TOMBSTONE` once it is erased.

        Raises:
            BridgeError: `reference_unknown`.
        """

    def is_erased(self, reference_id: str) -> bool:
        """Whether there was a value and it is erased."""

    def __contains__(self, reference_id: object) -> bool:
        """Whether the id was given out, erased or not."""

    def values_behind(self, value: Any) -> dict[str, Scalar]:
        """The values of this execution's references in a JSON value, by their ids; those that are erased left out."""

    def adopt(self, values: Mapping[str, Scalar | None]) -> None:
        """Know values that this execution had in another process, by the ids of their references.

        None is behind one that was erased.
        """

    def erase(self, reference_id: str) -> bool:
        """Forget a value, keep its tombstone; whether there was one to forget."""

    def erase_subject(self, subject: str) -> int:
        """Forget every value of a subject, those it shares with others included; how many that were."""


def _named(value: Any) -> set[str]:
    """The ids of references in the texts of a JSON value, its keys included.

    Done on the event loop, for whatever a guest or a server sends: the value is not walked through in Python.
    """
    try:
        # Each text is in there as it is, and nothing that is between two of them goes on with one.
        data = marshal.dumps(value, _TREE)
    except ValueError:
        texts = (text for text in leaves(value) if isinstance(text, str) and REFERENCE_PREFIX in text)
        # Where a secret's name ends has no part in this: a reference begins anew after whatever is before it.
        return {name for text in texts for name in REFERENCE.findall(text)}
    return {name.decode() for name in _IN_BYTES.findall(data)} if _PREFIX in data else set()


def reference_id(key: bytes, value: Scalar) -> str:
    """The id of a value's reference under a principal's key.

    Args:
        key: At least MIN_KEY_BYTES random bytes.
        value: Text or a number.

    Raises:
        ValueError: The key is too short to keep the values from being guessed.
    """
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"a key has at least {MIN_KEY_BYTES} bytes")
    message = f"mcp-bridge reference\0{type(value).__name__}\0{value}".encode("utf-8", "surrogatepass")
    mac = hmac.digest(key, message, "sha256")[: REFERENCE_ID_CHARS * 5 // 8]
    return base64.b32encode(mac).decode().lower()


def fill_in(value: Any, values: Mapping[str, Scalar | None]) -> Any:
    """A projected value as it was before, for a person: with values in the place of their references.

    Args:
        value: JSON; not changed.
        values: By the ids of their references; None behind one that was erased. Other references stay.
    """
    if not values:
        return value

    def whole(leaf: Any) -> Any:
        return filled(leaf) if isinstance(leaf, str) else leaf

    def filled(text: str) -> Any:
        pieces: list[str] = []
        done = 0
        for mention in mentions(text, ()):
            if mention.reference is None or mention.reference not in values:
                continue
            known = values[mention.reference]
            found = TOMBSTONE if known is None else known
            if mention.start == 0 and mention.end == len(text):
                return found
            pieces += (text[done : mention.start], str(found))
            done = mention.end
        return "".join((*pieces, text[done:])) if pieces else text

    return rebuild(value, whole, lambda name: str(filled(name)))


class MemoryReferences:
    """References for as long as the process lives. May be used by several threads.

    Args:
        key: As for `reference_id`.
    """

    def __init__(self, key: bytes) -> None:
        reference_id(key, "")
        self._key = key
        self._values: dict[str, Scalar | None] = {}
        self._subjects: dict[str, set[str]] = {}
        self._chars = 0
        self._lock = Lock()

    def put(self, value: Scalar, subject: str | None = None) -> str:
        """As `References.put`."""
        name = reference_id(self._key, value)
        with self._lock:
            if name not in self._values:
                chars = len(str(value))
                if len(self._values) >= MAX_REFERENCES or self._chars + chars > MAX_REFERENCE_CHARS:
                    raise BridgeError(
                        "too_many_references",
                        f"An execution may have {MAX_REFERENCES} sensitive values of "
                        f"{MAX_REFERENCE_CHARS} characters together.",
                    )
                self._values[name] = value
                self._chars += chars
            if subject is not None:
                self._subjects.setdefault(subject, set()).add(name)
        return reference_uri(name)

    def resolve(self, reference_id: str) -> Scalar:
        """As `References.resolve`."""
        with self._lock:
            if reference_id not in self._values:
                raise BridgeError(
                    "reference_unknown",
                    f"This execution has no value behind {reference_uri(reference_id)}.",
                    hint="A reference is good in the execution that it came from.",
                )
            value = self._values[reference_id]
        return TOMBSTONE if value is None else value

    def is_erased(self, reference_id: str) -> bool:
        """As `References.is_erased`."""
        return self._values.get(reference_id, "") is None

    def __contains__(self, reference_id: object) -> bool:
        return reference_id in self._values

    def values_behind(self, value: Any) -> dict[str, Scalar]:
        """As `References.values_behind`."""
        if not self._values:
            return {}
        found: dict[str, Scalar] = {}
        for name in _named(value):
            kept = self._values.get(name)
            if kept is not None:
                found[name] = kept
        return found

    def adopt(self, values: Mapping[str, Scalar | None]) -> None:
        """As `References.adopt`."""
        with self._lock:
            for name, value in values.items():
                if name not in self._values:
                    self._values[name] = value
                    self._chars += 0 if value is None else len(str(value))

    def erase(self, reference_id: str) -> bool:
        """As `References.erase`."""
        with self._lock:
            return self._erase(reference_id)

    def erase_subject(self, subject: str) -> int:
        """As `References.erase_subject`."""
        with self._lock:
            return sum(self._erase(name) for name in self._subjects.pop(subject, ()))

    def _erase(self, reference_id: str) -> bool:
        value = self._values.get(reference_id)
        if value is None:
            return False
        self._chars -= len(str(value))
        self._values[reference_id] = None
        return True
