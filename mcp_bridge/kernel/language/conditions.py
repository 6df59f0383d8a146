"""The condition language: comparisons of references and literals, joined by `and`, `or`, `not` and parentheses.

    or → and → not → one comparison (== != > >= < <= in, not in, contains) → $a.b[0], $['a-b'], 'text', 5, None, [list]

Precedence is Python's, and so is what `and` and `or` give: the value that decided. A text literal has its references
filled in and is always text. A reference that leads nowhere is None. Nothing is ever evaluated as Python: a condition
becomes a tree of the functions in this module.
"""

import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mcp_bridge.kernel.language.references import (
    MISSING,
    PATH,
    SHORT_CHARS,
    Lookup,
    Template,
    TextTooLongError,
    names_of,
    written_path,
)

MAX_CHARS = 10_000
"""Longest condition."""

MAX_DEPTH = 50
"""Deepest nesting of parentheses and lists."""

_SHOWN_CHARS = 40


class ConditionSyntaxError(ValueError):
    """A text that isn't a condition.

    Attributes:
        position: Index of the character where parsing failed.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} (at character {position + 1})")
        self.position = position


Reference = tuple[str, tuple[str, ...]]
"""First name, and the rest of the path."""


class ConditionError(ValueError):
    """A condition that can't be evaluated with these values, such as `None > 5`.

    Attributes:
        references: The operands of the comparison that are references.
    """

    def __init__(self, message: str, references: tuple[Reference, ...] = ()) -> None:
        super().__init__(message)
        self.references = references


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


_TOKENS = re.compile(
    rf"""
      (?P<space>\s+)
    | (?P<call>\${PATH}\s*\()
    | (?P<reference>\${PATH})
    | (?P<text>'[^']*'|"[^"]*")
    | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?!\w))
    | (?P<operator>==|!=|>=|<=|>|<)
    | (?P<word>[^\W\d]\w*)
    | (?P<bracket>[()\[\],])
    """,
    re.VERBOSE,
)
_UNQUOTED = re.compile(rf"\$([^\s'\"()\[\],<>=!]{{1,{_SHOWN_CHARS}}})(?=[\s),<>=!]|\Z)")
"""A reference whose names want quotes, and have none."""

_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_SIGNS = {"&&": "and", "||": "or", "&": "and", "|": "or", "!": "not"}
"""What other languages write, and a condition."""

_JOINED = {
    "[": ": an index is written $name[0], a name $name['any name']",
    "is": ": equality is written == (such as $name == None), its opposite !=",
}
"""What is said of a word or sign that joins nothing here."""

Comparison = Callable[[Any, Any], Any]

_EQUATING = frozenset({"==", "!=", "in", "not in", "contains"})
"""Comparisons that have a result even where a side is a reference that leads nowhere."""

_LONG_CHARS = 64 << 10


def _is_in(part: Any, whole: Any) -> bool:
    if type(whole) is not str or type(part) is not str or len(part) > _LONG_CHARS or len(whole) <= _LONG_CHARS:
        return part in whole
    # In pieces: other threads wait for the interpreter while one search runs.
    return any(
        whole.find(part, start, start + _LONG_CHARS + len(part)) >= 0 for start in range(0, len(whole), _LONG_CHARS)
    )


COMPARISONS: Mapping[str, Comparison] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "in": _is_in,
    "not in": lambda left, right: not _is_in(left, right),
    "contains": lambda left, right: _is_in(right, left),
}

_Node = Callable[[Lookup], Any]


class Condition:
    """A condition, parsed once and evaluated many times.

    Args:
        text: The condition.
        comparisons: What its operators (`==`, `contains`, …) mean; each may raise `ConditionError`.
        truth: Whether a value counts as true; may raise `ConditionError`.

    Raises:
        ConditionSyntaxError: The text isn't a condition.
    """

    __slots__ = ("_node", "_truth", "equated", "references", "text")

    def __init__(
        self, text: str, comparisons: Mapping[str, Comparison] = COMPARISONS, truth: Callable[[Any], bool] = bool
    ) -> None:
        if len(text) > MAX_CHARS:
            raise ConditionSyntaxError(f"the condition has {len(text)} characters; the limit is {MAX_CHARS}", MAX_CHARS)
        self.text = text
        self._truth = truth
        parser = _Parser(text, comparisons, truth)
        self._node = parser.whole()
        self.references = frozenset(parser.references)
        """Its references; those within quoted texts by their first names alone."""
        self.equated = frozenset(parser.equated)
        """Its references in comparisons that take None as well as any value, but for those with `None` itself.

        Where such a reference leads nowhere, the comparison counts it as None, which may not be meant.
        """

    @property
    def roots(self) -> frozenset[str]:
        """The first names of its references."""
        return frozenset(root for root, _ in self.references)

    def holds(self, lookup: Lookup) -> bool:
        """Whether it is true.

        Raises:
            ConditionError: The values can't be compared so.
        """
        try:
            return self._truth(self._node(lookup))
        except TextTooLongError as exc:
            raise ConditionError(str(exc)) from None


def condition(text: str) -> Condition:
    """A condition of a program. The last ones are cached; not all, as one takes fifty times the memory of its text.

    Raises:
        ConditionSyntaxError: The text isn't a condition.
    """
    return _short(text) if len(text) <= SHORT_CHARS else _long(text)


@functools.lru_cache(maxsize=512)
def _short(text: str) -> Condition:
    return Condition(text)


@functools.lru_cache(maxsize=16)
def _long(text: str) -> Condition:
    return Condition(text)


class _Parser:
    """Recursive descent; the depth of the recursion is bounded by `MAX_DEPTH`, chains are loops."""

    def __init__(self, text: str, comparisons: Mapping[str, Comparison], truth: Callable[[Any], bool]) -> None:
        self._text = text
        self._comparisons = comparisons
        self._truth = truth
        self._tokens = _tokens(text)
        self._index = 0
        self._depth = 0
        self.references: set[Reference] = set()
        self.equated: set[Reference] = set()

    def whole(self) -> _Node:
        if not self._tokens:
            raise ConditionSyntaxError("the condition is empty", 0)
        node = self._or()
        if (token := self._peek()) is not None:
            if token.kind == "operator" or token.text in COMPARISONS:
                raise ConditionSyntaxError("comparisons can't be chained: join them with 'and'", token.position)
            hint = _JOINED.get(token.text, "")
            raise ConditionSyntaxError(f"nothing joins {_shown(token)} to what comes before{hint}", token.position)
        return node

    def _peek(self) -> _Token | None:
        return self._tokens[self._index] if self._index < len(self._tokens) else None

    def _take(self, *texts: str) -> bool:
        """Consume these words or signs, if they are next; whether they were."""
        if tuple(token.text for token in self._tokens[self._index : self._index + len(texts)]) == texts:
            self._index += len(texts)
            return True
        return False

    def _or(self) -> _Node:
        nodes = [self._and()]
        while self._take("or"):
            nodes.append(self._and())
        return _first(nodes, self._truth, decides=True)

    def _and(self) -> _Node:
        nodes = [self._not()]
        while self._take("and"):
            nodes.append(self._not())
        return _first(nodes, self._truth, decides=False)

    def _not(self) -> _Node:
        count = 0
        while self._take("not"):
            count += 1
        node = self._comparison()
        if not count:
            return node
        wanted, truth = count % 2 == 0, self._truth
        return lambda lookup: truth(node(lookup)) is wanted

    def _comparison(self) -> _Node:
        left = self._operand()
        if self._take("not", "in"):
            name = "not in"
        else:
            token = self._peek()
            if token is None or token.text not in COMPARISONS:
                return left
            name = token.text
            self._index += 1
        right = self._operand()
        if name in _EQUATING:
            for side, other in ((left, right), (right, left)):
                if isinstance(side, _Reference) and other is not _NONE:
                    self.equated.add((side.root, side.path))
        return _compare(name, self._comparisons[name], left, right)

    def _operand(self) -> _Node:
        token = self._peek()
        if token is None:
            raise ConditionSyntaxError("the condition ends where a value should be", len(self._text))
        self._index += 1
        match token.kind:
            case "reference":
                return self._reference(token.text)
            case "text":
                return self._literal(token.text[1:-1])
            case "number":
                return _Constant(_number(token))
            case "word" if token.text in _WORDS:
                value = _WORDS[token.text]
                return _NONE if value is None else _Constant(value)
        if token.text in {"(", "["}:
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise ConditionSyntaxError(f"nested deeper than {MAX_DEPTH} levels", token.position)
            node = self._or() if token.text == "(" else self._list()
            self._close(")" if token.text == "(" else "]", token)
            self._depth -= 1
            return node
        hint = ""
        if token.kind == "word" and len(token.text) <= _SHOWN_CHARS:
            hint = f": a reference is written ${token.text}, a text '{token.text}'"
        raise ConditionSyntaxError(f"{_shown(token)} stands where a value should be{hint}", token.position)

    def _list(self) -> _Node:
        nodes: list[_Node] = []
        while (token := self._peek()) is not None and token.text != "]":
            nodes.append(self._operand())
            if not self._take(","):
                break
        return lambda lookup: [node(lookup) for node in nodes]

    def _close(self, sign: str, opened: _Token) -> None:
        if not self._take(sign):
            token = self._peek()
            if token is None:
                raise ConditionSyntaxError(f"nothing closes this {opened.text!r}", opened.position)
            raise ConditionSyntaxError(f"{sign!r} should be where {_shown(token)} is", token.position)

    def _reference(self, text: str) -> _Node:
        node = _Reference(text)
        self.references.add((node.root, node.path))
        return node

    def _literal(self, text: str) -> _Node:
        # The space keeps a text that is one reference a text.
        template = Template(text + " ")
        self.references |= {(root, ()) for root in template.roots}
        if not template.roots:
            return _Constant(template.fill(_resolve_missing)[:-1])
        return lambda lookup: template.fill(lookup)[:-1]


class _Reference:
    """A reference as a node. Its value is None where it leads nowhere."""

    __slots__ = ("path", "root")

    def __init__(self, text: str) -> None:
        self.root, *rest = names_of(text)
        self.path = tuple(rest)

    def __call__(self, lookup: Lookup) -> Any:
        found = lookup(self.root, self.path)
        return None if found is MISSING else found


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    position = 0
    while position < len(text):
        match = _TOKENS.match(text, position)
        if match is None:
            raise ConditionSyntaxError(_strange(text, position, found[-1] if found else None), position)
        kind = match.lastgroup or ""
        if kind == "call":
            raise ConditionSyntaxError(
                f"{match[0][-_SHOWN_CHARS:]}…) would be a call: conditions call nothing", position
            )
        if kind != "space":
            found.append(_Token(kind, match[0], position))
        position = match.end()
    return found


def _strange(text: str, position: int, before: _Token | None) -> str:
    sign, both = text[position], text[position : position + 2]
    if both in _SIGNS:
        return f"{both!r} means nothing in a condition: write {_SIGNS[both]!r}"
    if sign == "$":
        return "no name follows this $: a reference is written $name, or $['any name']"
    if before is not None and before.kind == "reference" and before.position + len(before.text) == position:
        return f"{sign!r} is no part of a name, unless it is quoted{_quoted(text[before.position :])}"
    if sign in _SIGNS:
        return f"{sign!r} means nothing in a condition: write {_SIGNS[sign]!r}"
    if sign in "'\"":
        other = "'" if sign == '"' else '"'
        return f"nothing closes this {sign}: a text that has a {sign} in it stands between two {other}"
    if sign == "=":
        return "'=' is no comparison: equality is '=='"
    return f"{sign!r} means nothing in a condition"


def _quoted(text: str) -> str:
    """How the reference at the beginning of a text is written with its names in quotes, if that is what it is."""
    meant = _UNQUOTED.match(text)
    return f": {written_path(meant[1].split('.'))}" if meant else ""


def _shown(token: _Token) -> str:
    return repr(token.text if len(token.text) <= _SHOWN_CHARS else token.text[:_SHOWN_CHARS] + "…")


def _number(token: _Token) -> int | float:
    text = token.text
    if len(text) > 2 * _SHOWN_CHARS:
        raise ConditionSyntaxError("a number of too many digits", token.position)
    value = float(text) if any(sign in text for sign in ".eE") else int(text)
    if value in (float("inf"), float("-inf")):
        raise ConditionSyntaxError("a number too large for a 64-bit float", token.position)
    return value


class _Constant:
    """A literal as a node."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, _lookup: Lookup) -> Any:
        return self.value


