"""Which tools a glob names: `github.delete_*`, `*.read_?`, `files.[!w]*`, with the meaning of `fnmatch`.

A call is always judged by its tool's own names, which are the configured name of the server and the tool's name in the
server's list, whatever name was used in the call. An alias is made by the bridge and depends on the other servers and
tools, so a glob is read in one of two ways:

- *broadly*, for restrictions. It covers a tool if it matches any of its names: its own or its alias, joined to its
  server's own name or alias, as written or regardless of case and Unicode form (NFKC). No name bypasses the rule.
- *narrowly*, for permissions. Only the tool's own names count, as written, and the glob's first dot separates server
  and tool: a server `a` can't name a tool `b.c` to get what the server `a.b` may do, which is written `a[.]b.*`.

A tool that a glob names narrowly is also covered broadly.
"""

from __future__ import annotations

import fnmatch
import re
import unicodedata
from typing import Literal, NamedTuple

Reading = Literal["narrow", "broad"]
"""How a glob matches a tool: by its own names, or only by an alias or in another case."""


class ToolNames(NamedTuple):
    """The names of one tool.

    Attributes:
        server: The configured name of its server.
        tool: Its name in the server's own list.
        server_alias: The server's Python identifier.
        alias: The tool's Python identifier.
        server_derived: What its server's identifier would be without any other server; empty for the same.
        derived: What the tool's identifier would be without any other tool; empty for the same.
    """

    server: str
    tool: str
    server_alias: str
    alias: str
    server_derived: str = ""
    derived: str = ""

    def __str__(self) -> str:
        return f"{self.server}.{self.tool}"


class ToolGlob:
    """A glob over `server.tool`, read once.

    Args:
        text: The glob.

    Raises:
        ValueError: Without a dot between a server and a tool, or with spaces around it.
    """

    __slots__ = ("_folded", "_joined", "_server", "_signs", "_tool", "text")

    def __init__(self, text: str) -> None:
        if text != text.strip():
            raise ValueError(f"{text!r} begins or ends with a space")
        self.text = text
        self._signs = _signs(text)
        dot = self._signs.index(".") if "." in self._signs else -1
        if not 0 < dot < len(self._signs) - 1:
            raise ValueError(f"{text!r} is no server and tool with a dot between: 'github.*', '*.read_file', '*.*'")
        self._server = _compiled("".join(self._signs[:dot]))
        self._tool = _compiled("".join(self._signs[dot + 1 :]))
        self._joined = _compiled(text)
        self._folded = _compiled(_fold(text))

    def names(self, tool: ToolNames) -> bool:
        """The narrow reading."""
        return bool(self._server.match(tool.server) and self._tool.match(tool.tool))

    def covers(self, tool: ToolNames) -> bool:
        """The broad reading."""
        # The derived names count even if another tool has the alias now, so that a rule keeps its tool.
        return any(
            self._joined.match(f"{server}.{name}") or self._folded.match(_fold(f"{server}.{name}"))
            for server in {tool.server, tool.server_alias, tool.server_derived or tool.server_alias}
            for name in {tool.tool, tool.alias, tool.derived or tool.alias}
        )

    def includes(self, other: ToolGlob) -> bool:
        """Whether this matches everything that `other` matches. True is always right, False may be wrong."""
        return len(self._signs) in _after(self._signs, other._signs)

    def may_fit(self, server: str, alias: str, reading: Reading) -> bool:
        """Whether a server could have a tool that this matches."""
        if reading == "narrow":
            return bool(self._server.match(server))
        return any(
            _after(self._signs, tuple(f"{name}.")) or _after(_signs(_fold(self.text)), tuple(f"{_fold(name)}."))
            for name in (server, alias)
        )


def _compiled(glob: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(glob))


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _signs(text: str) -> tuple[str, ...]:
    """The signs of a glob: a character, `*`, `?`, or a set in brackets.

    As in `fnmatch`, a bracket that nothing closes is a character, and a set isn't closed by its first.
    """
    signs = []
    position = 0
    while position < len(text):
        end = position + 1
        if text[position] == "[":
            first = position + 2 if text[position + 1 : position + 2] == "!" else position + 1
            closed = text.find("]", first + 1)
            end = closed + 1 or end
        signs.append(text[position:end])
        position = end
    return tuple(signs)


def _after(wide: tuple[str, ...], narrow: tuple[str, ...]) -> set[int]:
    """Match the signs of one glob against the other's, where each of `narrow` stands for anything that it matches.

    Returns:
        The positions in `wide` that may be reached; empty if it doesn't match.
    """
    reached = _past_stars(wide, {0})
    for sign in narrow:
        fits = [index for index in reached if index < len(wide) and _sign_includes(wide[index], sign)]
        reached = _past_stars(wide, {index if wide[index] == "*" else index + 1 for index in fits})
    return reached


def _past_stars(wide: tuple[str, ...], reached: set[int]) -> set[int]:
    """Add the positions after each `*`, which may stand for nothing."""
    out = set(reached)
    for start in reached:
        index = start
        while index < len(wide) and wide[index] == "*":
            index += 1
            out.add(index)
    return out


def _sign_includes(wide: str, narrow: str) -> bool:
    if wide in {"*", narrow}:
        return True
    if narrow == "*":
        return False
    if wide == "?":
        return True
    return len(wide) > 1 and len(narrow) == 1 and narrow != "?" and bool(_compiled(wide).match(narrow))
