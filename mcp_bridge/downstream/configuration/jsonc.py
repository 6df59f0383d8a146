"""JSON with comments: read as editors read it, and edited without touching what else is in the text.

Positions are kept: comments and trailing commas are blanked out, and the rest is JSON (RFC 8259) at the same offsets.
An edit inserts, replaces or removes one member. The caller compares what the text says before and after it.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# Possessive, and matching what isn't closed, too: else it would be scanned again from each of its quotes and marks.
_STRING = r'"(?:[^"\\\n]|\\.)*+"?'
_STRING_OR_COMMENT = re.compile(rf"{_STRING}|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/)?", re.DOTALL)
_STRING_OR_TRAILING_COMMA = re.compile(rf"{_STRING}|,(?=\s*+[}}\]])", re.DOTALL)
_NOT_NEWLINE = re.compile(r"[^\n]")
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


class Member(NamedTuple):
    """A member of an object: its key, and the offsets of its beginning, its value and its end."""

    key: str
    start: int
    value: int
    end: int


def plain(text: str, *, trailing_commas: bool = True) -> str:
    """The text with comments, and commas before a closing bracket, replaced by spaces; of the same length."""

    def blanked(match: re.Match[str]) -> str:
        found = match.group()
        kept = found.startswith('"') or (found.startswith("/*") and not found.endswith("*/"))
        return found if kept else _NOT_NEWLINE.sub(" ", found)

    without = _STRING_OR_COMMENT.sub(blanked, text)
    return _STRING_OR_TRAILING_COMMA.sub(blanked, without) if trailing_commas else without


def loads(text: str, *, trailing_commas: bool = True) -> Any:
    """Decode JSON with comments. Of a repeated key the last one counts, as in the clients' parsers.

    Raises:
        json.JSONDecodeError: It is invalid; the position is that in the text.
        ValueError: A number has too many digits.
        RecursionError: It is nested too deeply.
    """
    return json.loads(plain(text, trailing_commas=trailing_commas))


def find(text: str, path: tuple[str, ...]) -> Member | None:
    """The member at a path of keys, or None.

    Args:
        text: Valid JSON with comments.
        path: The keys of the enclosing objects, and of the member.

    Raises:
        ValueError: A key of the path is there twice, or a value on the way is no object.
    """
    bare = plain(text)
    start, member = _skip(bare, 0), None
    for key in path:
        found = [row for row in _members(bare, start) if row.key == key]
        if len(found) > 1:
            raise ValueError(f"{key!r} is there twice")
        if not found:
            return None
        [member] = found
        start = member.value
    return member


def insert(text: str, path: tuple[str, ...], value: Any) -> str:
    """Set the member at a path. As `insert_all`."""
    return insert_all(text, path[:-1], {path[-1]: value})


def insert_all(text: str, path: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """Set members of the object at a path, making the objects on the way.

    New members come after the last one, indented as the members beside it. Comments stay where they are. A null on
    the way becomes an object. It takes the time of the whole text, however many members there are.

    Raises:
        ValueError: As `find`.
    """
    for depth in range(1, len(path) + 1):
        outer = find(text, path[:depth])
        if outer is not None and text[outer.value : outer.end] != "null":
            continue
        made: Any = dict(values)
        for key in reversed(path[depth:]):
            made = {key: made}
        if outer is None:
            return _appended(text, path[: depth - 1], {path[depth - 1]: made})
        # Clients take it as absent.
        return _replaced(text, outer, made)
    bare = plain(text)
    outer = find(text, path)
    start = outer.value if outer is not None else _skip(bare, 0)
    if bare[start] != "{":
        raise ValueError(f"{'.'.join(path) or 'the file'} is no object")
    present = [member for member in _members(bare, start) if member.key in values]
    names = {member.key for member in present}
    if len(names) < len(present):
        counted = [member.key for member in present]
        raise ValueError(f"{next(name for name in names if counted.count(name) > 1)!r} is there twice")
    # From the last on: what is replaced moves none of those before it.
    for member in reversed(present):
        text = _replaced(text, member, values[member.key])
    added = {key: value for key, value in values.items() if key not in names}
    return _appended(text, path, added) if added else text


def _replaced(text: str, member: Member, value: Any) -> str:
    return text[: member.value] + _written(value, _indent_of(text, member.start), _unit(text)) + text[member.end :]


def remove(text: str, path: tuple[str, ...], keys: Collection[str]) -> str:
    """Remove members of the object at a path, each with its comma and, if it has lines of its own, these lines.

    Raises:
        ValueError: As `find`.
        KeyError: There is no such member.
    """
    bare = plain(text, trailing_commas=False)
    if path and (outer := find(text, path)) is None:
        raise KeyError(path[-1])
    members = _members(plain(text), outer.value if path and outer is not None else _skip(bare, 0))
    found = [member for member in members if member.key in keys]
    names = [member.key for member in found]
    if len(set(names)) < len(names):
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    if missing := set(keys).difference(names):
        raise KeyError(missing.pop())
    # From the last on: what is cut moves none of those before it.
    for member in reversed(found):
        cuts = _cuts(text, bare, member)
        text, bare = _without(text, cuts), _without(bare, cuts)
    return text


def _cuts(text: str, bare: str, member: Member) -> list[tuple[int, int]]:
    """What goes with a member, in order."""
    start, end = member.start, member.end
    cuts = []
    if bare[_skip(bare, end)] == ",":
        end = _skip(bare, end) + 1
    else:
        # The last member: the comma before it goes, too.
        before = start - 1
        while bare[before] in " \t\r\n":
            before -= 1
        cuts = [(before, before + 1)] if bare[before] == "," else []
    line, rest = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    if rest >= 0 and not text[line:start].strip() and not text[end:rest].strip():
        return [*cuts, (line, rest + 1)]
    return [*cuts, (start, end + (text[end : end + 1] == " "))]


def _without(text: str, cuts: list[tuple[int, int]]) -> str:
    for start, end in reversed(cuts):
        text = text[:start] + text[end:]
    return text


def _appended(text: str, path: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """The text with new last members in the object at `path`."""
    bare = plain(text, trailing_commas=False)
    start = find(text, path).value if path else _skip(bare, 0)  # type: ignore[union-attr]
    if bare[start] != "{":
        raise ValueError(f"{'.'.join(path) or 'the file'} is no object")
    members = list(_members(plain(text), start))
    close = _DECODER.raw_decode(plain(text), start)[1] - 1
    unit = _unit(text)
    if not members:
        outer = _indent_of(text, start)
        inner = outer + unit
        body = ",\n".join(f"{inner}{json.dumps(key)}: {_written(value, inner, unit)}" for key, value in values.items())
        kept = text[start + 1 : close].rstrip()
        return f"{text[: start + 1]}{kept}\n{body}\n{outer}{text[close:]}"
    last = members[-1]
    comma_at = _skip(bare, last.end)
    has_comma = bare[comma_at] == ","
    if "\n" not in text[start:close]:
        # All on one line.
        written = ", ".join(
            f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()
        )
        at = comma_at + 1 if has_comma else last.end
        return f"{text[:at]}{'' if has_comma else ','} {written}{',' if has_comma else ''}{text[at:]}"
    indent = _indent_of(text, last.start)
    member = ",".join(f"\n{indent}{json.dumps(key)}: {_written(value, indent, unit)}" for key, value in values.items())
    if has_comma:
        at = _end_of_line(text, comma_at + 1, close)
        return f"{text[:at]}{member},{text[at:]}"
    # A comment behind the last member stays with it.
    at = _end_of_line(text, last.end, close)
    return f"{text[: last.end]},{text[last.end : at]}{member}{text[at:]}"


def _end_of_line(text: str, start: int, close: int) -> int:
    """The end of the line, if only comments follow in it; else `start`."""
    end = text.find("\n", start, close)
    if end < 0:
        return start
    rest = text[start:end]
    # A block comment that goes on over the line's end stays whole.
    return end if not plain(rest + "\n").strip() and "/*" not in rest else start


def _members(bare: str, start: int) -> list[Member]:
    """The members of the object that begins at `start` of plain JSON."""
    if bare[start] != "{":
        raise ValueError("it is no object")
    members = []
    at = _skip(bare, start + 1)
    while bare[at] == '"':
        key, end = scanstring(bare, at + 1, True)  # noqa: FBT003 - its signature
        value = _skip(bare, _skip(bare, end) + 1)
        stop = _DECODER.raw_decode(bare, value)[1]
        members.append(Member(key, at, value, stop))
        at = _skip(bare, stop)
        if bare[at] == ",":
            at = _skip(bare, at + 1)
    return members


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _indent_of(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """What the file indents by: that of its first indented line."""
    match = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    return match.group(1) if match else "  "


def _written(value: Any, indent: str, unit: str) -> str:
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", f"\n{indent}")
