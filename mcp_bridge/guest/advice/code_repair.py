"""The repair of code whose intended form is obvious: in a Markdown fence, or indented as a whole."""

import _ast
from typing import Any

from mcp_bridge.guest.advice import trees
from mcp_bridge.guest.runner import FILENAME

FENCES = ("```", "~~~")


def repaired(code: str, exc: SyntaxError) -> Any:
    """The syntax tree of code in a Markdown fence, or indented as a whole; None for other code.

    Line numbers are kept, and so is the indentation inside strings.

    Raises:
        SyntaxError: The code in the fence doesn't compile either.
    """
    inside = unfenced(code)
    if inside is not None:
        try:
            return compile(inside, FILENAME, "exec", _FLAGS, dont_inherit=True)
        except SyntaxError as inner:
            code, exc = inside, inner
    tree = _dedented(code) if isinstance(exc, IndentationError) else None
    if tree is None and inside is not None:
        raise exc
    return tree


_FLAGS = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | _ast.PyCF_ONLY_AST


def unfenced(code: str) -> str | None:
    """The code inside a Markdown fence, with its line numbers; None if it isn't in one, or not as a whole."""
    lines = code.split("\n")
    filled = [place for place, line in enumerate(lines) if line.strip()]
    if not filled or not lines[filled[0]].lstrip().startswith(FENCES):
        return None
    first, last = filled[0], filled[-1]
    fence = lines[first].lstrip()[:3]
    inner = [place for place in filled[1:] if lines[place].lstrip().startswith(fence)]
    if inner not in ([], [last]):
        return None
    for place in (first, *inner):
        lines[place] = ""
    return "\n".join(lines)


def _dedented(code: str) -> Any:
    tree = trees.parse("if 1:\n" + code)
    if tree is None or len(tree.body) != 1 or tree.body[0].orelse:
        return None
    tree.body = tree.body[0].body
    for node in trees.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno -= 1
            if node.end_lineno is not None:
                node.end_lineno -= 1
    return tree
