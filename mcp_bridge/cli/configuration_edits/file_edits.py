"""Edits of configuration files that people and other programs write, too.

An edit changes one member and leaves comments, order and format of the rest. It is made in the text; what the new text
says is compared with what it has to say before anything is written. A file is replaced whole, keeps its owner and mode,
and isn't replaced if it has changed since it was read.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mcp_bridge.atomic_files import create_private, sync_directory, write_private
from mcp_bridge.downstream.configuration import client_file_reading, jsonc
from mcp_bridge.errors import BridgeError
from mcp_bridge.large_json import MAX_DEPTH
from mcp_bridge.offload import is_deep
from mcp_bridge.private_files import private_directory
from mcp_bridge.workspace.folder_content import read_regular, why

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from mcp_bridge.downstream.configuration.known_clients import Syntax

Table = dict[str, Any]

MAX_BACKUPS = 10
"""How many backups of one file are kept: those of the last changes."""

_CONTEXT = 3
"""How many lines a diff shows around a change."""

_HUNK = re.compile(r"([-+])(\d+)")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_EMPTY_LINE = re.compile(r"(\n)\r?\n\Z")
_BOM = "\ufeff"
_MIN_MASKED = 4
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?')
# What names a secret and is none, as the clients write it.
_VARIABLE = re.compile(
    r"(?:(?:Bearer|Basic|token) )?"
    r"(?:\$\{(?:env:|input:)?[\w-]+(?::-(?:\$\w+)?)?\}|\$[A-Za-z_]\w*|\{(?:env|file):[^{}]+\})"
)
# What precedes the host of an address, and what follows its path: neither is shown where servers are listed. A password
# may hold what ends a host. It begins at the colon: a search for schemes would look often at each letter.
_ADDRESS = re.compile(r"""(?::(?=//)(//(?:[^\s"']+|[^/?#\s]+)@)?|^\$)[^?#\s]*([?#]\S+)?""")
_SECRET_KEYS = frozenset(
    {"env", "environment", "headers", "http_headers", "bearer_token", "credentials"}
    | {"client_secret", "clientSecret", "CLIENT_SECRET"}
)


class ConfigurationFile:
    """A configuration file, and the changes to make to it.

    Args:
        path: The file. A link is followed: the file that it leads to is changed.
        syntax: What it is written in.

    Raises:
        BridgeError: `bad_client_config`: it can't be read, or is invalid.
    """

    def __init__(self, path: Path, syntax: Syntax) -> None:
        self.path = path
        self.syntax: Syntax = syntax
        try:
            self.target = path.resolve(strict=path.is_symlink())
            self.old: bytes | None = read_regular(self.target, client_file_reading.MAX_USER_BYTES)
        except FileNotFoundError:
            if path.is_symlink():
                raise _bad(path, "it is a link to a file that isn't there") from None
            self.old = None
        except (OSError, RuntimeError) as exc:
            raise _bad(path, why(exc) if isinstance(exc, OSError) else "it is a link to itself") from None
        problems: list[client_file_reading.Problem] = []
        self.content = client_file_reading.parse(self.old or _empty(syntax), path, syntax, problems)
        if problems:
            raise _bad(path, problems[0].message.removesuffix("."), problems[0].line)
        if is_deep(self.content, MAX_DEPTH):
            # What writes a member, or records it, is recursive.
            raise _bad(path, f"it is nested deeper than {MAX_DEPTH} levels")
        text = (self.old or _empty(syntax)).decode("utf-8")
        self._crlf = "\r\n" in text
        self._bom, self._text = _split_bom(text)
        if syntax == "jsonc" and not jsonc.plain(self._text).strip():
            # Behind a comment that has no end of its line, it would be a part of that.
            self._text += "{}\n" if not self._text or self._text.endswith("\n") else "\n{}\n"

    @property
    def new(self) -> bytes:
        """The file's bytes with the changes."""
        return (self._bom + self._text).encode()

    @property
    def is_changed(self) -> bool:
        """Whether there is anything to write."""
        return self.new != (self.old or b"") and not (self.old is None and self.content == {})

    def member(self, *path: str) -> Any:
        """A decoded value, or None."""
        found: Any = self.content
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    def set(self, path: tuple[str, ...], value: Table) -> None:
        """Set a member, making the tables on the way.

        Raises:
            BridgeError: As `set_all`.
        """
        self.set_all(path[:-1], {path[-1]: value})

    def set_all(self, path: tuple[str, ...], values: Mapping[str, Table]) -> None:
        """Set members of the table at a path, which is made if it isn't there.

        Args:
            path: The keys that lead to the table.
            values: The members by name.

        Raises:
            BridgeError: `bad_client_config`: the text can't be edited so that it says this and nothing else.
        """
        if not values:
            return
        if self.syntax == "toml":
            there = [name for name in values if self.member(*path, name) is not None]
            text = self._without_tables(path, there) if there else self._text
            text = self._with_tables(text, path, values)
        else:
            try:
                text = jsonc.insert_all(self._text, path, values)
            except ValueError as exc:
                raise self._uneditable(str(exc)) from None
        there = self.member(*path)
        self._apply(text, _with(self.content, path, {**(there if isinstance(there, dict) else {}), **values}))

    def remove(self, path: tuple[str, ...]) -> None:
        """Remove a member that is there.

        Raises:
            BridgeError: As `set_all`.
        """
        self.remove_all(path[:-1], [path[-1]])

    def remove_all(self, path: tuple[str, ...], names: Collection[str]) -> None:
        """Remove members of the table at a path, which are there.

        Raises:
            BridgeError: As `set_all`.
        """
        if not names:
            return
        if self.syntax == "toml":
            text = self._without_tables(path, names)
        else:
            try:
                text = jsonc.remove(self._text, path, names)
            except (ValueError, KeyError) as exc:
                raise self._uneditable(str(exc)) from None
        kept = {key: value for key, value in self.member(*path).items() if key not in names}
        self._apply(text, _with(self.content, path, kept))

    def replace(self, data: bytes) -> None:
        """Replace the whole content by bytes that the file had before.

        Raises:
            BridgeError: `bad_client_config`: the file is read-only.
        """
        self._refuse_read_only()
        self._bom, self._text = _split_bom(data.decode())
        self.content = client_file_reading.loads(data or _empty(self.syntax), self.syntax)

    def diff(self) -> list[str]:
        """The changes as a unified diff.

        It may end up in a log: values of `env` and `headers`, and the queries and users of addresses, are masked.
        """
        before, after = (self.old or b"").decode("utf-8-sig").splitlines(), self._text.splitlines()
        values = _secrets(self.content)
        if self.old is not None:
            values |= _secrets(client_file_reading.loads(self.old or _empty(self.syntax), self.syntax))
        # Without what is equal at both ends: the time to compare grows with the square, and histories are long.
        ends = _equal(before, after), _equal(before[::-1], after[::-1])
        start = max(0, ends[0] - _CONTEXT)
        stop = min(len(before), len(after)) - ends[0]
        cut = max(0, min(ends[1], stop) - _CONTEXT)
        lines = difflib.unified_diff(
            before[start : len(before) - cut],
            after[start : len(after) - cut],
            str(self.path),
            str(self.path),
            lineterm="",
        )
        return [_masked(_moved(line, start), values) for line in lines]

    def write(self, backups: Path, *, mode: int | None = None) -> Path | None:
        """Write the file; return the backup of what it was, or None if it is new.

        Args:
            backups: The directory for the backup, in the state directory.
            mode: The permissions at most; for a new file, its permissions. By default 0600 for a new file.

        Raises:
            BridgeError: `client_file_changed`: it was changed meanwhile; `bad_client_config`: it can't be written;
                `state_unusable`.
        """
        backup = None if self.old is None else self._backed_up(backups, self.old)
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self._write(mode)
        except OSError as exc:
            raise _bad(self.path, f"it can't be written: {why(exc)}") from None
        return backup

    def remove_file(self) -> None:
        """Remove the file, if nobody has changed it since it was read.

        Raises:
            BridgeError: As `write`.
        """
        self._refuse_read_only()
        self.refuse_change()
        try:
            self.target.unlink()
        except OSError as exc:
            raise _bad(self.path, f"it can't be removed: {why(exc)}") from None

    def _write(self, mode: int | None) -> None:
        temporary = self.target.with_name(f".{self.target.name[:100]}.{os.getpid()}.{time.monotonic_ns()}")
        try:
            with create_private(temporary) as file:
                if self.old is not None:
                    status = self.target.stat()
                    if status.st_uid != os.geteuid() or status.st_gid != os.getegid():
                        os.fchown(file.fileno(), status.st_uid, status.st_gid)
                    old_mode = status.st_mode & 0o777
                    os.fchmod(file.fileno(), old_mode if mode is None else old_mode & mode)
                else:
                    os.fchmod(file.fileno(), 0o600 if mode is None else mode)
                file.write(self.new)
                file.flush()
                os.fsync(file.fileno())
            self.refuse_change()
            temporary.replace(self.target)
            sync_directory(self.target.parent)
        finally:
            temporary.unlink(missing_ok=True)

    def _refuse_read_only(self) -> None:
        """Replacing a file needs no permission to write it, and what is read-only is generated, or meant to stay."""
        if self.old is None:
            return
        try:
            may_be_written = self.target.stat().st_mode & 0o222
        except OSError as exc:
            raise _bad(self.path, f"it can't be written: {why(exc)}") from None
        if not may_be_written:
            raise _bad(self.path, "it is read-only")

    def refuse_change(self) -> None:
        """Clients write these files, too. What one has written since must not be lost.

        Raises:
            BridgeError: `client_file_changed`.
        """
        try:
            now: bytes | None = read_regular(self.target, client_file_reading.MAX_USER_BYTES)
        except FileNotFoundError:
            now = None
        if now != self.old:
            raise BridgeError(
                "client_file_changed",
                f"{self.path} was changed by another program meanwhile; it was left as it is.",
                hint="Run the command again. If the file is a client's that is at work, end it before.",
                file=str(self.path),
            )

    def _backed_up(self, backups: Path, data: bytes) -> Path:
        private_directory(backups.parent)
        private_directory(backups)
        prefix = f"{hashlib.sha256(os.fsencode(self.target)).hexdigest()[:12]}-{self.target.name[:80]}."
        path = backups / f"{prefix}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{time.time_ns() % 10**9:09}"
        try:
            write_private(path, data, durable=True)
            older = sorted(entry for entry in backups.iterdir() if entry.name.startswith(prefix))[:-MAX_BACKUPS]
            for entry in older:
                with suppress(OSError):
                    entry.unlink()
        except OSError as exc:
            raise BridgeError("state_unusable", f"{path} can't be written: {why(exc)}.", file=str(path)) from None
        return path

    def _with_tables(self, text: str, path: tuple[str, ...], values: Mapping[str, Table]) -> str:
        """A text of TOML with more tables: behind it, or in the inline table that has their like."""
        import tomlkit
        from tomlkit.exceptions import TOMLKitError

        try:
            whole = tomlkit.parse(text)
            inline: Any = whole
            for depth, key in enumerate(path):
                inline = inline.get(key, {})
                if isinstance(inline, tomlkit.items.InlineTable):
                    for inner in path[depth + 1 :]:
                        inline = inline.setdefault(inner, tomlkit.inline_table())
                    for name, value in values.items():
                        inline[name] = _filled(tomlkit.inline_table(), value)
                    return tomlkit.dumps(whole)
        except (TOMLKitError, AttributeError, TypeError) as exc:
            raise self._uneditable(str(exc)) from None
        for name, value in values.items():
            document: Any = tomlkit.document()
            table = document
            for key in path:
                inner_table = tomlkit.table(is_super_table=True)
                table.add(key, inner_table)
                table = inner_table
            table.add(name, _filled(tomlkit.table(), value))
            gap = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
            text += gap + tomlkit.dumps(document)
        return text

    def _without_tables(self, path: tuple[str, ...], names: Collection[str]) -> str:
        import tomlkit
        from tomlkit.exceptions import TOMLKitError

        try:
            document = tomlkit.parse(self._text)
            outer: Any = None
            table: Any = document
            for name in names:
                # Anew: what stands for a table that is in several places is wrong after a change.
                outer, table = None, document
                for key in path:
                    outer, table = table, table[key]
                del table[name]
            if not table and path and isinstance(table, tomlkit.items.Table):
                # A header that nothing follows, which would look forgotten.
                del outer[path[-1]]
            text = tomlkit.dumps(document)
        except (TOMLKitError, KeyError, TypeError) as exc:
            raise self._uneditable(str(exc)) from None
        text = _with_comments_of_what_follows(self._text, text)
        # With the last table goes the empty line before it.
        return _EMPTY_LINE.sub(r"\1", text) if self._text.startswith(text) else text

    def _apply(self, text: str, content: Table) -> None:
        """Take the new text, if it says exactly what it has to."""
        self._refuse_read_only()
        if self._crlf:
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        try:
            said = client_file_reading.loads(text.encode(), self.syntax)
        except (ValueError, RecursionError) as exc:
            raise self._uneditable(str(exc)) from None
        if _comparable(said) != _comparable(content):
            raise self._uneditable("the change would change something else, too")
        self._text, self.content = text, said

    def _uneditable(self, reason: str) -> BridgeError:
        return _bad(self.path, f"it can't be edited ({reason})")


def _empty(syntax: Syntax) -> bytes:
    return b"" if syntax == "toml" else b"{}\n"


def _bad(path: Path, reason: str, line: int | None = None) -> BridgeError:
    where = f"{path}, line {line}" if line else str(path)
    return BridgeError(
        "bad_client_config", f"{where}: {reason}. Nothing was written.", hint="Mend it, and run the command again.",
        file=str(path), line=line,
    )  # fmt: skip


def _with(table: Table, path: tuple[str, ...], value: Table) -> Table:
    if not path:
        return value
    head, *rest = path
    inner = table.get(head)
    return table | {head: _with(inner if isinstance(inner, dict) else {}, tuple(rest), value)}


def _comparable(table: Table) -> str:
    """The content as a text, in which a `nan` of TOML is equal to itself.

    Without empty tables, which say nothing: with its last server, a table of TOML is gone.
    """
    return json.dumps({key: value for key, value in table.items() if value != {}}, sort_keys=True, default=repr)


def _with_comments_of_what_follows(before: str, after: str) -> str:
    """A text of TOML after tables were removed, with the comments that stood behind them and weren't theirs.

    To the parser everything up to the next header is the table's. To a person, a comment directly below its last line
    is, and what comes after an empty line, or directly above the next header, isn't.
    """
    new = _LINE.findall(after)
    kept: list[str] = []
    removed: list[str] = []
    position = 0
    for line in _LINE.findall(before):
        if position < len(new) and line == new[position]:
            kept += [*_comments_of_next(removed, line, kept), line]
            removed, position = [], position + 1
        else:
            removed.append(line)
    if position < len(new):
        # More was changed than that lines went.
        return after
    return "".join([*kept, *_comments_of_next(removed, "", kept)])


def _comments_of_next(removed: list[str], following: str, before: list[str]) -> list[str]:
    start = len(removed)
    while start and (not removed[start - 1].strip() or removed[start - 1].lstrip().startswith("#")):
        start -= 1
    behind = removed[start:]
    own = 0
    while own < len(behind) and behind[own].strip():
        own += 1
    if own == len(behind) and following.lstrip().startswith("["):
        own = 0
    behind = behind[own:]
    while behind and not behind[0].strip() and before and not before[-1].strip():
        behind = behind[1:]
    return behind if any(line.strip() for line in behind) else []


def _filled(table: Any, value: Mapping[str, Any]) -> Any:
    """A table of tomlkit with these members, those that are tables inline."""
    import tomlkit

    for key, item in value.items():
        table.add(key, _filled(tomlkit.inline_table(), item) if isinstance(item, dict) else item)
    return table


def _split_bom(text: str) -> tuple[str, str]:
    """A byte order mark, if the text begins with one, and the rest."""
    rest = text.removeprefix(_BOM)
    return text[: len(text) - len(rest)], rest


def _secrets(value: Any) -> dict[str, str]:
    """The texts in tables, and the parts of addresses, that hold secrets, as they are written in JSON and TOML.

    By each text, what is shown in its place.
    """
    found: dict[str, str] = {}
    waiting: list[tuple[Any, bool]] = [(value, False)]
    while waiting:
        here, secret = waiting.pop()
        if isinstance(here, dict):
            waiting += [(item, secret or key in _SECRET_KEYS) for key, item in here.items()]
        elif isinstance(here, list):
            waiting += [(item, secret) for item in here]
        elif secret and isinstance(here, str) and not _VARIABLE.fullmatch(here):
            # TOML has text of several lines, and the diff has lines.
            for text in {here, *here.splitlines()}:
                if len(text.strip()) >= _MIN_MASKED:
                    found |= dict.fromkeys(_written(text), "…")
        elif isinstance(here, str):
            for user, rest in _ADDRESS.findall(here):
                # With the marks around them: one character may be a password, and is elsewhere, too.
                found |= dict.fromkeys(_written(user), "//…@") if user else {}
                found |= dict.fromkeys(_written(rest), f"{rest[0]}…") if rest else {}
    return found


def _written(text: str) -> set[str]:
    return {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def _equal(before: list[str], after: list[str]) -> int:
    """How many lines are the same at the beginning."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(before), len(after)))


def _moved(line: str, start: int) -> str:
    """A line of a diff, whose numbers count from the beginning of the file."""
    return _HUNK.sub(lambda match: f"{match[1]}{int(match[2]) + start}", line) if line.startswith("@@") else line


def _masked(line: str, values: Mapping[str, str]) -> str:
    for value in sorted(values, key=len, reverse=True):
        line = line.replace(value, values[value])

    def decoded(match: re.Match[str]) -> str:
        try:
            text = json.loads(match[0])
            return '"…"' if any(value in text for value in values) else match[0]
        except ValueError:
            return match[0]

    # Programs escape more than they have to: "\/", "\u002b".
    return _STRING.sub(decoded, line) if "\\" in line else line
