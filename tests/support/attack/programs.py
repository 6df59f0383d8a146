"""The programs by which attacks come to their calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .arguments import in_the_clear

if TYPE_CHECKING:
    from .generator import Attack, Case

GIVE = {"id": "first", "type": "tool", "tool": "src.give", "args": {"value": "x"}}


MESSAGE = "Shall we?\nPlease look."
"""What a step asks a person."""


def _escaped(tree: Any) -> Any:
    """As a program's text, in which a dollar sign is written twice."""
    if isinstance(tree, str):
        return tree.replace("$", "$$")
    if isinstance(tree, dict):
        return {name: _escaped(value) for name, value in tree.items()}
    return [_escaped(value) for value in tree] if isinstance(tree, list) else tree


def call_of(attack: Attack, *, written: bool | None = None, root: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """A step that makes the attack's call, and the context for it."""
    given = in_the_clear(attack.arguments)
    if attack.written if written is None else written:
        args, context = _escaped(given), {}
    else:
        names = {name: f"a{number}" for number, name in enumerate(given)}
        args = {name: f"${root}{names[name]}" for name in given}
        context = {names[name]: value for name, value in given.items()}
    return {"id": "hit", "type": "tool", "tool": f"{attack.server}.{attack.tool}", "args": args}, context


def operators(case: Case) -> dict[str, Any]:
    """The operator's programs: one for each of the first attacks, which takes its arguments from the context."""
    found = {f"ops{number}": {"name": f"ops{number}", "steps": [GIVE]} for number in range(2)}
    for number, attack in enumerate(case.attacks[:2]):
        found[f"ops{number}"] = {"name": f"ops{number}", "steps": [call_of(attack, written=False)[0]]}
    return found


def running(name: str, context: dict[str, Any]) -> dict[str, Any]:
    """A program that runs another, in the same context."""
    inner = {each: f"${each}" for each in context}
    return {"steps": [{"id": "sub", "type": "program", "program": name, "context": inner}]}


def program_of(attack: Attack) -> tuple[Any, dict[str, Any]]:
    """A program that comes to the attack's call by its path, and its context."""
    hit, context = call_of(attack)
    inner = {name: f"${name}" for name in context}
    match attack.path:
        case "nested":
            deep = {"id": "deep", "type": "program", "context": inner, "program": {"steps": [hit]}}
            return {
                "steps": [{"id": "sub", "type": "program", "context": inner, "program": {"steps": [deep]}}]
            }, context
        case "map":
            step = {name: value for name, value in hit.items() if name != "id"}
            return {"steps": [{"id": "each", "type": "map", "over": [1, 2], "step": step}]}, context
        case "parallel":
            return {
                "steps": [{"id": "fan", "type": "parallel", "parallel_steps": [hit, {**GIVE, "id": "other"}]}]
            }, context
        case "compensation":
            undo = {"tool": hit["tool"], "args": hit["args"]}
            return {"steps": [{**GIVE, "compensate": undo}, {**GIVE, "id": "last", "tool": "src.fail"}]}, context
        case "asked first":
            ask = {"id": "ask", "type": "approval", "message": MESSAGE, "details": hit["args"]}
            return {"steps": [ask, hit]}, context
        case "left":
            return {"steps": [{"id": "wait", "type": "wait", "event": "go"}, hit]}, context
        case "resumed":
            hit, payload = call_of(attack, root="__webhook__.")
            return {"steps": [{"id": "wait", "type": "wait", "event": "go"}, hit]}, payload
    return {"steps": [hit]}, context
