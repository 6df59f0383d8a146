"""A dry run's code: where Python decides on a value without calling its methods, the code checks it first.

That is `is` and `is not`, `match`, and the functions of `FUNCTIONS`. Anything else needing a value calls its methods.
"""

import ast
import builtins

from mcp_bridge.guest.values import planned_values
from mcp_bridge.wire.annotations import Any

NEED, NEED_ALL = "__mcp_need__", "__mcp_need_all__"

FUNCTIONS = frozenset({"type", "id", "callable"})
"""Called with one value, they tell what it is without asking it."""


def rewrite(tree: Any) -> None:
    """Have a module's code look at values, before it is compiled."""
    setattr(builtins, NEED, planned_values.need)
    setattr(builtins, NEED_ALL, planned_values.need_all)
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for at, operator in enumerate(node.ops):
                if isinstance(operator, (ast.Is, ast.IsNot)):
                    operands[at : at + 2] = [_looked_at(one, NEED) for one in operands[at : at + 2]]
            node.left, *node.comparators = operands
        elif isinstance(node, ast.Match):
            node.subject = _looked_at(node.subject, NEED_ALL)
        elif isinstance(node, ast.Call) and _asks(node):
            node.args[0] = _looked_at(node.args[0], NEED)


def _asks(call: ast.Call) -> bool:
    is_one = len(call.args) == 1 and not isinstance(call.args[0], ast.Starred)
    return is_one and isinstance(call.func, ast.Name) and call.func.id in FUNCTIONS


def _looked_at(node: Any, by: str) -> Any:
    if isinstance(node, (ast.Constant, ast.Lambda)):
        return node
    function = ast.copy_location(ast.Name(by, ast.Load()), node)
    return ast.copy_location(ast.Call(function, [node], []), node)
