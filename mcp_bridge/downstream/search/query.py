"""A query as concepts: each word or phrase with everything that a tool may have instead of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from mcp_bridge.downstream.search.synonyms import thesaurus
from mcp_bridge.downstream.search.words import is_stop_word, joined, split, stem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.downstream.search.index import InvertedIndex
    from mcp_bridge.downstream.search.spelling import Spelling
    from mcp_bridge.downstream.search.synonyms import Term

# Longer queries are cut: each word is looked up with all that may stand for it.
WORDS_USED = 24

# What a word that begins with the query's is worth: `stat` for `status`. It is more where no tool has the query's.
_PREFIX = 0.35
_PREFIX_OF_UNKNOWN = 0.7
_PREFIX_CHARS = 3
_PREFIXES = 30

# What names an issue: its key (`ABC-12`) or its number (`#12`). Some standards' names look the same.
_ISSUE = re.compile(
    r"(?<![\w-])(?:(?!(?:AES|BASE|COVID|GPT|ISO|MD|RFC|SHA|UTF)-)[A-Z][A-Z0-9]{1,9}-\d{1,6}|#\d{1,7})(?![\w-])"
)

# A calculation: its numbers say nothing. `-` and `/` are in dates, too. A long number is read once, from its beginning.
_NUMBER = r"\d[\d.,]{0,30}"
_CALCULATION = re.compile(
    rf"(?<![\w.,]){_NUMBER}\s*(?:[+*×÷^]|(?:%|percent) of\b|\b(?:times|plus|minus|divided by)\b)\s*{_NUMBER}",  # noqa: RUF001
    re.IGNORECASE,
)

# An address: what it points to is what matters, not its words.
_ADDRESS = re.compile(r"(?<!\w)(?:https?://|www\.)\S+", re.IGNORECASE)

# What one word of a phrase is worth beside the words that the phrase is used for.
_PART_OF_PHRASE = 0.4
# How much may stand for one word: each costs time.
_TERMS = 40
# The most words of a phrase that is found in any order.
_PHRASE_WORDS = 3
# What a question word and a number count.
_VAGUE = 0.45
_NUMBERS = frozenset(
    [
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "hundred",
        "thousand",
        "first",
        "second",
    ]
)
# Verbs of so many needs that they say little beside another word, and what they count there: `make a commit`. What a
# tool does is looked at besides (`actions`).
_LIGHT_VERB = 0.5
_LIGHT_VERBS = (
    "add", "change", "create", "do", "find", "get", "give", "have", "list", "look", "make", "put", "read", "see", "set",
    "show", "take", "tell",
)  # fmt: skip
# The second words of verbs, and how many words may stand between: `take the picture off`.
_PARTICLES = frozenset(["away", "back", "down", "in", "off", "on", "open", "out", "over", "through", "together", "up"])
_APART = 4
# More often these belong to what follows them: `fill the blanks in a table`. They are the verb's at the end alone.
_PREPOSITIONS = frozenset(["in", "on"])
# What a word means matters less where tools have the word itself.
_OTHERS_OF_KNOWN = 0.9


@cache
def _light_stems() -> frozenset[str]:
    # With the first query: a bridge that is never asked needs no stemmer.
    return frozenset(map(stem, _LIGHT_VERBS))


@dataclass(slots=True)
class Concept:
    """A word or phrase of the query.

    Attributes:
        words: Its words, as they were written.
        terms: What a tool may have for it, each with its weight, at most 1.
        weight: How much it says.
        parts: Of a phrase its words, each with what may stand for it: a tool may have these instead.
    """

    words: tuple[str, ...]
    terms: dict[Term, float] = field(default_factory=dict)
    weight: float = 1.0
    parts: list[Concept] = field(default_factory=list)

    def add(self, term: Term, weight: float) -> None:
        """Add what a tool may have; of two weights the higher counts."""
        if weight > self.terms.get(term, 0.0):
            self.terms[term] = weight


def query_words(query: str) -> list[str]:
    """The words of a query that are used; `issue` for what names one, `url` for an address, `calculate` for a sum."""
    for expression, word in ((_ADDRESS, " url "), (_ISSUE, " issue "), (_CALCULATION, " calculate ")):
        query = expression.sub(word, query)
    return split(query)[:WORDS_USED]


def concepts(query: str, index: InvertedIndex, spelling: Spelling) -> list[Concept]:
    """What is looked for: phrases and words that say something, each once, in the query's order.

    A query of stop words alone is taken as it is. An identifier of several words counts as one as well.
    """
    words = query_words(query)
    if all(map(is_stop_word, words)):
        found = (
            [_phrase(tuple(words), index, spelling)]
            if _is_phrase(words)
            else [_word(word, index, spelling) for word in words]
        )
    else:
        found = [
            _phrase(part, index, spelling) if len(part) > 1 else _word(part[0], index, spelling)
            for part in _parts(_exact_phrases(words))
        ]
    _join_neighbours(words, found, index)
    found += [Concept((name,), {(stem(name),): 1.0}) for name in joined(query) if index.has_word(name)]
    unique: dict[tuple[str, ...], Concept] = {}
    for concept in found:
        unique.setdefault(tuple(map(stem, concept.words)), concept)
    for concept in unique.values():
        best = sorted(concept.terms.items(), key=lambda item: -item[1])[:_TERMS]
        concept.terms = dict(best)
    kept = list(unique.values())
    if any(concept.weight == 1.0 and not _is_light(concept) for concept in kept):
        for concept in filter(_is_light, kept):
            concept.weight = min(concept.weight, _LIGHT_VERB)
    return kept


def _is_light(concept: Concept) -> bool:
    return len(concept.words) == 1 and stem(concept.words[0]) in _light_stems()


def _is_phrase(words: Sequence[str]) -> bool:
    return len(words) > 1 and tuple(map(stem, words)) in thesaurus().others


def _exact_phrases(words: list[str]) -> list[tuple[str, ...]]:
    """The words in order, those that are a phrase of the thesaurus together, the longest first."""
    words = _together(words)
    found: list[tuple[str, ...]] = []
    place = 0
    while place < len(words):
        longest = min(thesaurus().longest, len(words) - place)
        length = next((size for size in range(longest, 1, -1) if _is_phrase(words[place : place + size])), 1)
        found.append(tuple(words[place : place + length]))
        place += length
    return found


def _together(words: list[str]) -> list[str]:
    """The words with the particles of verbs moved to their verbs: `take the picture off` as `take off the picture`."""
    words = list(words)
    for place, word in enumerate(words):
        for far in range(place + 2, min(place + 2 + _APART, len(words))):
            if words[far] in _PREPOSITIONS and far + 1 < len(words):
                continue
            if words[far] in _PARTICLES and _is_phrase((word, words[far])) and not _is_phrase(words[place : place + 2]):
                words.insert(place + 1, words.pop(far))
                break
    return words


def _parts(parts: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Without stop words; and neighbours that are then a phrase of the thesaurus together, in any order."""
    telling = [part for part in parts if len(part) > 1 or not is_stop_word(part[0]) or _is_question(part[0])]
    found: list[tuple[str, ...]] = []
    place = 0
    while place < len(telling):
        for size in range(min(_PHRASE_WORDS, len(telling) - place), 1, -1):
            window = telling[place : place + size]
            if all(len(part) == 1 for part in window):
                stems = frozenset(stem(part[0]) for part in window)
                if stems in thesaurus().phrases:
                    found.append(tuple(part[0] for part in window))
                    place += size
                    break
        else:
            found.append(telling[place])
            place += 1
    return found


