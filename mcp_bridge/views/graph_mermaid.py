"""A program's graph as a Mermaid flowchart.

Nothing of the program's own words is outside of a quoted label, and in one every character that isn't plainly harmless
is written as an entity (`#34;`): Mermaid reads directives, comments, markdown, formulas and HTML where text was meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.views.graph import END, FAILURE, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.views.graph import Graph, Node

_PLAIN = frozenset(" ,.-_/=+()$!?*'")

_SHAPES = {
    "tool": ('["', '"]'),
    "llm": ('(["', '"])'),
    "condition": ('{{"', '"}}'),
    "approval": ('[/"', '"/]'),
    "wait": ('>"', '"]'),
    "program": ('[["', '"]]'),
}

_STYLES = (
    ("llm", "fill:#efe6fb,stroke:#7a4fb5,color:#222"),
    ("condition", "fill:#fdf3d8,stroke:#a67c00,color:#222"),
    ("approval", "fill:#fde4e0,stroke:#b5452c,color:#222"),
    ("wait", "fill:#e3eef9,stroke:#3b6ea5,color:#222"),
    ("tool", "fill:#f4f4f4,stroke:#666,color:#222"),
    ("program", "fill:#e4f4e8,stroke:#3d8b56,color:#222"),
    ("undo", "fill:#fff,stroke:#999,stroke-dasharray:4 3,color:#444"),
    ("unreached", "fill:#fff,stroke:#bbb,stroke-dasharray:2 2,color:#888"),
)


def mermaid(graph: Graph) -> str:
    """The text of a flowchart; the same for the same graph."""
    lines = [f"%% {_comment(graph.name)}", "flowchart TD"]
    lines += [f"  {line}" for line in _Writer().graph(graph, "n")]
    lines += [f"  classDef {name} {style}" for name, style in _STYLES]
    return "\n".join(lines) + "\n"


def _comment(name: str) -> str:
    # Braces would make a directive of it.
    return "".join(char for char in printable(name) if char.isalnum() or char in _PLAIN) or "a program"


def label(*lines: str) -> str:
    """Lines of text as they stand between the quotes of a label."""
    # Between two dollars Mermaid has KaTeX read a formula, entities or not: a space without a width parts them.
    return "<br/>".join("".join(map(_sign, line.replace("$$", "$\u200b$").replace("$$", "$\u200b$"))) for line in lines)


def _sign(char: str) -> str:
    return char if char.isalnum() or char in _PLAIN else f"#{ord(char)};"


class _Writer:
    """Writes nodes and edges; ids are `n0`, `n0_1`… and never a word that Mermaid could know."""

    def graph(self, graph: Graph, prefix: str) -> Iterator[str]:
        told = "<br/>".join(label(line) for line in (printable(graph.name), *graph.lines))
        yield f'{prefix}start(("{told}"))'
        ends = {edge.target for edge in graph.edges}
        for place, node in enumerate(graph.nodes):
            yield from self._node(node, f"{prefix}{place}", unreached=place in graph.unreached)
        if END in ends:
            yield f'{prefix}done((("success")))'
        if FAILURE in ends:
            yield f'{prefix}failed((("failure")))'
        yield f"{prefix}start --> {prefix}0"
        names = {END: f"{prefix}done", FAILURE: f"{prefix}failed"}
        for edge in graph.edges:
            said = f'|"{label(edge.label)}"|' if edge.label else ""
            yield f"{prefix}{edge.source} -->{said} {names.get(edge.target, f'{prefix}{edge.target}')}"

    def _node(self, node: Node, name: str, *, unreached: bool = False) -> Iterator[str]:
        if node.children or node.inner is not None:
            # A title of several lines would lie over what is inside.
            title = " - ".join((f"{node.id} ({node.kind})", *node.lines))
            yield f'subgraph {name} ["{label(title)}"]'
            # Mermaid puts what nothing connects across the direction.
            yield "  direction TB"
            for index, child in enumerate(node.children):
                yield from (f"  {line}" for line in self._node(child, f"{name}_{index}"))
            if node.inner is not None:
                yield from (f"  {line}" for line in self.graph(node.inner, f"{name}_"))
            yield "end"
        else:
            before, after = _SHAPES[node.kind]
            yield f"{name}{before}{self._label(node)}{after}"
            yield f"class {name} {'unreached' if unreached else node.kind}"
        if node.undo is not None:
            yield f'{name}_undo["{label("undo", node.undo)}"]'
            yield f"class {name}_undo undo"
            yield f'{name} -.->|"undone by"| {name}_undo'

    @staticmethod
    def _label(node: Node) -> str:
        return f"<b>{label(node.id)}</b><br/>" + label(f"({node.kind})", *node.lines)
