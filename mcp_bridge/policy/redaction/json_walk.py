"""JSON values rebuilt leaf by leaf, without recursion: what nests 10,000 deep is no reason to fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LEAVES = (str, int, float, type(None))


class TooDeepError(ValueError):
    """A value nests deeper than the caller's limit."""


def rebuild(
    value: Any,
    leaf: Callable[[Any], Any],
    key: Callable[[str], str] | None = None,
    *,
    max_depth: int | None = None,
) -> Any:
    """The value with `leaf` applied to its text, numbers, booleans and nulls, and `key` to the keys of its objects.

    Args:
        value: Never changed. Tuples count as arrays.
        leaf: Returns the leaf itself for one that stays.
        key: As `leaf`; None leaves keys alone. Of two keys that become the same, the later one's value stays.
        max_depth: How deep arrays and objects may nest.

    Returns:
        New arrays and objects where something in them has changed; the same object where nothing has.

    Raises:
        TooDeepError: Deeper than `max_depth`.
        TypeError: Something in it is not JSON.
    """
    # A frame: a container, what is left of it, and what was made of it so far.
    stack: list[tuple[Any, Iterator[Any], list[Any]]] = []
    result = _enter(value, leaf, stack, max_depth)
    while stack:
        container, rest, made = stack[-1]
        for child in rest:
            depth = len(stack)
            result = _enter(child, leaf, stack, max_depth)
            if len(stack) > depth:
                break
            made.append(result)
        else:
            stack.pop()
            result = _finished(container, made, key)
            if stack:
                stack[-1][2].append(result)
    return result


def _enter(value: Any, leaf: Callable[[Any], Any], stack: list[Any], max_depth: int | None) -> Any:
    if isinstance(value, dict):
        stack.append((value, iter(value.values()), []))
    elif isinstance(value, (list, tuple)):
        stack.append((value, iter(value), []))
    elif isinstance(value, _LEAVES):
        return leaf(value)
    else:
        raise TypeError(f"{type(value).__name__} is no JSON")
    if max_depth is not None and len(stack) > max_depth:
        raise TooDeepError(f"arrays and objects nest deeper than {max_depth} levels")
    return None


def _finished(container: Any, made: list[Any], key: Callable[[str], str] | None) -> Any:
    if not isinstance(container, dict):
        same = len(made) == len(container) and all(a is b for a, b in zip(container, made, strict=True))
        return container if same else made
    keys = list(container) if key is None else [_key(name, key) for name in container]
    if all(a is b for a, b in zip(container.values(), made, strict=True)) and all(
        a is b for a, b in zip(container, keys, strict=True)
    ):
        return container
    return dict(zip(keys, made, strict=True))


def _key(name: Any, key: Callable[[str], str]) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a key is text, not {type(name).__name__}")
    return key(name)


def leaves(value: Any) -> Iterator[Any]:
    """Every key and every leaf, in no particular order; what isn't JSON counts as a leaf."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield from node
            stack.extend(node.values())
        elif isinstance(node, (list, tuple)):
            stack.extend(node)
        else:
            yield node
