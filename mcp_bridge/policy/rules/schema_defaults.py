"""What rules take from the JSON Schema of a tool's arguments: its defaults, its arrays, and what it has no place for.

The schema is a half-trusted server's word, so the work is bounded, and nothing is fetched: references to other
documents lead nowhere. Where there may be a default that these functions leave out, `possible_defaults` says so.
"""

from __future__ import annotations

import functools
import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from mcp_bridge.policy.rules.comparisons import Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

MAX_DEFAULTS_CHARS = 64 << 10
"""The largest JSON of all defaults of one call."""

_MAX_SCHEMAS = 10_000
"""How many subschemas are visited for one call."""

_MAX_DEPTH = 64
"""How deep defaults are put in: a schema may refer to itself."""

_MAX_HOPS = 32
"""References and alternatives that are followed from one place."""

_MAX_REFERENCE_CHARS = 1000
"""Of a reference. A longer one leads nowhere: it is looked at each time that it is met."""


class _TooMuchError(Exception):
    """The schema is larger than the limit."""


_SMALL_VALUES = 200
_SMALL_CHARS = 8 << 10
"""Values and characters of a schema that is looked through for defaults once, and not for every call."""

_MAX_KNOWN = 500
"""Schemas of which is remembered whether they have defaults."""

_plain: dict[int, tuple[Mapping[str, Any], bool]] = {}
"""Whether a small schema has no default, by its identity; with the schema, so that the identity isn't reused."""


def is_plain(schema: Mapping[str, Any]) -> bool:
    """Whether a schema is small, and has no default: a call's arguments stay what they are.

    Args:
        schema: A tool's as its listing has it, which is never changed.
    """
    known = _plain.get(id(schema))
    if known is not None:
        return known[1]
    has_default = _small_has_default(schema)
    if has_default is None:
        return False
    if len(_plain) >= _MAX_KNOWN:
        _plain.clear()
    _plain[id(schema)] = schema, not has_default
    return not has_default


def _small_has_default(schema: Any) -> bool | None:
    """Whether a schema has the name `default` anywhere, be it a property's; None if it isn't small."""
    stack, values, chars = [schema], 0, 0
    has_default = False
    while stack:
        node = stack.pop()
        values += 1
        if isinstance(node, str):
            chars += len(node)
        elif isinstance(node, dict):
            has_default = has_default or "default" in node
            stack.extend(node)
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
        if values + len(stack) > _SMALL_VALUES or chars > _SMALL_CHARS:
            return None
    return has_default


class Filled(NamedTuple):
    """Arguments with a tool's defaults.

    Attributes:
        arguments: The arguments; what was given is the same object.
        paths: Where a default was put in, such as `options.force` or `rows[2].unit`, in order.
        whole: Whether all defaults are in it. A schema that is too large, or has too many, leaves some out.
        defaults: From those of the paths that are in no other default to what was put in there.
        roots: The arguments that the paths are in: a name may have dots and brackets of its own.
    """

    arguments: dict[str, Any]
    paths: tuple[str, ...] = ()
    whole: bool = True
    defaults: Mapping[str, Any] = MappingProxyType({})
    roots: frozenset[str] = frozenset()


def with_defaults(schema: Mapping[str, Any], arguments: dict[str, Any], names: Collection[str] | None = None) -> Filled:
    """Put in what the caller has left out and the schema has a default for, at any depth of what was given.

    A default of null is left out: to a rule it is the same as nothing, and some servers announce it where they refuse
    it.

    Args:
        schema: JSON Schema of the arguments.
        arguments: Not changed.
        names: The arguments in which defaults are put, besides those that the schema requires; None for all.
    """
    filling = _Filling(schema, names)
    try:
        filled = filling.value(schema, arguments, "")
    except (_TooMuchError, RecursionError):
        return Filled(arguments, whole=False)
    roots = frozenset(name for name in filled if filled[name] is not arguments.get(name, filling))
    return Filled(filled, tuple(filling.paths), defaults=filling.defaults, roots=roots)


