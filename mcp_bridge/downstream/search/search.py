"""Ranked search for tools: BM25F over words and what may stand for them, names, phrasings, and learnt vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_bridge.downstream.search.actions import action_of, likelihood, wanted_action
from mcp_bridge.downstream.search.index import MOST_IMPACT, InvertedIndex
from mcp_bridge.downstream.search.learnt_tools import ToolKey, learnt_tools
from mcp_bridge.downstream.search.phrasings import phrasings
from mcp_bridge.downstream.search.query import WORDS_USED, concepts, query_words
from mcp_bridge.downstream.search.spelling import Spelling
from mcp_bridge.downstream.search.synonyms import thesaurus
from mcp_bridge.downstream.search.vectors import fused
from mcp_bridge.downstream.search.word_vectors import ToolVectors, word_vectors
from mcp_bridge.downstream.search.words import is_stop_word, split, stem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mcp_bridge.downstream.catalog.tools import ToolInfo
from mcp_bridge.downstream.search.query import Concept

# How much of the score depends on the share of the query that a tool has, and how much a name that is asked for adds.
_COVERAGE = 0.65
_NAME = 1.0

# How rare a word is taken to be: so much of it by the tools that have it or a word that is used for it (at least so
# likely), the rest by those that have itself. A rare word for a common thing says no more than the common one.
_SHARED_RARITY = 0.65
_SYNONYM = 0.6
# What a second word for the same adds.
_SECOND = 0.35
# What the words of a phrase are worth where a tool has them in place of what the phrase is used for.
_PARTS = 0.8
# How much it counts whether a tool does what is wanted.
_ACTION = 0.8

# Factor for a tool whose server is named in the query.
_SERVER = 1.8
# A server's name of one word that tools of so many other servers have clearly (`InvertedIndex.clear_postings`) names no
# server: `line`, `pdf`. Others mention `GitHub`, too, but in passing.
_COMMON = 3

# Factor for a tool whose description says that it is deprecated, in so many first characters.
_DEPRECATED = 0.5
_DEPRECATED_CHARS = 10_000

# What a phrase for a tool counts beside the words of the best tool, how much less that and what was learnt count if the
# best one's name is asked for, and how much it matters where the tool has what the phrase asks for: in its name
# (`MOST_IMPACT`), or in a description. It counts less for a tool that nothing was learnt of: phrases were written for
# others, and more often lead astray there.
_PHRASING = 2.0
_PHRASING_OF_UNKNOWN = 0.4
_NAME_ASKED_FOR = 0.8
_PLACE_POWER = 1.5
# What it counts how much nearer a tool's vector is to the query's than such a share of the nearest one's; how much
# less if the best tool has all of the query in so many words; and what the words of a tool that nothing was learnt of
# count beside it.
_NEARNESS = 6.0
_LEAST_OF_NEAREST = 0.5
_HAVING_ALL = 0.7
_OF_UNKNOWN = 0.6
# The least cosine that counts, and that of a tool that is found by nothing else: something is near to any query.
_LEAST_COSINE = 0.2
_LEAST_ALONE = 0.45
# What a second need that a tool meets adds.
_SECOND_NEED = 0.3

# So many tools are looked at by their names: the best by their words alone.
_CANDIDATES = 300

# A hit with less than this share of the best one's score is left out: a model pays for each.
_LEAST_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching tool and its score: higher is better, and comparable within one search only."""

    tool: ToolInfo
    score: float


