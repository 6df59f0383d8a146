"""Renders JSON Schemas as short Python type annotations.

Schemas are untrusted data: cyclic, huge, or with members of the wrong types. No function here raises because of that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# How many schemas are merged into one object, and how many references are followed to find a type's kind.
_MERGED = 50
# How many are merged for what is needed in one of several ways: of one place, or of a whole document.
_MERGED_FOR_NAMES = 500
_HOPS = 8

MAX_REFERENCE_CHARS = 1000
"""Of a reference within a document. A longer one is not followed: each time, all of its text would be looked at."""

# An index of a list, in a reference (RFC 6901). Python's `int` takes other digits, and refuses very many.
_INDEX = re.compile(r"[0-9]{1,9}")

# How many ways to give what is needed are shown, and how many names of one.
_WAYS_SHOWN = 10

# Maximum properties of one object; no signature shows as many.
_PROPERTIES = 1_000

_SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_ANY = "Any"

CUT = "…"
"""Stands in an annotation for what was left out of it: `dict(a: str, …)`, `Literal['a', 'b', …]`, `list[…]`."""

# How many values of an enumeration stand for the others, and in how many characters.
_LITERALS_SHOWN = 3
_LITERALS_CHARS = 60

# The text that every name begins with that an expression finds; with less of it more names begin so. In an alternative
# it would be the beginning of some of them only.
_BEGINNING = re.compile(r"\^(?P<text>(?:\\\W|[^\\.^$*+?{}\[\]|()]){0,100})(?P<repeats>[*+?{])?")

# A type with more steps than this many times its bound in characters is not joined together at all.
_SLACK = 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on the annotation of one type.

    Attributes:
        depth: How many types are nested in one another.
        nodes: Schemas that are visited.
        document_nodes: Schemas that are visited in all of the document's types: 200 parameters that refer to the same
            large type would visit 100,000. What is over it is rendered with the next bounds.
        chars: Characters. A type that has more is rendered with the next bounds.
        fields: Fields of an object. Of one with more, the required ones are shown.
        required: How many required ones.
        literals: Values of an enumeration.
    """

    depth: int
    nodes: int
    document_nodes: int
    chars: int
    fields: int
    required: int
    literals: int


BRIEF = (
    Bounds(depth=6, nodes=300, document_nodes=5_000, chars=160, fields=12, required=4, literals=12),
    Bounds(depth=2, nodes=300, document_nodes=5_000, chars=160, fields=12, required=4, literals=12),
    Bounds(depth=2, nodes=300, document_nodes=5_000, chars=160, fields=0, required=4, literals=12),
)
"""For signatures, of which a model reads many."""

WHOLE_CHARS = 20_000
"""What a whole documentation has of one type, in characters, and of the descriptions within all types."""

WHOLE = (
    Bounds(
        depth=20,
        nodes=5_000,
        document_nodes=20_000,
        chars=WHOLE_CHARS,
        fields=_PROPERTIES,
        required=_PROPERTIES,
        literals=_PROPERTIES,
    ),
    *BRIEF,
)
"""For the whole documentation of one tool."""


@dataclass(slots=True)
class ObjectShape:
    """The parameters that an object schema defines.

    Attributes:
        properties: Property schemas in the schema's order; any JSON value is possible here.
        required: Names of required properties.
        extra: The schema of other properties if the schema allows any explicitly, else None.
        extra_patterns: Schemas of other properties, by the expressions that tell their names.
    """

    properties: dict[str, Any] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    extra: Any = None
    extra_patterns: dict[str, Any] = field(default_factory=dict)

    @property
    def others(self) -> Any:
        """The schema of all other properties that the schema allows explicitly, or None."""
        schemas = [*self.extra_patterns.values(), *([] if self.extra is None else [self.extra])]
        return True if self.extra is True else {"anyOf": schemas} if len(schemas) > 1 else next(iter(schemas), None)

    @property
    def beginnings(self) -> list[str]:
        """How the names of other properties begin, in one way or another; empty if no expression tells them alone."""
        return list(dict.fromkeys(map(_beginning, self.extra_patterns))) if self.extra is None else []


def _beginning(expression: str) -> str:
    found = _BEGINNING.match(expression)
    if found is None or "|" in expression:
        return ""
    text = re.sub(r"\\(.)", r"\1", found["text"], flags=re.DOTALL)
    # What may be repeated may not be there at all.
    return text[:-1] if found["repeats"] else text


