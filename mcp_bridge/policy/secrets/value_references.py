"""References, which stand for sensitive values that were removed from outcomes.

A reference is random: it contains nothing of its value, also after the value is erased. Equal values of one execution
have one reference, in every process, because the values are stored with the execution until they are erased; so a
program sees equal values as equal. A reference resolves only in its own execution, and in those that this one has
passed it to. How many there may be is in `reference_limits`.
"""

from __future__ import annotations

import base64
import json
import marshal
import os
import re
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from mcp_bridge.errors import BridgeError
from mcp_bridge.policy.redaction.json_walk import leaves, rebuild
from mcp_bridge.policy.secrets.known_values import KnownValues, Scalar
from mcp_bridge.policy.secrets.reference_limits import check_room
from mcp_bridge.policy.secrets.vault_uris import (
    REFERENCE,
    REFERENCE_ID_CHARS,
    REFERENCE_PREFIX,
    TOMBSTONE,
    find_references,
    reference_uri,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcp_bridge.policy.secrets.known_values import Found

_IN_BYTES = re.compile(REFERENCE.pattern.encode())

_PREFIX = REFERENCE_PREFIX.encode()

MAX_ADOPTED = 1000
"""Of adopted values, how many are looked for in what tools answer: to prepare for one takes some ten microseconds."""

_TREE = 2
"""The version of Python's marshal format that writes every text in full where it occurs."""


class References(Protocol):
    """The references of one execution."""

    def put(self, value: Scalar, subject: str | None = None) -> str:
        """Store a value; returns its reference, `vault://ref/<id>`.

        A value that was erased is unknown: if it occurs again, it gets a new reference.

        Args:
            value: Text or a number; `1` and `"1"` are two values.
            subject: The person whose value it is, for `erase_subject`. A value may have several subjects.

        Raises:
            BridgeError: `too_many_references`.
        """

    def resolve(self, reference_id: str) -> Scalar:
        """The value, or `TOMBSTONE` once it is erased.

        Raises:
            BridgeError: `reference_unknown`.
        """

    def give(self, reference_id: str) -> Scalar:
        """As `resolve`, for a tool: `found` looks for the value from now on, since the tool may give it back."""

    @property
    def has_given(self) -> bool:
        """Whether there is anything for `found` to look for."""

    def is_erased(self, reference_id: str) -> bool:
        """Whether the value is erased."""

    def __contains__(self, reference_id: object) -> bool:
        """Whether a reference of that id exists, erased or not."""

    def values_behind(self, value: Any) -> dict[str, Scalar]:
        """The values behind the references in a JSON value, by their ids; without erased ones."""

    def found(self, text: str) -> Iterable[Found]:
        """The values in a text that a tool was given, or that were adopted; without erased ones. They may overlap.

        Of those that are adopted at once, the last `MAX_ADOPTED` are looked for.
        """

    def adopt(self, values: Mapping[str, Scalar | None]) -> None:
        """Add the values that another process has stored for this execution.

        Args:
            values: By the ids of their references; None for an erased one.
        """

    def erase(self, reference_id: str) -> bool:
        """Erase a value, which leaves a tombstone; False if there was none."""

    def erase_subject(self, subject: str) -> int:
        """Erase every value of a subject, shared ones included; returns their number."""


def _named(value: Any) -> set[str]:
    """The ids of references in the texts and keys of a JSON value.

    Runs on the event loop for everything that a guest or a server sends, so it doesn't walk the value in Python.
    """
    try:
        # The data contains each text unchanged, and no byte between two texts can extend one.
        data = marshal.dumps(value, _TREE)
    except ValueError:
        texts = (text for text in leaves(value) if isinstance(text, str) and REFERENCE_PREFIX in text)
        # Names of secrets don't matter here: a reference begins at its prefix, whatever is before it.
        return {name for text in texts for name in REFERENCE.findall(text)}
    return {name.decode() for name in _IN_BYTES.findall(data)} if _PREFIX in data else set()


def new_id() -> str:
    """A random id for a new reference."""
    return base64.b32encode(os.urandom(REFERENCE_ID_CHARS * 5 // 8)).decode().lower()


def fill_in(value: Any, values: Mapping[str, Scalar | None]) -> Any:
    """Replace the references in a projected value by their values.

    Args:
        value: JSON; not changed.
        values: The values by the ids of their references; None for an erased one. Other references stay.
    """
    if not values:
        return value

    def whole(leaf: Any) -> Any:
        return filled(leaf) if isinstance(leaf, str) else leaf

    def filled(text: str) -> Any:
        pieces: list[str] = []
        done = 0
        for mention in find_references(text, ()):
            if mention.reference is None or mention.reference not in values:
                continue
            known = values[mention.reference]
            replacement = TOMBSTONE if known is None else known
            if mention.start == 0 and mention.end == len(text):
                return replacement
            pieces += (text[done : mention.start], str(replacement))
            done = mention.end
        return "".join((*pieces, text[done:])) if pieces else text

    return rebuild(value, whole, lambda name: str(filled(name)))


def equal_by_values(recorded: Any, now: Any, values: Mapping[str, Scalar]) -> bool:
    """Whether two projected values are equal as JSON (`1` isn't `true`); references are compared by their values.

    An erased value can't be compared: a recorded reference to one may correspond to any other reference, if it is the
    same one everywhere.

    Args:
        recorded: JSON.
        now: JSON.
        values: The values behind their references, by the ids; without erased ones.
    """
    if json.dumps(recorded, sort_keys=True) == json.dumps(now, sort_keys=True):
        return True
    known = {name: values[name] for name in _named(recorded) if name in values}
    had = ids_of(known)
    # A value that no recorded reference has may be one of those that were erased.
    again = {name: value for name, value in values.items() if _key(value) in had}
    before, after = (
        REFERENCE.split(json.dumps(fill_in(whole, by_reference), sort_keys=True))
        for whole, by_reference in ((recorded, known), (now, again))
    )
    if before[::2] != after[::2]:
        return False
    # An erased value has its recorded reference again, or one new reference everywhere. A reference that is recorded
    # elsewhere stands for another value.
    pairs = {pair for pair in zip(before[1::2], after[1::2], strict=True) if pair[0] != pair[1]}
    others = {name for _, name in pairs}
    return len(pairs) == len({name for name, _ in pairs}) == len(others) and others.isdisjoint(before[1::2])


Ids: TypeAlias = "dict[tuple[type, Scalar], str]"
"""The ids of references by type and value."""


def ids_of(values: Mapping[str, Scalar | None]) -> Ids:
    """The first id of each value that isn't erased.

    Args:
        values: The values by the ids of their references, in order.
    """
    ids: Ids = {}
    for name, value in values.items():
        if value is not None:
            ids.setdefault(_key(value), name)
    return ids


def renamed(value: Any, behind: Mapping[str, Scalar], ids: Ids) -> Any:
    """Replace the references in a projected value by other references to the same values.

    Args:
        value: JSON; not changed.
        behind: The values behind its references, by the ids.
        ids: The ids of the other references; a reference to another value stays.
    """
    other: dict[str, Scalar | None] = {
        name: reference_uri(ids[_key(known)]) for name, known in behind.items() if ids.get(_key(known), name) != name
    }
    return fill_in(value, other)


def _key(value: Scalar) -> tuple[type, Scalar]:
    # 1 and 1.0 are equal in Python, but two values here.
    return type(value), value


class MemoryReferences:
    """References in memory. Thread-safe."""

    def __init__(self) -> None:
        self._values: dict[str, Scalar | None] = {}
        self._ids: Ids = {}
        """The first reference of each value."""
        self._subjects: dict[str, set[str]] = {}
        self._known = KnownValues()
        self._chars = 0
        self._lock = Lock()

    def put(self, value: Scalar, subject: str | None = None) -> str:
        """As `References.put`."""
        with self._lock:
            name = self._ids.get(_key(value))
            if name is None:
                chars = len(str(value))
                check_room(len(self._values), self._chars + chars)
                name = self._ids[_key(value)] = new_id()
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

    def give(self, reference_id: str) -> Scalar:
        """As `References.give`."""
        value = self.resolve(reference_id)
        with self._lock:
            if self._values[reference_id] is not None:
                self._known.add(reference_id, value)
        return value

    @property
    def has_given(self) -> bool:
        """As `References.has_given`."""
        return not self._known.is_empty

    def is_erased(self, reference_id: str) -> bool:
        """As `References.is_erased`."""
        return self._values.get(reference_id, "") is None

    def __contains__(self, reference_id: object) -> bool:
        return reference_id in self._values

    def values_behind(self, value: Any) -> dict[str, Scalar]:
        """As `References.values_behind`."""
        if not self._values:
            return {}
        values: dict[str, Scalar] = {}
        for name in _named(value):
            known = self._values.get(name)
            if known is not None:
                values[name] = known
        return values

    def found(self, text: str) -> Iterable[Found]:
        """As `References.found`."""
        return self._known.find(text)

    def adopt(self, values: Mapping[str, Scalar | None]) -> None:
        """As `References.adopt`."""
        with self._lock:
            for name, value in values.items():
                if name not in self._values:
                    self._values[name] = value
                    self._chars += 0 if value is None else len(str(value))
                if (current := self._values[name]) is not None:
                    self._ids.setdefault(_key(current), name)
            # Which of them a tool was given isn't stored.
            for name in list(values)[-MAX_ADOPTED:]:
                if (current := self._values[name]) is not None:
                    self._known.add(name, current)

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
        self._known.remove(reference_id, value)
        if self._ids.get(_key(value)) == reference_id:
            del self._ids[_key(value)]
        return True