def _is_question(word: str) -> bool:
    """Whether a stop word is used for something: `who` for a user."""
    return (stem(word),) in thesaurus().others


def _phrase(phrase: tuple[str, ...], index: InvertedIndex, spelling: Spelling) -> Concept:
    concept = Concept(phrase)
    term = tuple(map(stem, phrase))
    known = thesaurus()
    if term not in known.others:
        term = known.phrases[frozenset(term)]
    for other, weight in known.others[term].items():
        concept.add(other, min(1.0, weight + 0.2))
    concept.add(term, 1.0)
    joined = "".join(phrase)
    if index.has_word(joined):
        concept.add((stem(joined),), 1.0)
    for word in phrase:
        if not is_stop_word(word):
            concept.add((stem(word),), _PART_OF_PHRASE)
            concept.parts.append(_word(word, index, spelling))
    return concept


def _word(word: str, index: InvertedIndex, spelling: Spelling) -> Concept:
    vague = is_stop_word(word) or word.isdigit() or word in _NUMBERS
    concept = Concept((word,), weight=_VAGUE if vague else 1.0)
    root = stem(word)
    known = index.postings(root) is not None
    concept.add((root,), 1.0)
    if len(word) >= _PREFIX_CHARS:
        weight = _PREFIX if known else _PREFIX_OF_UNKNOWN
        for other in islice(index.beginning_with(word), _PREFIXES):
            # The more of the other word is there, the likelier it is meant.
            concept.add((stem(other),), weight * (0.5 + 0.5 * len(word) / len(other)))
    meant = thesaurus().others.get((root,), {})
    for term, weight in meant.items():
        concept.add(term, weight * (_OTHERS_OF_KNOWN if known else 1.0))
    if not known and not meant:
        _correct(concept, word, index, spelling)
    return concept


def _correct(concept: Concept, word: str, index: InvertedIndex, spelling: Spelling) -> None:
    """Add what a word that no tool has may have been meant to be, and what that is used for."""
    others = thesaurus().others
    for other, likely in spelling.corrections(word).items():
        concept.add((stem(other),), likely)
        for meant, factor in others.get((stem(other),), {}).items():
            concept.add(meant, likely * factor)
    # Two words that were written as one.
    for cut in range(3, len(word) - 2):
        first, second = word[:cut], word[cut:]
        if index.has_word(first) and index.has_word(second):
            concept.add((stem(first), stem(second)), 0.9)


def _join_neighbours(words: list[str], found: list[Concept], index: InvertedIndex) -> None:
    """Add to words that follow one another the word that they are when written as one: `data base`."""
    by_word = {concept.words[0]: concept for concept in found if len(concept.words) == 1}
    for first, second in pairwise(words):
        joined = first + second
        if index.has_word(joined):
            for word in (first, second):
                if word in by_word:
                    by_word[word].add((stem(joined),), 1.0)