def object_shape(root: dict[str, Any]) -> ObjectShape:
    """Collect properties through `$ref` and `allOf`; of `anyOf` and `oneOf`, all properties and the common required."""
    shape = ObjectShape()
    _gather(root, root, shape, [0])
    shape.required &= set(shape.properties)
    return shape


def _gather(schema: Any, root: dict[str, Any], shape: ObjectShape, count: list[int]) -> None:
    count[0] += 1
    if not isinstance(schema, dict) or count[0] > _MERGED:
        return
    reference = schema.get("$ref")
    if isinstance(reference, str):
        _gather(resolve(root, reference), root, shape, count)
    _gather_own(schema, shape)
    for part in _list(schema.get("allOf")):
        _gather(part, root, shape, count)
    for options in (_list(schema.get("anyOf")), _list(schema.get("oneOf"))):
        shapes = [ObjectShape() for _ in options]
        for option, part in zip(shapes, options, strict=True):
            _gather(part, root, option, count)
            for name, value in islice(option.properties.items(), _PROPERTIES):
                shape.properties.setdefault(name, value)
        if shapes:
            shape.required |= set.intersection(*(option.required for option in shapes))


def _gather_own(schema: dict[str, Any], shape: ObjectShape) -> None:
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, value in islice(properties.items(), _PROPERTIES):
            shape.properties.setdefault(str(name), value)
    for name in _list_of_names(schema.get("required")):
        shape.required.add(name)
        shape.properties.setdefault(name, True)
    extra, patterns = schema.get("additionalProperties"), schema.get("patternProperties")
    if extra is True or (isinstance(extra, dict) and shape.extra is None):
        shape.extra = extra
    if isinstance(patterns, dict):
        for expression, value in patterns.items():
            if len(shape.extra_patterns) >= _MERGED:
                # Of the names that the others tell, none is refused.
                shape.extra_patterns.setdefault("", True)
                break
            if value is True or isinstance(value, dict):
                shape.extra_patterns.setdefault(str(expression), value)


def alternatives(schema: Any, root: Any, merged: list[int] | None = None) -> Iterator[tuple[str, list[list[str]]]]:
    """What of an object's fields is needed in one of several ways: `anyOf` or `oneOf`, and the names in each way.

    Names that are needed in any case are left out. Nothing is yielded where one of the ways needs nothing more.

    Args:
        schema: The object's schema.
        root: The document.
        merged: As `required_names`, where it is looked at for several objects of one document.
    """
    merged = [0] if merged is None else merged
    schema = referred(root, schema)
    if not isinstance(schema, dict):
        return
    for part in [schema, *_list(schema.get("allOf"))[:_MERGED]]:
        for keyword in ("anyOf", "oneOf") if isinstance(part, dict) else ():
            ways = required_names(_list(part.get(keyword)), root, merged)
            always = set(_list_of_names(schema.get("required"))) | set(_list_of_names(part.get("required")))
            common = set.intersection(*map(set, ways)) | always if ways else always
            needed = [[name for name in way if name not in common] for way in ways]
            if len(needed) > 1 and all(needed):
                yield keyword, needed


def required_names(options: list[Any], root: Any, merged: list[int] | None = None) -> list[list[str]]:
    """The names that each of the options of a union requires; empty if there are too many of them.

    Args:
        options: Their schemas.
        root: The document.
        merged: How many schemas were merged for the document, which is counted on. Each may have a thousand names.
    """
    merged = [0] if merged is None else merged
    if len(options) > _MERGED:
        return []
    shapes = []
    for option in options:
        if merged[0] > _MERGED_FOR_NAMES:
            return []
        shape, count = ObjectShape(), [0]
        _gather(option, root, shape, count)
        merged[0] += count[0]
        shapes.append(shape)
    return [[name for name in shape.properties if name in shape.required] for shape in shapes]


def needed_text(keyword: str, ways: list[list[str]]) -> str:
    """`give one of: id; name and folder`; of one way `give id`."""
    shown = list(dict.fromkeys(" and ".join(way[:_WAYS_SHOWN]) for way in ways))
    more = f"; {CUT}" if len(shown) > _WAYS_SHOWN or any(len(way) > _WAYS_SHOWN for way in ways) else ""
    if len(shown) == 1:
        return f"give {shown[0]}{more}"
    return f"give {'at least ' if keyword == 'anyOf' else ''}one of: {'; '.join(shown[:_WAYS_SHOWN])}{more}"


def _list_of_names(value: Any) -> list[str]:
    return [name for name in _list(value)[:_PROPERTIES] if isinstance(name, str)]


