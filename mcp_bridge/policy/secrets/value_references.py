"""Sensitive values that were taken out of outcomes, and the references that stand for them.

A reference is random: it tells nothing of its value, to nobody, and nothing that is left of it does once the value is
erased. Equal values of one execution have one reference, in another process too, since the values are kept with it
until they are erased; so a program sees equal things as equal. A reference resolves only in the execution that it came
from, and in what that has handed it to. Who can have text projected can have a guess projected, and compare it with
what the same execution was given: MAX_REFERENCES bounds that.
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
from mcp_bridge.policy.secrets.vault_uris import (
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

MAX_REFERENCES = 100_000
MAX_REFERENCE_CHARS = 64 << 20
"""The limits of one execution: how many values, and how many characters of all of them."""

_IN_BYTES = re.compile(REFERENCE.pattern.encode())

_PREFIX = REFERENCE_PREFIX.encode()

_TREE = 2
"""The version of Python's marshal format that writes out each text where it stands."""


class References(Protocol):
    """The references of one execution."""

    def put(self, value: Scalar, subject: str | None = None) -> str:
        """Store a value and give its reference, `vault://ref/<id>`.

        Of a value that was erased nothing is known any more: met again, it is a new one.

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
        """Whether the value is erased."""

    def __contains__(self, reference_id: object) -> bool:
        """Whether there is a reference of that id, erased or not."""

    def values_behind(self, value: Any) -> dict[str, Scalar]:
        """The values behind the references in a JSON value, by id; without erased ones."""

    def adopt(self, values: Mapping[str, Scalar | None]) -> None:
        """Take over the values of this execution from another process, by the ids of their references.

        None is behind one that was erased.
        """

    def erase(self, reference_id: str) -> bool:
        """Erase a value and keep a tombstone; False if there was none to erase."""

    def erase_subject(self, subject: str) -> int:
        """Erase every value of a subject, shared ones included. Gives their number."""


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


def new_id() -> str:
    """A random id for a new reference."""
    return base64.b32encode(os.urandom(REFERENCE_ID_CHARS * 5 // 8)).decode().lower()


def fill_in(value: Any, values: Mapping[str, Scalar | None]) -> Any:
    """A projected value for a person: the values are put in the place of their references.

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
            replacement = TOMBSTONE if known is None else known
            if mention.start == 0 and mention.end == len(text):
                return replacement
            pieces += (text[done : mention.start], str(replacement))
            done = mention.end
        return "".join((*pieces, text[done:])) if pieces else text

    return rebuild(value, whole, lambda name: str(filled(name)))


def equal_by_values(recorded: Any, now: Any, values: Mapping[str, Scalar]) -> bool:
    """Whether two projected values are equal as JSON (`1` isn't `true`); references are compared by their values.

    Nothing is known of a value that was erased: in the place of a recorded reference to one there may be another now,
    the same one everywhere.

    Args:
        recorded: JSON.
        now: JSON.
        values: Those behind their references, by their ids; without those that were erased.
    """
    if json.dumps(recorded, sort_keys=True) == json.dumps(now, sort_keys=True):
        return True
    known = {name: values[name] for name in _named(recorded) if name in values}
    had = ids_of(known)
    # What is behind none of the recorded references may be what is behind those of which nothing is known.
    again = {name: value for name, value in values.items() if _key(value) in had}
    before, after = (
        REFERENCE.split(json.dumps(fill_in(whole, by_reference), sort_keys=True))
        for whole, by_reference in ((recorded, known), (now, again))
    )
    if before[::2] != after[::2]:
        return False
    # What was recorded of it comes again as it is; what is made anew comes by one other reference, which was given out
    # for it now: a recorded one is another value's.
    pairs = {pair for pair in zip(before[1::2], after[1::2], strict=True) if pair[0] != pair[1]}
    others = {name for _, name in pairs}
    return len(pairs) == len({name for name, _ in pairs}) == len(others) and others.isdisjoint(before[1::2])


Ids: TypeAlias = "dict[tuple[type, Scalar], str]"
"""The ids of references by their values, which are keyed with their types."""


def ids_of(values: Mapping[str, Scalar | None]) -> Ids:
    """The first id of each value that isn't erased.

    Args:
        values: By the ids of their references, in their order.
    """
    ids: Ids = {}
    for name, value in values.items():
        if value is not None:
            ids.setdefault(_key(value), name)
    return ids


def renamed(value: Any, behind: Mapping[str, Scalar], ids: Ids) -> Any:
    """A projected value with other references to the same values.

    Args:
        value: JSON; not changed.
        behind: What is behind its references, by their ids.
        ids: Of the values that have others; what is behind none of them stays.
    """
    other: dict[str, Scalar | None] = {
        name: reference_uri(ids[_key(known)]) for name, known in behind.items() if ids.get(_key(known), name) != name
    }
    return fill_in(value, other)


def _key(value: Scalar) -> tuple[type, Scalar]:
    # 1 and 1.0 are equal in Python, and two values here.
    return type(value), value


class MemoryReferences:
    """References for as long as the process lives. May be used by several threads."""

    def __init__(self) -> None:
        self._values: dict[str, Scalar | None] = {}
        self._ids: Ids = {}
        """The first reference of each value."""
        self._subjects: dict[str, set[str]] = {}
        self._chars = 0
        self._lock = Lock()

    def put(self, value: Scalar, subject: str | None = None) -> str:
        """As `References.put`."""
        with self._lock:
            name = self._ids.get(_key(value))
            if name is None:
                chars = len(str(value))
                if len(self._values) >= MAX_REFERENCES or self._chars + chars > MAX_REFERENCE_CHARS:
                    raise BridgeError(
                        "too_many_references",
                        f"An execution may have {MAX_REFERENCES} sensitive values of "
                        f"{MAX_REFERENCE_CHARS} characters together.",
                    )
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

    def adopt(self, values: Mapping[str, Scalar | None]) -> None:
        """As `References.adopt`."""
        with self._lock:
            for name, value in values.items():
                if name not in self._values:
                    self._values[name] = value
                    self._chars += 0 if value is None else len(str(value))
                if (current := self._values[name]) is not None:
                    self._ids.setdefault(_key(current), name)

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
        if self._ids.get(_key(value)) == reference_id:
            del self._ids[_key(value)]
        return True
