"""Names that a person takes for one another, and characters that a person can't see.

Two names are alike if their skeletons are the same. A skeleton is made as Unicode Technical Standard 39 makes one
(section 4, Confusable Detection), and goes further where a name would be misread all the same: compatibility forms
(full width, mathematical), marks, what can't be seen, blanks and case make no difference. It is for comparing alone.

`lookalikes.json` has the characters that Unicode's `confusables.txt` (Unicode 15, © Unicode, Inc., Unicode Licence v3)
maps to letters, digits and signs of ASCII, and that compatibility decomposition doesn't. What looks alike within other
scripts is not in it.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Default_Ignorable_Code_Point, from Unicode's DerivedCoreProperties.txt: what a font shows as nothing at all. Python
# has no such property, and takes the letters and marks among them for printable. And blanks that are no spaces to it.
_IGNORABLE = re.compile(
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

_ALIKE = str.maketrans({"0": "o", "1": "l", "i": "l", "|": "l", "m": "rn", "w": "vv"})
"""Within ASCII, once it is in lower case."""


def is_seen(char: str) -> bool:
    """Whether a character shows that it is there; a space counts as one that does."""
    return char.isprintable() and not _IGNORABLE.match(char)


def resembled(name: str, names: Iterable[str]) -> str | None:
    """The first of some names that a person takes this one for, and that it isn't."""
    skeleton_ = skeleton(name)
    return next((other for other in names if other != name and skeleton(other) == skeleton_), None)


@functools.lru_cache(maxsize=4096)
def skeleton(name: str) -> str:
    """What names that look alike have in common."""
    seen = "".join(char for char in unicodedata.normalize("NFKD", name) if _counts(char))
    lower = seen.translate(_table()).casefold()
    # Of a capital letter its small one may be in the table, and the other way round.
    return unicodedata.normalize("NFKD", lower).translate(_table()).translate(_ALIKE)


def _counts(char: str) -> bool:
    return not char.isspace() and is_seen(char) and unicodedata.category(char) not in {"Mn", "Me"}


def is_foreign(char: str) -> bool:
    """Whether a character passes for one of ASCII."""
    return not char.isascii() and (ord(char) in _table() or unicodedata.normalize("NFKC", char).isascii())


@functools.cache
def _table() -> dict[int, str]:
    rows: dict[str, str] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="ascii"))
    return {ord(char): alike for alike, chars in rows.items() for char in chars}