class _Filling:
    def __init__(self, root: Mapping[str, Any], names: Collection[str] | None) -> None:
        self._root = root
        self._names = names
        self._schemas = 0
        self._chars = 0
        self._is_in_default = False
        self.paths: list[str] = []
        self.defaults: dict[str, Any] = {}

    def value(self, schema: Any, value: Any, path: str, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            raise _TooMuchError
        if isinstance(value, dict):
            return self._object(schema, value, path, depth)
        if isinstance(value, list):
            return self._array(schema, value, path, depth)
        return value

    def _object(self, schema: Any, value: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        filled = value
        for part in self._parts(schema, "object"):
            properties = part.get("properties")
            if not isinstance(properties, dict):
                continue
            wanted = None if depth or self._names is None else {*self._names, *_missing(part, value)}
            for name, described in properties.items():
                if wanted is not None and name not in wanted:
                    continue
                place = f"{path}.{name}" if path else str(name)
                known = filled.get(name, self)
                if known is self:
                    new = self._put_in(described, place, depth)
                    if new is None:
                        continue
                else:
                    new = self.value(described, known, place, depth + 1)
                if new is not filled.get(name, self):
                    filled = {**filled, name: new}
        return filled

    def _put_in(self, schema: Any, place: str, depth: int) -> Any:
        """The default of a place where nothing is, with the defaults in it; None if it has none."""
        default = self._default(schema)
        if default is None:
            return None
        self.paths.append(place)
        is_outermost, self._is_in_default = not self._is_in_default, True
        default = self.value(schema, default, place, depth + 1)
        if is_outermost:
            self._is_in_default = False
            self.defaults[place] = default
        return default

    def _array(self, schema: Any, value: list[Any], path: str, depth: int) -> list[Any]:
        filled = value
        for part in self._parts(schema, "array"):
            items = part.get("items")
            if isinstance(items, dict):
                found = [self.value(items, item, f"{path}[{index}]", depth + 1) for index, item in enumerate(filled)]
                if any(new is not old for new, old in zip(found, filled, strict=True)):
                    filled = found
        return filled

    def _default(self, schema: Any) -> Any:
        for part in resolved(self._root, schema):
            self._count()
            if "default" in part:
                default = part["default"]
                self._chars += len(json.dumps(default))
                if self._chars > MAX_DEFAULTS_CHARS:
                    raise _TooMuchError
                return default
        return None

    def _parts(self, schema: Any, kind: str) -> Iterator[Mapping[str, Any]]:
        for part in certain_parts(self._root, schema, kind):
            self._count()
            yield part

    def _count(self) -> None:
        self._schemas += 1
        if self._schemas > _MAX_SCHEMAS:
            raise _TooMuchError


def _missing(part: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[str]:
    """What is required and not given: without it there is no call. Playwright's server requires what has a default."""
    required = part.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in value:
            yield name


def with_unknown_defaults(arguments: dict[str, Any], roots: Iterable[str]) -> dict[str, Any]:
    """Filled arguments for the rules if a tool refuses its own defaults: the values it uses instead aren't known."""
    return arguments | {root: Unknown(f"the default of {root}") for root in roots}


def certain_parts(
    root: Mapping[str, Any], schema: Any, kind: str, count: Callable[[], None] = lambda: None
) -> Iterator[Mapping[str, Any]]:
    """The schemas that a value of this kind has to fit, as far as they are certain.

    Args:
        root: The whole schema.
        schema: The value's.
        kind: `object` or `array`.
        count: Is called before each alternative that is looked at.
    """
    for part in resolved(root, schema):
        yield part
        for keyword in ("anyOf", "oneOf"):
            fitting = []
            for each in options if isinstance(options := part.get(keyword), list) else ():
                count()
                if kind in kinds(root, each):
                    fitting.append(each)
            # Which of several it is, is for the server to say.
            if len(fitting) == 1:
                yield from resolved(root, fitting[0])


def announces_array(schema: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    """Whether a schema allows an array at a path."""
    places: list[Any] = [schema]
    for name in path:
        places = [inner for place in places for inner in _inner(schema, place, name)][:_MAX_HOPS]
    return any("array" in kinds(schema, place) for place in places)


def reach(schema: Mapping[str, Any], path: tuple[str, ...]) -> int:
    """How many names of a path lead to something that a schema lets be there; where it is vague, all do.

    What isn't in `properties` may be there only if additional properties are declared: JSON Schema allows them
    otherwise, too, but no tool's author means that.
    """
    places: list[Any] = [schema]
    for count, name in enumerate(path):
        if any(_is_vague(schema, place, name) for place in places):
            return len(path)
        inner = [each for place in places for each in _inner(schema, place, name)]
        # As in a condition, where `output` may be the value itself.
        places = [*inner, *(places if name == "output" else ())][:_MAX_HOPS]
        if not places:
            return count
    return len(path)


_OTHERS = "additionalProperties"


def _is_vague(root: Mapping[str, Any], schema: Any, name: str) -> bool:
    """Whether a schema leaves it open whether there is a part of this name."""
    parts = list(_alternatives(root, schema))
    announced = kinds(root, schema)
    is_cut = len(parts) >= _MAX_HOPS or any("$ref" in part and target(root, part["$ref"]) is None for part in parts)
    if is_cut or not announced:
        return True
    if name.isdecimal() and "array" in announced and not any(isinstance(part.get("items"), dict) for part in parts):
        return True
    if "object" not in announced:
        return False
    says_which = any(isinstance(part.get(word), dict) for part in parts for word in ("properties", _OTHERS))
    return not says_which or any(part.get(_OTHERS) is True or part.get("patternProperties") for part in parts)


def declared(schema: Mapping[str, Any]) -> set[str]:
    """The names of the properties that a tool's schema declares."""
    parts = (part.get("properties") for part in _alternatives(schema, schema))
    return {name for properties in parts if isinstance(properties, dict) for name in properties}


def _inner(root: Mapping[str, Any], schema: Any, name: str) -> Iterator[Any]:
    for part in _alternatives(root, schema):
        properties = part.get("properties")
        if isinstance(properties, dict) and name in properties:
            yield properties[name]
        elif isinstance(part.get(_OTHERS), dict):
            yield part[_OTHERS]
        if name.isdecimal() and isinstance(part.get("items"), dict):
            yield part["items"]


def kinds(root: Mapping[str, Any], schema: Any) -> set[str]:
    """The JSON types that a schema declares; empty if it declares none."""
    names: set[str] = set()
    for part in _alternatives(root, schema):
        announced = part.get("type")
        names.update(kind for kind in (announced if isinstance(announced, list) else [announced]) if kind)
        if isinstance(part.get("properties"), dict):
            names.add("object")
    return names


def _alternatives(root: Mapping[str, Any], schema: Any) -> Iterator[Mapping[str, Any]]:
    """A schema, those that it refers to, and its alternatives."""
    waiting, hops = [schema], 0
    while waiting and hops < _MAX_HOPS:
        for part in resolved(root, waiting.pop()):
            hops += 1
            yield part
            for keyword in ("anyOf", "oneOf"):
                options = part.get(keyword)
                waiting += options[:_MAX_HOPS] if isinstance(options, list) else ()


def resolved(root: Mapping[str, Any], schema: Any) -> Iterator[Mapping[str, Any]]:
    """A schema, and what it refers to inside of its document or holds in `allOf`: all of it is true of a value."""
    waiting, hops = [schema], 0
    while waiting and hops < _MAX_HOPS:
        hops += 1
        part = waiting.pop(0)
        if not isinstance(part, dict):
            continue
        yield part
        referred = target(root, part.get("$ref"))
        if referred is not None:
            waiting.append(referred)
        every = part.get("allOf")
        waiting += every[:_MAX_HOPS] if isinstance(every, list) else ()


def target(root: Mapping[str, Any], reference: Any) -> Any:
    """The target of a reference such as `#/$defs/Point` (RFC 6901); None if it is outside of the document."""
    if not isinstance(reference, str) or not reference.startswith("#/") or len(reference) > _MAX_REFERENCE_CHARS:
        return root if reference == "#" else None
    node: Any = root
    for name in _names_in(reference):
        if not isinstance(node, dict) or name not in node:
            return None
        node = node[name]
    return node


@functools.lru_cache(maxsize=1000)
def _names_in(reference: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in unquote(reference[2:]).split("/")]