class SearchIndex:
    """An immutable index of tools. Build a new one when they change.

    Args:
        tools: The tools.
        inverted: Their inverted index, if there is one: of the tools in the order of `ordered`.
    """

    def __init__(self, tools: Iterable[ToolInfo], inverted: InvertedIndex | None = None) -> None:
        self.tools = ordered(tools)
        self.inverted = InvertedIndex.of(self.tools) if inverted is None else inverted
        self._spelling = Spelling(dict.fromkeys([*self.inverted.surfaces, *sorted(thesaurus().words)]))
        self._names = [name_stems(tool) for tool in self.tools]
        self._vectors = ToolVectors(self.inverted.vectors)
        self._learnt = [
            ToolKey.of(name, tool.server, tool.description) in learnt_tools()
            for name, tool in zip(self._names, self.tools, strict=True)
        ]
        telling = {server: self._telling(server) for server in dict.fromkeys(tool.server for tool in self.tools)}
        self._server_words = [telling[tool.server] for tool in self.tools]
        self._actions = [action_of(tool) for tool in self.tools]
        self._deprecated = ["deprecated" in tool.description[:_DEPRECATED_CHARS].lower() for tool in self.tools]

    def __len__(self) -> int:
        return len(self.tools)

    def search(
        self,
        query: str,
        limit: int = 10,
        *,
        strict: bool = False,
        allowed: Callable[[ToolInfo], bool] | None = None,
    ) -> list[Hit]:
        """Rank tools by a plain-language query.

        Args:
            query: Words; no search syntax. A query without words matches every tool.
            limit: The maximum number of hits.
            strict: Whether a tool must have every word, or a word that begins with it. Otherwise words for the same
                count too, words that the query's may have been meant to be, and a part of the query.
            allowed: Returns whether to include a tool; None includes all.

        Returns:
            The best hits first; ties are ordered by server and name.
        """
        if limit <= 0:
            return []
        words = query_words(query)
        if not words:
            hits = [Hit(tool, 0.0) for tool in self.tools]
            return [hit for hit in hits if allowed is None or allowed(hit.tool)][:limit]
        wanted = concepts(query, self.inverted, self._spelling)
        scores, shares = self._scores(wanted)
        if strict:
            having = self._having_all(split(query)[:WORDS_USED])
            scores = {number: score for number, score in scores.items() if number in having}
        if allowed is not None:
            scores = {number: score for number, score in scores.items() if allowed(self.tools[number])}
        ranked, likeness = self._by_name(words, wanted, scores)
        by_words = ranked
        if not strict:
            by_words = _as_shares(self._by_phrasings(words, wanted, ranked, likeness, allowed))
            ranked = self._by_vectors(words, wanted, by_words, likeness, shares, allowed)
        best = sorted(ranked, key=lambda number: (-round(ranked[number], 9), number))[:limit]
        least = _LEAST_SHARE * ranked[best[0]] if best else 0.0
        # What was learnt hides no tool that is found by the query's words.
        return [
            Hit(self.tools[number], ranked[number])
            for number in best
            if strict or ranked[number] >= least or by_words.get(number, 0.0) >= _LEAST_SHARE
        ]

    def fused(self, hits: list[Hit], meaning: list[tuple[int, float]]) -> list[Hit]:
        """The hits of a search fused with the numbers of the tools that are near in meaning, each with its nearness."""
        if not meaning:
            return hits
        numbers = {(tool.server, tool.name): number for number, tool in enumerate(self.tools)}
        words = [(numbers[hit.tool.server, hit.tool.name], hit.score) for hit in hits]
        return [Hit(self.tools[number], score) for number, score in fused(words, meaning)]

    def _telling(self, server: str) -> frozenset[str]:
        """The stems of a server's name by which a query names it: none if it is one word that others' tools have."""
        stems = frozenset(map(stem, split(server)))
        if len(stems) == 1:
            others = {self.tools[number].server for number in self.inverted.clear_postings(*stems).tools} - {server}
            if len(others) >= _COMMON:
                return frozenset()
        return stems

    def _scores(self, wanted: list[Concept]) -> tuple[dict[int, float], dict[int, float]]:
        """By tools' numbers what their words are worth, and the share of the query that they have."""
        scores: dict[int, float] = {}
        covered: dict[int, float] = {}
        total = 0.0
        for concept in wanted:
            importance, worth = self._worth_of_phrase(concept) if concept.parts else self._worth(concept)
            total += importance
            for number, (value, share) in worth.items():
                scores[number] = scores.get(number, 0.0) + value
                covered[number] = covered.get(number, 0.0) + share
        # Of a phrase that no tool has, the words may be there: of nothing, they cover nothing.
        shares = {number: share / (total or 1.0) for number, share in covered.items()}
        return {
            number: score * (1 - _COVERAGE + _COVERAGE * shares[number]) for number, score in scores.items()
        }, shares

    def _worth(self, concept: Concept) -> tuple[float, dict[int, tuple[float, float]]]:
        """How important a concept is; and by tools' numbers what its words are worth, and how much of it they cover."""
        index = self.inverted
        worth: dict[int, float] = {}
        share: dict[int, float] = {}
        matches = {term: list(self._matches(term)) for term in concept.terms}
        rarities = {term: index.rarity(len(rows)) for term, rows in matches.items()}
        literal = rarities[(stem(concept.words[0]),)] if len(concept.words) == 1 else 0.0
        shared = math.inf
        rarest = max(rarities.values())
        if literal:
            alike = {
                number for term, weight in concept.terms.items() if weight >= _SYNONYM for number, _ in matches[term]
            }
            shared = index.rarity(len(alike))
            rarest = _mixed(literal, shared)
        importance = concept.weight * (rarest or index.rarity(0))
        for term, weight in concept.terms.items():
            # What stands for a word isn't rarer than the word.
            rarity = _mixed(min(rarities[term], literal), shared) if literal else rarities[term]
            for number, impact in matches[term]:
                value, before = concept.weight * weight * rarity * impact, worth.get(number, 0.0)
                worth[number] = max(before, value) + _SECOND * min(before, value)
                if value >= before:
                    share[number] = max(share.get(number, 0.0), weight)
        return importance, {number: (value, share[number] * importance) for number, value in worth.items()}

    def _worth_of_phrase(self, phrase: Concept) -> tuple[float, dict[int, tuple[float, float]]]:
        """As `_worth`; a tool may have the phrase's words instead of what the phrase is used for."""
        importance, worth = self._worth(phrase)
        parts = [self._worth(part) for part in phrase.parts]
        whole = sum(of_part for of_part, _ in parts)
        summed: dict[int, tuple[float, float]] = {}
        for _, of_part in parts:
            for number, (value, share) in of_part.items():
                before = summed.get(number, (0.0, 0.0))
                summed[number] = before[0] + value, before[1] + share * importance / whole
        for number, (value, share) in summed.items():
            before = worth.get(number, (0.0, 0.0))
            worth[number] = max(before[0], _PARTS * value), max(before[1], _PARTS * share)
        return importance, worth

    def _matches(self, term: tuple[str, ...]) -> Iterable[tuple[int, float]]:
        """The tools that have all of a term's stems, each with what that is worth: the least of them."""
        rows = [self.inverted.postings(part) for part in term]
        if any(row is None for row in rows):
            return ()
        first, *rest = (row for row in rows if row is not None)
        if not rest:
            return zip(first.tools, first.impacts, strict=True)
        having = dict(zip(first.tools, first.impacts, strict=True))
        for row in rest:
            having = {
                number: min(impact, having[number])
                for number, impact in zip(row.tools, row.impacts, strict=True)
                if number in having
            }
        return having.items()

    def _by_name(
        self, words: list[str], wanted: list[Concept], scores: dict[int, float]
    ) -> tuple[dict[int, float], dict[int, float]]:
        """The scores of the best tools by their names, too, and how like the query each name is (`_likeness`)."""
        candidates = sorted(scores, key=lambda number: (-scores[number], number))[:_CANDIDATES]
        by_stem: list[dict[str, float]] = []
        for concept in wanted:
            row: dict[str, float] = {}
            for term, weight in concept.terms.items():
                for part in term:
                    row[part] = max(row.get(part, 0.0), weight)
            by_stem.append(row)
        of_one_word = [stem(concept.words[0]) if len(concept.words) == 1 else "" for concept in wanted]
        asked = set(of_one_word)
        stems = frozenset[str]().union(*by_stem)
        ranked: dict[int, float] = {}
        likeness: dict[int, float] = {}
        fits = self._fits(words, wanted)
        for number in candidates:
            server = self._server_words[number]
            named = bool(server) and server <= asked
            rest = [row for row, own in zip(by_stem, of_one_word, strict=True) if not named or own not in server]
            likeness[number] = self._likeness(number, rest, stems)
            score = scores[number] * (1 + _NAME * likeness[number]) * (_SERVER if named and rest else 1)
            ranked[number] = score * fits(number)
        return ranked, likeness

    def _by_phrasings(
        self,
        words: list[str],
        wanted: list[Concept],
        ranked: dict[int, float],
        likeness: dict[int, float],
        allowed: Callable[[ToolInfo], bool] | None,
    ) -> dict[int, float]:
        """The scores, 1 for the best tool's words, with what the tools are worth that meet a need (`Phrasings`)."""
        met: dict[int, float] = {}
        rarest = self.inverted.rarity(1)
        for need in phrasings().needs(words):
            places: dict[int, float] = {}
            for term in need.terms:
                matches = list(self._matches(term))
                # What many tools have tells none of them.
                clearly = sum(impact >= MOST_IMPACT / 2 for _, impact in matches)
                rare = self.inverted.rarity(clearly or 1) / rarest
                for number, impact in matches:
                    place = rare * (impact / MOST_IMPACT) ** _PLACE_POWER
                    places[number] = max(places.get(number, 0.0), place)
            for number, place in places.items():
                worth = need.strength * place
                before = met.get(number, 0.0)
                met[number] = max(before, worth) + _SECOND_NEED * min(before, worth)
        best = max(ranked, key=lambda number: ranked[number], default=-1)
        most = ranked.get(best, 0.0) or 1.0
        scores = {number: score / most for number, score in ranked.items()}
        share = _PHRASING * (1 - _NAME_ASKED_FOR * likeness.get(best, 0.0))
        fits = self._fits(words, wanted)
        for number, worth in met.items():
            if allowed is None or allowed(self.tools[number]):
                known = 1.0 if self._learnt[number] else _PHRASING_OF_UNKNOWN
                scores[number] = scores.get(number, 0.0) + share * known * worth * fits(number)
        return scores

    def _by_vectors(
        self,
        words: list[str],
        wanted: list[Concept],
        ranked: dict[int, float],
        likeness: dict[int, float],
        shares: dict[int, float],
        allowed: Callable[[ToolInfo], bool] | None,
    ) -> dict[int, float]:
        """The scores with what the tools are worth that are near to the query (`ToolVectors`).

        Less where a name is asked for, or where the best tool has the query in so many words. What was learnt says
        nothing against a tool of which nothing was: for such a one there is a part at least of what its words are
        worth.
        """
        cosines = self._vectors.cosines(word_vectors().of_query(_known_stems(words, wanted)))
        best = max(ranked, key=lambda number: ranked[number], default=-1)
        share = (1 - _NAME_ASKED_FOR * likeness.get(best, 0.0)) * (1 - _HAVING_ALL * shares.get(best, 0.0) ** 2)
        nearest = 0.0
        for number, cosine in enumerate(cosines):
            if cosine > nearest and (allowed is None or allowed(self.tools[number])):
                nearest = cosine
        least = max(_LEAST_COSINE, _LEAST_OF_NEAREST * nearest)
        near = {
            number: cosine - least
            for number, cosine in enumerate(cosines)
            if cosine > (least if number in ranked else max(least, _LEAST_ALONE))
            and (allowed is None or allowed(self.tools[number]))
        }
        for number, score in ranked.items():
            if not self._learnt[number]:
                near[number] = max(near.get(number, 0.0), _OF_UNKNOWN * score * max(0.0, nearest - least))
        scores = dict(ranked)
        for number, nearness in near.items():
            scores[number] = scores.get(number, 0.0) + share * _NEARNESS * nearness
        return scores

    def _fits(self, words: list[str], wanted: list[Concept]) -> Callable[[int], float]:
        """The factor for a tool that does something else than what is wanted, or that is deprecated."""
        action = wanted_action(words, _single(wanted[0]))

        def factor(number: int) -> float:
            likely: float = likelihood(action, self._actions[number]) ** _ACTION
            return likely * (_DEPRECATED if self._deprecated[number] else 1.0)

        return factor

    def _likeness(self, number: int, by_stem: list[dict[str, float]], stems: frozenset[str]) -> float:
        """The similarity of the query and the tool's name, 0 to 1.

        BM25 considers the length of a whole row: alone, it prefers a tool with a short description to one whose exact
        name is in the query.

        Args:
            number: The tool's.
            by_stem: By a stem what it is worth, for each concept of the query that counts here.
            stems: The stems of all its concepts: for most tools, none of them is in the name.
        """
        name = self._names[number]
        in_both = [part for part in name if part in stems]
        if not in_both or not by_stem:
            return 0.0
        of_name = sum(max(row.get(part, 0.0) for row in by_stem) for part in in_both)
        of_query = sum(max(row.get(part, 0.0) for part in in_both) for row in by_stem)
        return (of_name + of_query) / (len(name) + len(by_stem))

    def _having_all(self, words: list[str]) -> set[int]:
        """The tools that have every word, or a word that begins with it."""
        having: set[int] | None = None
        for word in dict.fromkeys(words):
            terms = {stem(word), *(stem(other) for other in self.inverted.beginning_with(word))}
            rows = [self.inverted.postings(term) for term in terms]
            tools = {number for row in rows if row is not None for number in row.tools}
            having = tools if having is None else having & tools
        return having or set()


