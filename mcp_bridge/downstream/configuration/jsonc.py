"""JSON with comments: read as editors read it, and edited without touching what else is in the text.

Positions are kept: comments and trailing commas are blanked out, and the rest is JSON (RFC 8259) at the same offsets.
An edit inserts, replaces or removes one member. The caller compares what the text says before and after it.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NamedTuple

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
    """Set the member at a path, making the objects on the way.

    A new member comes after the last one, indented as the members beside it. Comments stay where they are. A null on
    the way becomes an object.

    Raises:
        ValueError: As `find`.
    """
    for depth in range(1, len(path)):
        outer = find(text, path[:depth])
        if outer is None:
            break
        if text[outer.value : outer.end] == "null":
            # Clients take it as absent.
            for key in reversed(path[depth:]):
                value = {key: value}
            path = path[:depth]
            break
    if (existing := find(text, path)) is not None:
        indent = _indent_of(text, existing.start)
        return text[: existing.value] + _written(value, indent, _unit(text)) + text[existing.end :]
    depth = len(path) - 1
    while depth and find(text, path[:depth]) is None:
        depth -= 1
    for key in reversed(path[depth + 1 :]):
        value = {key: value}
    return _appended(text, path[:depth], path[depth], value)


def remove(text: str, path: tuple[str, ...]) -> str:
    """Remove the member at a path with its comma and, if it has lines of its own, these lines.

    Raises:
        ValueError: As `find`.
        KeyError: There is no such member.
    """
    member = find(text, path)
    if member is None:
        raise KeyError(path[-1])
    bare = plain(text, trailing_commas=False)
    start, end = member.start, member.end
    comma: int | None = None
    if bare[_skip(bare, end)] == ",":
        end = _skip(bare, end) + 1
    else:
        # The last member: the comma before it goes, too.
        before = len(bare[:start].rstrip()) - 1
        comma = before if bare[before] == "," else None
    line, rest = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    if rest >= 0 and not text[line:start].strip() and not text[end:rest].strip():
        kept = text[:line], text[rest + 1 :]
    else:
        kept = text[:start], text[end:].removeprefix(" ")
    before_it = kept[0] if comma is None else kept[0][:comma] + kept[0][comma + 1 :]
    return before_it + kept[1]


def _appended(text: str, path: tuple[str, ...], key: str, value: Any) -> str:
    """The text with a new last member in the object at `path`."""
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
        body = f"{inner}{json.dumps(key)}: {_written(value, inner, unit)}\n{outer}"
        kept = text[start + 1 : close].rstrip()
        return f"{text[: start + 1]}{kept}\n{body}{text[close:]}"
    last = members[-1]
    comma_at = _skip(bare, last.end)
    has_comma = bare[comma_at] == ","
    if "\n" not in text[start:close]:
        # All on one line.
        written = f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        at = comma_at + 1 if has_comma else last.end
        return f"{text[:at]}{'' if has_comma else ','} {written}{',' if has_comma else ''}{text[at:]}"
    indent = _indent_of(text, last.start)
    member = f"\n{indent}{json.dumps(key)}: {_written(value, indent, unit)}"
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