def resolve(root: Any, reference: str) -> Any:
    """The target of a reference inside the document, or None. Other documents are never fetched."""
    if not reference.startswith("#") or len(reference) > MAX_REFERENCE_CHARS:
        return None
    node = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(key)
        elif isinstance(node, list) and _INDEX.fullmatch(key) and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def referred(root: Any, schema: Any) -> Any:
    """The schema that a schema refers to, if it does; itself otherwise."""
    for _ in range(_HOPS):
        if not _is_reference(schema):
            break
        schema = resolve(root, schema["$ref"])
    return schema


class _TooLongError(Exception):
    """A type has more characters than its bounds allow."""


class TypeRenderer:
    """Renders the types of one schema document.

    Args:
        root: The document.
        bounds: Tried in order, until a type has no more characters than they allow.

    Attributes:
        is_cut: Whether `CUT` stands for anything in the annotation that was rendered last.
    """

    def __init__(self, root: Any, bounds: Sequence[Bounds] = BRIEF) -> None:
        self._root = root
        self._all_bounds = bounds
        self._bounds = bounds[0]
        self._all_nodes = [0] * len(bounds)
        self._nodes = self._chars = 0
        self.is_cut = False

    def render(self, schema: Any) -> str:
        """The annotation for a schema of the document (`list[str]`, `Literal['a', 'b'] | None`), limited in length."""
        for number, bounds in enumerate(self._all_bounds):
            if self._all_nodes[number] > bounds.document_nodes:
                continue
            self._bounds, self._nodes, self._chars, self.is_cut = bounds, 0, 0, False
            try:
                text = self._render(schema, bounds.depth, ())
            except _TooLongError:
                continue
            finally:
                self._all_nodes[number] += self._nodes
            if len(text) <= bounds.chars:
                return text
        return self._cut(self._bare(schema))

    def _cut(self, bare: str) -> str:
        """A type of which all but its kind is left out."""
        self.is_cut = True
        return f"list[{CUT}]" if bare == "list" else f"{bare}({CUT})"

    def _count(self, text: str) -> str:
        self._chars += len(text)
        if self._chars > _SLACK * self._bounds.chars:
            raise _TooLongError
        return text

    def _bare(self, schema: Any) -> str:
        for _ in range(_HOPS):
            if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
                schema = resolve(self._root, schema["$ref"])
        if not isinstance(schema, dict):
            return _ANY
        kind = schema.get("type")
        if kind is None:
            kind = "object" if "properties" in schema else "array" if "items" in schema else None
        return {"object": "dict", "array": "list"}.get(kind, _SIMPLE.get(kind, _ANY)) if isinstance(kind, str) else _ANY

    def _render(self, schema: Any, depth: int, refs: tuple[str, ...]) -> str:
        self._nodes += 1
        if self._nodes > self._bounds.nodes:
            return self._cut(_ANY)
        if not isinstance(schema, dict):
            return _ANY
        parts = self._parts(schema, depth, refs)
        if schema.get("nullable") is True:
            parts.append("None")
        return _union(parts)

    def _parts(self, schema: dict[str, Any], depth: int, refs: tuple[str, ...]) -> list[str]:
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference in refs or depth <= 0:
                return [self._cut(self._bare(resolve(self._root, reference)))]
            return [self._render(resolve(self._root, reference), depth, (*refs, reference))]
        if "const" in schema:
            return [self._literal([schema["const"]])]
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return [self._literal(schema["enum"])]
        if _is_merged(schema) and (merged := self._merged(schema, depth, refs)):
            return [merged]
        if options := _list(schema.get("anyOf")) or _list(schema.get("oneOf")):
            return [self._render(option, depth - 1, refs) for option in options] if depth > 0 else [self._cut(_ANY)]
        if _list(schema.get("allOf")) and "type" not in schema:
            return self._all_of(schema["allOf"], depth, refs)
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return [self._typed(kind, schema, depth, refs) for kind in kinds] or [_ANY]
        if kinds is None:
            kinds = "object" if "properties" in schema else "array" if "items" in schema else None
        return [self._typed(kinds, schema, depth, refs)]

    def _merged(self, schema: dict[str, Any], depth: int, refs: tuple[str, ...]) -> str:
        """An object of all the fields that it and its parts have; empty if there are none."""
        shape = ObjectShape()
        _gather(schema, self._root, shape, [0])
        parts = {option["$ref"] for key in _PARTS for option in _list(schema.get(key)) if _is_reference(option)}
        if not shape.properties:
            return ""
        if parts & set(refs):
            return self._cut("dict")
        return self._fields(shape.properties, shape.required, depth, (*refs, *sorted(parts)))

    def _all_of(self, options: list[Any], depth: int, refs: tuple[str, ...]) -> list[str]:
        """A single option usually wraps a `$ref`; of several, the first that is not `Any` is used."""
        if depth <= 0:
            return [self._cut(_ANY)]
        rendered = [self._render(option, depth - 1, refs) for option in options]
        return [next((text for text in rendered if text != _ANY), _ANY)]

    def _typed(self, kind: Any, schema: dict[str, Any], depth: int, refs: tuple[str, ...]) -> str:
        if kind == "array":
            return self._array(schema, depth, refs)
        if kind == "object":
            return self._object(schema, depth, refs)
        return _SIMPLE.get(kind, _ANY) if isinstance(kind, str) else _ANY

    def _array(self, schema: dict[str, Any], depth: int, refs: tuple[str, ...]) -> str:
        items = schema.get("prefixItems", schema.get("items"))
        if items is None or isinstance(items, bool):
            return "list"
        if depth <= 0:
            return self._cut("list")
        if isinstance(items, list):
            inner = _union([self._render(item, depth - 1, refs) for item in items])
        else:
            inner = self._render(items, depth - 1, refs)
        return "list" if inner == _ANY else f"list[{inner}]"

    def _object(self, schema: dict[str, Any], depth: int, refs: tuple[str, ...]) -> str:
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            required = set(_list_of_names(schema.get("required")))
            return self._fields(properties, required, depth, refs)
        values = schema.get("additionalProperties")
        if isinstance(values, dict) and values:
            inner = self._render(values, depth - 1, refs) if depth > 0 else self._cut(_ANY)
            return "dict" if inner == _ANY else f"dict[str, {inner}]"
        return "dict"

    def _fields(self, properties: dict[str, Any], required: set[str], depth: int, refs: tuple[str, ...]) -> str:
        if depth <= 0:
            return self._cut("dict")
        names = list(islice(properties, self._bounds.fields + 1))
        if is_cut := len(names) > self._bounds.fields:
            names = list(islice((name for name in properties if name in required), self._bounds.required))
        fields = [
            f"{self._count(name)}{'' if name in required else '?'}: {self._render(properties[name], depth - 1, refs)}"
            for name in names
        ]
        if is_cut and len(names) < len(properties):
            self.is_cut = True
            fields.append(CUT)
        return f"dict({', '.join(fields)})"

    def _literal(self, values: list[Any]) -> str:
        plain = [value for value in values if value is None or isinstance(value, (str, int, bool))]
        if len(plain) < len(values):
            return _union(list(dict.fromkeys(_NAMES.get(type(value).__name__, _ANY) for value in values)))
        some = [value for value in plain if value is not None]
        if is_cut := len(some) > self._bounds.literals or sum(map(_length, some)) > self._bounds.chars:
            self.is_cut = True
            some = some[:_LITERALS_SHOWN]
        if is_cut and sum(map(_length, some)) > _LITERALS_CHARS:
            parts = [f"{kind}({CUT})" for kind in dict.fromkeys(_NAMES[type(value).__name__] for value in some)]
        else:
            literals = [self._count(repr(value)) for value in some]
            parts = [f"Literal[{', '.join([*literals, *([CUT] if is_cut else [])])}]"] if some else []
        return _union([*parts, *(["None"] if None in plain else [])])