_NONE = _Constant(None)


def _resolve_missing(_root: str, _path: tuple[str, ...]) -> Any:
    return MISSING


def _first(nodes: list[_Node], truth: Callable[[Any], bool], *, decides: bool) -> _Node:
    """The first value that is true (or false), else the last one."""
    if len(nodes) == 1:
        return nodes[0]

    def node(lookup: Lookup) -> Any:
        value = None
        for part in nodes:
            value = part(lookup)
            if truth(value) is decides:
                break
        return value

    return node


def _compare(name: str, function: Comparison, left: _Node, right: _Node) -> _Node:
    def refused(one: Any, other: Any) -> ConditionError:
        kinds = f"{type(one).__name__} {name} {type(other).__name__}"
        references = tuple((side.root, side.path) for side in (left, right) if isinstance(side, _Reference))
        return ConditionError(f"these can't be compared so: {kinds}", references)

    def node(lookup: Lookup) -> Any:
        one, other = left(lookup), right(lookup)
        try:
            return function(one, other)
        except TypeError:
            raise refused(one, other) from None

    if not isinstance(left, _Reference) or not isinstance(right, _Constant):
        return node
    root, path, constant = left.root, left.path, right.value

    def node_of_reference(lookup: Lookup) -> Any:
        # Most conditions are such a comparison, and take half the time so.
        found = lookup(root, path)
        one = None if found is MISSING else found
        try:
            return function(one, constant)
        except TypeError:
            raise refused(one, constant) from None

    return node_of_reference
