"""A program's graph as an SVG picture (SVG 1.1), whole in itself: no script, no font, nothing that is fetched.

Steps stand beneath each other in the order of the program. A way to the next step is a straight line; every other one
runs in a lane beside the steps: to the right downwards, to the left upwards. Ways to the same step share a lane, and
two others never do where they would lie on each other. The same graph gives the same bytes. With the way that an
execution took, that way stands out, in colour, in strokes and in signs, and the rest steps back.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from mcp_bridge.views.graph import END, FAILURE, Edge, printable
from mcp_bridge.views.graph_path import START, Path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mcp_bridge.views.graph import Graph, Node

CHAR, LINE = 7.3, 16.0
"""Width and height of a sign in the picture's font, 12 pixels high and monospaced, with some room to spare."""

PAD, GAP, LANE, CORNER = 10.0, 34.0, 16.0, 6.0
"""Around text in a box; between two steps; between two lanes; how round a lane's corners are."""

BESIDE = 6.0
"""Distance between a straight edge and its label."""

MARGIN = 16.0

MAX_ABREAST = 4
"""Steps of a parallel step that stand beside each other before there is another row."""

_FILLS = {
    "tool": ("#f4f4f4", "#666666"),
    "llm": ("#efe6fb", "#7a4fb5"),
    "condition": ("#fdf3d8", "#a67c00"),
    "approval": ("#fde4e0", "#b5452c"),
    "wait": ("#e3eef9", "#3b6ea5"),
    "program": ("#e4f4e8", "#3d8b56"),
    "parallel": ("#fafafa", "#666666"),
    "map": ("#fafafa", "#666666"),
    "end": ("#ffffff", "#333333"),
}

_SIGNS = {
    "success": ("\u2713", "#1a7f37"),
    "failed": ("\u2717", "#cf222e"),
    "skipped": ("\u2013", "#57606a"),
    "pending": ("\u2026", "#9a6700"),
}
"""For each status of a step that was taken, the sign behind its name and the colour of its frame."""

_TAKEN = "#1a7f37"
_NOT_TAKEN = ' opacity="0.45"'

_INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What no XML document may hold, not even as an entity (XML 1.0, 2.2)."""


def svg(graph: Graph, path: Path | None = None) -> str:
    """The picture as a document; the same for the same graph and way.

    Args:
        graph: What to draw.
        path: The way that was taken, or None for the program alone.
    """
    block = _graph(graph, path)
    width, height = block.width + 2 * MARGIN, block.height + 2 * MARGIN
    name = _xml(printable(graph.name))
    body = "\n".join(block.at(MARGIN, MARGIN))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_n(width)} {_n(height)}"'
        f' width="{_n(width)}" height="{_n(height)}" font-family="monospace" font-size="12">\n'
        f"<title>{name}</title>\n"
        f"<desc>The program {name}: {len(graph.nodes)} steps</desc>\n"
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto"><path d="M0 0L8 4L0 8z" fill="#333333"/></marker>'
        f"{_MARKER_TAKEN if path else ''}</defs>\n"
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


_MARKER_TAKEN = (
    '<marker id="taken" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="10" markerHeight="10"'
    f' markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="{_TAKEN}"/></marker>'
)


@dataclass(slots=True)
class _Block:
    """Something with a size, and parts that are placed in it.

    Attributes:
        parts: Text of elements with their own coordinates, or blocks with their place.
    """

    width: float
    height: float
    parts: list[str | tuple[_Block, float, float]] = field(default_factory=list)

    def at(self, x: float, y: float) -> Iterator[str]:
        """Its elements, moved to a place."""
        yield f'<g transform="translate({_n(x)} {_n(y)})">'
        for part in self.parts:
            if isinstance(part, str):
                yield part
            else:
                block, left, top = part
                yield from block.at(left, top)
        yield "</g>"

    def pale(self) -> _Block:
        """The same, stepped back."""
        return _Block(self.width, self.height, [f"<g{_NOT_TAKEN}>", (self, 0.0, 0.0), "</g>"])


# --- steps ---


def _step(node: Node, *, unreached: bool = False, lanes: int = 0, how: str = "", inner: Path | None = None) -> _Block:
    """A step's box; high enough for so many lines to leave it on one side.

    Args:
        node: The step.
        unreached: Nothing leads to it.
        lanes: Lines that leave it on one side.
        how: How it stands, if it was reached on the way that is shown.
        inner: The way through the program inside.
    """
    sign, colour = _SIGNS.get(how, ("", ""))
    title = f"{node.id} ({node.kind}){f' {sign}' if sign else ''}"
    undo = _undo(node.undo) if node.undo is not None else None
    inside = _inside(node, inner)
    texts = [title, *node.lines]
    width = max(_text_width(texts), inside.width if inside else 0.0, undo.width if undo else 0.0) + 2 * PAD
    if node.kind == "condition":
        width += 2 * PAD
    height = 2 * PAD + LINE * len(texts)
    parts: list[str | tuple[_Block, float, float]] = []
    for block in (inside, undo):
        if block is not None:
            parts.append((block, (width - block.width) / 2, height))
            height += block.height + PAD
    height = max(height, LINE * (lanes + 1))
    fill, stroke = _FILLS[node.kind]
    dashes = ' stroke-dasharray="3 3" opacity="0.6"' if unreached else ""
    look = f'stroke="{colour}" stroke-width="2.5"' if colour else f'stroke="{stroke}"{dashes}'
    shape = _shape(node.kind, width, height, f'fill="{fill}" {look}')
    lines = [_text(texts[0], width / 2, PAD + 12, bold=True)]
    lines += [_text(text, width / 2, PAD + 12 + LINE * index) for index, text in enumerate(texts[1:], 1)]
    return _Block(width, height, [shape, *lines, *parts])


def _shape(kind: str, width: float, height: float, look: str) -> str:
    if kind == "condition":
        points = ((PAD, 0.0), (width - PAD, 0.0), (width, height / 2), (width - PAD, height), (PAD, height))
        corners = " ".join(f"{_n(x)},{_n(y)}" for x, y in (*points, (0.0, height / 2)))
        return f'<polygon points="{corners}" {look}/>'
    radius = {"llm": 14, "approval": 0, "wait": 18}.get(kind, 4)
    return f'<rect width="{_n(width)}" height="{_n(height)}" rx="{radius}" {look}/>'


def _inside(node: Node, path: Path | None) -> _Block | None:
    if node.inner is not None:
        block = _graph(node.inner, path)
        frame = f'<rect width="{_n(block.width + 2 * PAD)}" height="{_n(block.height + 2 * PAD)}" fill="#ffffff"'
        return _Block(block.width + 2 * PAD, block.height + 2 * PAD, [f'{frame} stroke="#cccccc"/>', (block, PAD, PAD)])
    if not node.children:
        return None
    blocks = [_step(child) for child in node.children]
    rows = [blocks[start : start + MAX_ABREAST] for start in range(0, len(blocks), MAX_ABREAST)]
    widths = [sum(block.width for block in row) + PAD * (len(row) - 1) for row in rows]
    width, height = max(widths), 0.0
    parts: list[str | tuple[_Block, float, float]] = []
    for row, total in zip(rows, widths, strict=True):
        left = (width - total) / 2
        for block in row:
            parts.append((block, left, height))
            left += block.width + PAD
        height += max(block.height for block in row) + PAD
    return _Block(width, height - PAD, parts)


def _undo(tool: str) -> _Block:
    text = f"undone by {tool}"
    width, height = _text_width([text]) + 2 * PAD, LINE + PAD
    frame = f'<rect width="{_n(width)}" height="{_n(height)}" fill="#ffffff" stroke="#999999" stroke-dasharray="4 3"/>'
    return _Block(width, height, [frame, _text(text, width / 2, PAD / 2 + 12)])


def _end(text: str) -> _Block:
    width, height = _text_width([text]) + 3 * PAD, LINE + PAD
    fill, stroke = _FILLS["end"]
    frame = f'<rect width="{_n(width)}" height="{_n(height)}" rx="{_n(height / 2)}" fill="{fill}" stroke="{stroke}"'
    return _Block(width, height, [f'{frame} stroke-width="2"/>', _text(text, width / 2, PAD / 2 + 12)])


# --- a program ---


def _graph(graph: Graph, path: Path | None = None) -> _Block:
    """The start, the steps and the ends beneath each other, and the ways between them."""
    ends = [target for target in (END, FAILURE) if any(edge.target == target for edge in graph.edges)]
    rows = {START: 0} | {target: len(graph.nodes) + 1 + index for index, target in enumerate(ends)}
    ways = [Edge(0, 1)]
    ways += [Edge(edge.source + 1, rows.get(edge.target, edge.target + 1), edge.label) for edge in graph.edges]
    ways = _joined(ways)
    gone = frozenset((_row(rows, source), _row(rows, target)) for source, target in path.ways) if path else None
    straight = [edge for edge in ways if edge.target == edge.source + 1]
    right = _Lanes([edge for edge in ways if edge.target > edge.source + 1])
    left = _Lanes([edge for edge in ways if edge.target <= edge.source])
    start = _end(" · ".join((printable(graph.name), *graph.lines)))
    reached = None if gone is None else {target for _, target in gone}
    last = [_end_block(end, is_pale=reached is not None and rows[end] not in reached) for end in ends]
    return _drawn([start, *_steps(graph, path, right, left), *last], straight, right, left, gone)


def _steps(graph: Graph, path: Path | None, right: _Lanes, left: _Lanes) -> list[_Block]:
    """The blocks of the steps; those that a path has not come to are pale."""
    blocks = [
        _step(
            node,
            unreached=place in graph.unreached,
            lanes=max(right.leaving(place + 1), left.leaving(place + 1)),
            how=path.steps.get(place, "") if path else "",
            inner=path.inner.get(place, Path()) if path and place in path.steps else None,
        )
        for place, node in enumerate(graph.nodes)
    ]
    return [block if path is None or place in path.steps else block.pale() for place, block in enumerate(blocks)]


def _end_block(end: int, *, is_pale: bool) -> _Block:
    block = _end({END: "success", FAILURE: "failure"}[end])
    return block.pale() if is_pale else block


def _drawn(
    blocks: list[_Block], straight: list[Edge], right: _Lanes, left: _Lanes, gone: frozenset[tuple[int, int]] | None
) -> _Block:
    """Blocks beneath each other, with the straight ways between them and the lanes beside them."""
    widest = max(block.width for block in blocks)
    tops, height = [], 0.0
    for block in blocks:
        tops.append(height)
        height += block.height + GAP
    first = left.width
    column = _Column(blocks, tops, first, first + widest, gone)
    parts: list[str | tuple[_Block, float, float]] = [
        (block, column.middle - block.width / 2, top) for block, top in zip(blocks, tops, strict=True)
    ]
    parts += [line for edge in straight for line in column.straight(edge)]
    parts += [line for lanes, toward in ((right, 1), (left, -1)) for line in column.beside(lanes, toward)]
    # What stands beside a straight way may reach farther than all blocks and lanes.
    beside = column.middle + BESIDE + _text_width([edge.label for edge in straight])
    return _Block(max(first + widest + right.width, beside), height - GAP, parts)


def _row(rows: dict[int, int], place: int) -> int:
    """Where a step, the start or an end stands in the column."""
    return rows.get(place, place + 1)


def _joined(edges: Sequence[Edge]) -> list[Edge]:
    """One edge for all that lead from one step to the same other."""
    labels: dict[tuple[int, int], list[str]] = {}
    for edge in edges:
        labels.setdefault((edge.source, edge.target), []).append(edge.label)
    return [Edge(source, target, " / ".join(filter(None, told))) for (source, target), told in labels.items()]


class _Lanes:
    """The ways on one side of the steps. Those to one step share a lane; two lanes that meet are not the same.

    Args:
        edges: The ways.

    Attributes:
        width: The room that they take.
    """

    def __init__(self, edges: Sequence[Edge]) -> None:
        self._by_source: dict[int, list[Edge]] = {}
        self._by_target: dict[int, list[Edge]] = {}
        for edge in edges:
            self._by_source.setdefault(edge.source, []).append(edge)
            self._by_target.setdefault(edge.target, []).append(edge)
        self._lane: dict[int, int] = {}
        taken: list[list[tuple[int, int]]] = []
        for (low, high), target in sorted((self._span(target), target) for target in self._by_target):
            free = (lane for lane, spans in enumerate(taken) if all(high < lo or hi < low for lo, hi in spans))
            lane = next(free, len(taken))
            if lane == len(taken):
                taken.append([])
            taken[lane].append((low, high))
            self._lane[target] = lane
        labels = _text_width([edge.label for edge in edges])
        self.width = max(LANE * (len(taken) + 1), labels + PAD) if edges else 0.0

    def _span(self, target: int) -> tuple[int, int]:
        sources = [edge.source for edge in self._by_target[target]]
        return min(target, *sources), max(target, *sources)

    def leaving(self, source: int) -> int:
        """How many ways leave a block on this side."""
        return len(self._by_source.get(source, ()))

    def groups(self) -> Iterator[tuple[int, int, list[tuple[Edge, int, int]]]]:
        """For each target its lane, and the ways to it: each with its number among those that leave its source."""
        for target, edges in self._by_target.items():
            ways = [(edge, self._by_source[edge.source].index(edge), self.leaving(edge.source)) for edge in edges]
            yield target, self._lane[target], ways


@dataclass(frozen=True, slots=True)
class _Column:
    """Blocks at their places, between which lines are drawn.

    Attributes:
        blocks, tops: Each block, and where it begins.
        first, last: The column's edges, outside of which the lanes are.
        gone: The ways that were taken, by places in the column; None where that isn't shown.
    """

    blocks: list[_Block]
    tops: list[float]
    first: float
    last: float
    gone: frozenset[tuple[int, int]] | None = None

    @property
    def middle(self) -> float:
        """The x coordinate of the middle of the column, and of each block."""
        return (self.first + self.last) / 2

    def _way(self, edge: Edge, path: str) -> str:
        if self.gone is None:
            return _line(path)
        if (edge.source, edge.target) in self.gone:
            return f'<path d="{path}" fill="none" stroke="{_TAKEN}" stroke-width="2.5" marker-end="url(#taken)"/>'
        return _line(path, _NOT_TAKEN)

    def straight(self, edge: Edge) -> Iterator[str]:
        """To the next block."""
        y = self.tops[edge.source] + self.blocks[edge.source].height
        yield self._way(edge, f"M{_n(self.middle)} {_n(y)}V{_n(self.tops[edge.target] - 1)}")
        if edge.label:
            yield _text(edge.label, self.middle + BESIDE, y + GAP / 2 + 2, anchor="start")

    def beside(self, lanes: _Lanes, toward: int) -> Iterator[str]:
        """Along the lanes: to the right with 1, to the left with -1."""
        for target, lane, ways in lanes.groups():
            x = (self.last if toward > 0 else self.first) + toward * LANE * (lane + 1)
            # Arriving lines are in a block's upper quarter and leaving ones beneath: they share no height.
            in_y = self.tops[target] + min(self.blocks[target].height / 4, LINE / 2)
            to_x = self.middle + toward * (self.blocks[target].width / 2 + 1)
            for edge, number, count in ways:
                block = self.blocks[edge.source]
                out_y = self.tops[edge.source] + block.height - (count - number) * LINE + LINE / 4
                from_x = self.middle + toward * block.width / 2
                down = 1 if in_y > out_y else -1
                yield self._way(
                    edge,
                    f"M{_n(from_x)} {_n(out_y)}H{_n(x - toward * CORNER)}"
                    f"Q{_n(x)} {_n(out_y)} {_n(x)} {_n(out_y + down * CORNER)}"
                    f"V{_n(in_y - down * CORNER)}Q{_n(x)} {_n(in_y)} {_n(x - toward * CORNER)} {_n(in_y)}H{_n(to_x)}",
                )
                if edge.label:
                    anchor = "start" if toward > 0 else "end"
                    yield _text(edge.label, from_x + toward * 4, out_y - 3, anchor=anchor, halo=True)


# --- elements ---


def _line(path: str, look: str = "") -> str:
    return f'<path d="{path}" fill="none" stroke="#333333" marker-end="url(#arrow)"{look}/>'


def _text(text: str, x: float, y: float, *, bold: bool = False, anchor: str = "middle", halo: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    around = ' paint-order="stroke" stroke="#ffffff" stroke-width="3"' if halo else ""
    return (
        f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}" fill="#222222" xml:space="preserve"{weight}{around}>'
        f"{_xml(text)}</text>"
    )


def _xml(text: str) -> str:
    return escape(_INVALID.sub("\ufffd", text))


def _text_width(texts: Iterable[str]) -> float:
    return CHAR * max((sum(map(_columns, text)) for text in texts), default=0)


def _columns(char: str) -> int:
    return 0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