def _mixed(own: float, shared: float) -> float:
    """The rarity of a term, by its own and the one that it shares with what is used for the same."""
    return (1 - _SHARED_RARITY) * own + _SHARED_RARITY * min(own, shared)


def _as_shares(scores: dict[int, float]) -> dict[int, float]:
    """Scores beside the best one's."""
    most = max(scores.values(), default=0.0) or 1.0
    return {number: score / most for number, score in scores.items()}


def _known_stems(words: list[str], wanted: list[Concept]) -> list[str]:
    """The stems of a query's words; of a word that has no vector, the likeliest that it was meant to be."""
    by_word = {concept.words[0]: concept for concept in wanted if len(concept.words) == 1}
    found = []
    for word in words:
        part = stem(word)
        if part not in word_vectors() and word in by_word:
            others = {other: weight for other, weight in _single(by_word[word]).items() if other in word_vectors()}
            part = max(others, key=lambda other: others[other], default=part)
        found.append(part)
    return list(dict.fromkeys(found))


def _single(concept: Concept) -> dict[str, float]:
    """The stems that alone may stand for a concept, each with its weight."""
    return {term[0]: weight for term, weight in concept.terms.items() if len(term) == 1}


def ordered(tools: Iterable[ToolInfo]) -> list[ToolInfo]:
    """Tools in the order in which they are numbered."""
    return sorted(tools, key=lambda tool: (tool.server, tool.name))


def name_stems(tool: ToolInfo) -> tuple[str, ...]:
    """The stems of a name's words that say something, without its server's, unless these are all."""
    stems = tuple(dict.fromkeys(stem(word) for word in split(tool.name)))
    server = {stem(word) for word in [*split(tool.server), *split(tool.server_alias)]}
    rest = tuple(part for part in stems if part not in server and not is_stop_word(part))
    return rest or stems
