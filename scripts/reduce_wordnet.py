"""Make `mcp_bridge/downstream/search/lexicon.txt` from WordNet 3.0: which words are used for the same.

    apt-get install wordnet-base
    python scripts/reduce_wordnet.py [/usr/share/wordnet]

A line is a word, a colon, and the other words of its most frequent senses, the nearest first; those after `|` are of
the next wider concept. The words for the same are such as software is described with: those of the one-line
descriptions of Debian's packages. The others are those, and what has been counted in WordNet's tagged texts.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

TARGET = Path(__file__).parents[1] / "mcp_bridge/downstream/search/lexicon.txt"

HEAD = """\
# Words that are used for the same, reduced from WordNet 3.0 by scripts/reduce_wordnet.py. Not to be edited by hand.
# WordNet 3.0 Copyright 2006 by Princeton University. All rights reserved. See the file LICENSE.wordnet beside this one.
"""

PARTS = ("noun", "verb", "adj")
SENSES = 4
"""Senses of a word that are looked at, the most frequent first."""
LEAST_SHARE = 0.03
"""The share of a word's occurrences below which a third or later sense is left out."""
LEAST_DESCRIPTIONS = 3
"""Packages in whose descriptions a word must be, to be one of software."""
MOST_WORDS = 8
MOST_WIDER = 3


def counts(folder: Path) -> dict[tuple[str, str, int], int]:
    """Occurrences by word, part of speech and number of the sense (`cntlist.rev`: key, number of the sense, count)."""
    numbers = {"1": "noun", "2": "verb", "3": "adj", "5": "adj"}
    found = {}
    for line in (folder / "cntlist.rev").read_text("utf-8").splitlines():
        key, sense, count = line.split()
        word, _, rest = key.partition("%")
        if (part := numbers.get(rest[0])) is not None:
            found[word, part, int(sense)] = int(count)
    return found


def synsets(folder: Path, part: str) -> dict[str, tuple[list[str], list[list[str]]]]:
    """By offset: the words of a concept, and those of each next wider one (wndb(5WN))."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for line in (folder / f"data.{part}").read_text("utf-8").splitlines():
        if line.startswith(" "):
            continue
        cells = line.partition(" | ")[0].split()
        count = int(cells[3], 16)
        words = [cells[4 + 2 * number].lower().partition("(")[0] for number in range(count)]
        pointers = cells[5 + 2 * count :]
        wider = [pointers[place + 1] for place in range(0, len(pointers) - 3, 4) if pointers[place] in {"@", "&"}]
        found[cells[0]] = (words, wider)
    return {
        offset: (words, [found[other][0] for other in wider if other in found])
        for offset, (words, wider) in found.items()
    }


def usable(word: str) -> bool:
    """Whether it is one plain word."""
    return word.isascii() and word.isalpha() and len(word) > 1


def software_words() -> frozenset[str]:
    """The words of the one-line descriptions of Debian's packages."""
    listed = subprocess.run(["apt-cache", "dumpavail"], check=True, capture_output=True, text=True).stdout
    found: Counter[str] = Counter()
    for line in re.findall(r"^Description(?:-en)?: (.*)", listed, re.MULTILINE):
        found.update(set(re.findall(r"[a-z]{3,}", line.lower())))
    return frozenset(word for word, count in found.items() if count >= LEAST_DESCRIPTIONS)


class Lexicon:
    """Words for the same and wider ones, by word.

    Args:
        folder: WordNet's files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counted = counts(folder)
        self._software = software_words()
        self._same: dict[str, Counter[str]] = defaultdict(Counter)
        self._wider: dict[str, set[str]] = defaultdict(set)
        self._frequency: Counter[str] = Counter()
        for (word, _, _), count in self._counted.items():
            self._frequency[word] += count

    def add(self, part: str) -> None:
        """Add all words of a part of speech."""
        concepts = synsets(self._folder, part)
        for line in (self._folder / f"index.{part}").read_text("utf-8").splitlines():
            cells = line.split()
            if not line.startswith(" ") and usable(cells[0]):
                self._add_senses(cells[0], part, [concepts[offset] for offset in cells[-int(cells[2]) :]])

    def _add_senses(self, word: str, part: str, senses: list[tuple[list[str], list[list[str]]]]) -> None:
        counted = [self._counted.get((word, part, number + 1), 0) for number in range(len(senses))]
        for number, (words, wider) in enumerate(senses[:SENSES]):
            if number > 1 and counted[number] < max(1, LEAST_SHARE * sum(counted)):
                continue
            for other in self._software & set(words) - {word}:
                self._same[word][other] += counted[number] + 1
            if number == 0 and wider:
                self._wider[word] |= self._software & set(wider[0])

    def lines(self) -> list[str]:
        """The lexicon."""
        found = []
        for word in sorted(self._same.keys() | self._wider.keys()):
            same, frequency = self._same[word], self._frequency
            if not frequency[word] and word not in self._software:
                continue
            near = sorted(same, key=lambda other: (-same[other], -frequency[other], other))[:MOST_WORDS]
            above = sorted(self._wider[word] - {*near, word}, key=lambda other: (-frequency[other], other))[:MOST_WIDER]
            if near or above:
                found.append(f"{word}:{' '.join(near)}" + (f"|{' '.join(above)}" if above else ""))
        return found


def main() -> None:
    """Write the lexicon."""
    lexicon = Lexicon(Path(sys.argv[1] if len(sys.argv) > 1 else "/usr/share/wordnet"))
    for part in PARTS:
        lexicon.add(part)
    lines = lexicon.lines()
    TARGET.write_text(HEAD + "\n".join(lines) + "\n", "utf-8")
    print(f"{len(lines)} words, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