_PARTS = ("allOf", "anyOf", "oneOf")


def _is_merged(schema: dict[str, Any]) -> bool:
    """Whether an object's fields are in several places: its own, and those of parts."""
    of_all, own = _list(schema.get("allOf")), isinstance(schema.get("properties"), dict) and bool(schema["properties"])
    return len(of_all) > 1 or (own and any(_list(schema.get(key)) for key in _PARTS))


def _is_reference(schema: Any) -> bool:
    return isinstance(schema, dict) and isinstance(schema.get("$ref"), str)


_NAMES = {
    "str": "str",
    "int": "int",
    "bool": "bool",
    "float": "float",
    "NoneType": "None",
    "dict": "dict",
    "list": "list",
}
"""Annotations of the values of an enumeration."""


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else len(str(value)) if isinstance(value, bool) else value.bit_length()


def _union(parts: list[str]) -> str:
    flat = list(dict.fromkeys(option for part in parts for option in _split(part)))
    if not flat or _ANY in flat:
        return _ANY
    if "None" in flat:
        flat.remove("None")
        flat.append("None")
    return " | ".join(flat)


def _split(union: str) -> list[str]:
    """Split a union into its options, ignoring separators in brackets and quotes."""
    return [union] if any(mark in union for mark in "[('\"") else union.split(" | ")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
