"""What stands for a value that isn't shown: `vault://secret/<id>`, `vault://ref/<id>`, and the two literal markers.

References are opaque text: a script may put one in the middle of a longer string. So where a reference ends doesn't
depend on what follows it. A reference to a value has an id of fixed length; a reference to a secret ends with the
longest id that is configured: with a secret `tenant`, `vault://secret/tenant.example.com` is its value and
`.example.com`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

SCHEME = "vault://"
"""Without it, there is no reference in a text."""

SECRET_PREFIX = "vault://secret/"  # noqa: S105  (a scheme, no secret)
REFERENCE_PREFIX = "vault://ref/"

MARKER = "[REDACTED"
"""How every literal marker begins."""

TOMBSTONE = "[REDACTED_TOMBSTONE]"
"""Stands for a value that was erased."""

REDACTED = "[REDACTED]"
"""Stands for a sensitive value that no reference could be made for."""

SECRET_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

REFERENCE_ID_CHARS = 16
"""80 bits in base32. Ids are only ever looked up among those of one execution."""

REFERENCE = re.compile(rf"{REFERENCE_PREFIX}([a-z2-7]{{{REFERENCE_ID_CHARS}}})")
"""A reference to a value, and its id."""

_MENTION = re.compile(
    rf"{SECRET_PREFIX}(?P<secret>{SECRET_ID.pattern})|{REFERENCE_PREFIX}(?P<reference>[a-z2-7]{{{REFERENCE_ID_CHARS}}})"
)


class ReferenceMatch(NamedTuple):
    """A reference in a text.

    Attributes:
        start: Where it starts.
        end: Where it ends.
        secret: The name it has for a secret, or None.
        reference: The id it has for a value, or None. Whether there is such a value isn't known here.
        known: Whether there is a secret of that name.
    """

    start: int
    end: int
    secret: str | None
    reference: str | None
    known: bool


def secret_uri(secret_id: str) -> str:
    """The reference to a secret."""
    return SECRET_PREFIX + secret_id


def reference_uri(reference_id: str) -> str:
    """The reference to a value."""
    return REFERENCE_PREFIX + reference_id


def find_references(text: str, secret_ids: Collection[str]) -> Iterator[ReferenceMatch]:
    """The references in a text, in order.

    Args:
        text: Any text.
        secret_ids: The ids that secrets have. A name that begins with none of them is given as long as it can be.
    """
    at = 0
    while match := _MENTION.search(text, at):
        start, at = match.span()
        name, reference = match["secret"], match["reference"]
        known = _longest_known(name, secret_ids) if name else None
        if name:
            # What follows the id may be another reference, whose first characters could be in an id.
            at = match.start("secret") + len(known or "")
        yield ReferenceMatch(
            start, match.end() if name and not known else at, known or name, reference, known is not None
        )


def _longest_known(name: str, ids: Collection[str]) -> str | None:
    return next((name[:end] for end in range(len(name), 0, -1) if name[:end] in ids), None)
