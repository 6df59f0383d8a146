"""The operator's files inside the sandbox: listed, streamed into /workspace/in, or read as a stream.

A file is sent in parts when it is asked for, and memory holds one part of it. Until then its name is there (`names`).
"""

import _thread
import errno
import io
import os
import sys

from mcp_bridge.guest import call_ids
from mcp_bridge.guest.channel import Channel, Pending
from mcp_bridge.guest.files.unfetched_inputs import FOLDER, PART, Names, can_enter, exists, follow_looks, in_folder
from mcp_bridge.guest.host_requests import MCPError, answered, call_host
from mcp_bridge.wire.annotations import Any, Callable, Iterator
from mcp_bridge.wire.messages import CallId, InputList, InputOpen, InputRead

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC

_MISSING = frozenset({"unknown_input", "input_unavailable"})
"""Codes with which opening a path of `FOLDER` just finds nothing there."""

MAX_LISTED = 3
"""Most lines at once about what isn't handed in."""

_KEPT_BYTES = 1 << 20
"""Room that is left free in /workspace when a file is written there."""


class InputRow(dict[str, Any]):
    """A row about an input: `name`, `kind`, `size`, `type`, `modified`; or `name` and `error`. Prints as a line."""

    def __repr__(self) -> str:
        if "error" in self:
            return f"{self['name']}: {self['error']}"
        count = f"{self['files']} files, " if "files" in self else ""
        return f"{self['name']}: {count}{self['size']} bytes, {self['type']}"

    __str__ = __repr__


class Inputs:
    """The inputs of this sandbox's scripts.

    Args:
        channel: The channel.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._turn = _Turn()
        self._names = Names(self._rows, self._tell)
        self._fetched: dict[str, str] = {}
        """The versions of what is in `FOLDER`, by name."""
        self._told: set[str] = set()
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        # A thread of the parent's may have it, and never gives it back here.
        self._turn = _Turn()

    def files(self, name: str | None = None) -> list[InputRow]:
        """What the operator hands in; with a name, the files of that one.

        Raises:
            MCPError: `unknown_input`; it can't be listed.
        """
        return [InputRow(row) for row in self._rows(name)]

    def _rows(self, name: str | None, call: Callable[[], CallId | None] = lambda: None) -> Iterator[dict[str, Any]]:
        start: int | None = 0
        while start is not None:
            answer = call_host(self._channel, InputList(name, start, call()))
            yield from answer["files"]
            self._tell(name or "", answer["left_out"])
            start = answer["next"]

    def fetch(self, name: str, call: CallId | None = None) -> str:
        """Stream a file or a folder into /workspace/in; returns its path there. What is there already stays.

        Args:
            name: The input, or a path in it.
            call: The call's name; by default, of the task or thread that makes it.

        Raises:
            MCPError: `workspace_full`; it can't be had, or changes while it is read.
        """
        name = _plain_name(name)
        with self._turn:
            self._names.begin_cell()
            path = f"{FOLDER}/{name}"
            found = self._found(name, call, path)
            self._tell(name, found["left_out"])
            if self._fetched.get(name) == found["version"] and exists(path) and path not in self._names:
                return path
            _remove(PART)
            try:
                os.makedirs(FOLDER, exist_ok=True)
                if found["size"] > _room(path):
                    raise _full(name, found["size"])
                self._write(name, found, PART)
                for each in (path, f"{FOLDER}/{name.partition('/')[0]}"):
                    self._names.open(each)
                _remove(path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.rename(PART, path)
                self._names.replaced(path)
            except OSError as exc:
                if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
                    raise _full(name, found["size"]) from None
                raise
            finally:
                _remove(PART)
            self._fetched[name] = found["version"]
            return path

    def _found(self, name: str, call: CallId | None, path: str) -> dict[str, Any]:
        """The host's answer about an input that is to be at a path."""
        # What is there may be what is asked for: only the answer tells.
        room = None if name in self._fetched and exists(path) else _room(path)
        try:
            found: dict[str, Any] = call_host(self._channel, InputOpen(name, call, room))
        except MCPError as exc:
            if exc.code != "workspace_full":
                raise
            raise _full(name, exc.details["size"]) from None
        return found

    def stream(self, name: str) -> "InputStream":
        """Open a file to be read from the host, without a copy here.

        Raises:
            MCPError: It can't be had.
            IsADirectoryError: It is a folder.
        """
        name = _plain_name(name)
        found = call_host(self._channel, InputOpen(name))
        if found["kind"] != "file":
            raise IsADirectoryError(errno.EISDIR, f"a folder: open one of its files, runtime.files({name!r})", name)
        return InputStream(self._channel, name, found)

    def _write(self, name: str, found: dict[str, Any], place: str) -> None:
        parts = _content(self._channel, name, found)
        held = b""
        if found["kind"] == "folder":
            os.makedirs(place)
        for row in found["files"]:
            path = f"{place}/{row['path']}" if row["path"] else place
            os.makedirs(os.path.dirname(path), exist_ok=True)
            left = row["size"]
            with open(path, "xb", buffering=0) as file:
                while left:
                    held = held or next(parts)
                    piece = memoryview(held)[:left]
                    left -= len(piece)
                    held = held[len(piece) :] if len(piece) < len(held) else b""
                    while piece:
                        piece = piece[file.write(piece) or 0 :]
            os.chmod(path, 0o444)
            os.utime(path, (row["modified"], row["modified"]))

    def _tell(self, name: str, left_out: list[str]) -> None:
        where = f"{name}/" if name else ""
        new = [line for what in left_out if (line := f"{where}{what}") not in self._told]
        self._told.update(new)
        lines, rest = new[:MAX_LISTED], new[MAX_LISTED:]
        if rest:
            # The host itself may end with how many more there are.
            last, more, after = rest[-1].removeprefix(where).partition(" more")
            is_count = more and not after and last.isascii() and last.isdecimal()
            count = len(rest) + (int(last) - 1 if is_count else 0)
            lines.append(f"{count} more of {name}" if name else f"{count} more")
        for line in lines:
            print(f"[not provided: {line}]", file=sys.stderr)  # noqa: T201  (what the script prints may be data)

    def on_event(self, event: str, args: tuple[Any, ...]) -> None:
        """An audit hook: have what is about to be opened in `FOLDER` there, and names that are about to be listed."""
        if event not in _EVENTS or not args or self._turn.owner == _thread.get_ident():
            return
        if event in _LISTINGS:
            if (path := in_folder("." if args[0] is None else args[0])) is not None:
                self.look(path)
        elif event in _WAYS:
            if (path := in_folder(args[0])) is not None and path != FOLDER:
                self._reach(path if event == "os.chdir" else os.path.dirname(path))
        elif event == "open":
            self._open(args[0], args[2])
        elif event == "os.remove":
            if (path := in_folder(args[0])) is not None:
                self.look(path)
        elif event in _STARTS:
            words = [args[0], *([args[1]] if isinstance(args[1], str | bytes) else args[1] or ())]
            for word in words:
                # Most are no paths, whatever they would be in the current directory.
                if (path := in_folder(word)) is not None and self.look(path):
                    self._open(word, 0)
        else:
            self._open(_database(args[0]) if event == "sqlite3.connect" else args[0], 0, event)

    def reach(self, path: str, flags: int) -> None:
        """Have the content of a path there that is about to be opened."""
        if self._turn.owner != _thread.get_ident():
            self._open(path, flags)

    def _open(self, what: Any, flags: int, event: str = "open") -> None:
        """Have the content of a path in `FOLDER` there before it is used."""
        if (path := in_folder(what)) is None:
            return
        if path == FOLDER:
            # Its names are listed by the descriptor.
            self.look(path)
            return
        if flags & os.O_CREAT:
            self._reach(os.path.dirname(path))
        if flags & _WRITES:
            # The kernel refuses that for a name as it does for what is fetched: whether one is there has to be known.
            self.look(path)
            return
        if event == "os.rename" and can_enter(path):
            # A folder that is moved has to be whole: what it lacks can't be fetched where it is then.
            self.look(path)
        with self._turn:
            self._names.begin_cell()
            is_closed = self._names.is_closed(path)
            is_lacking = path in self._names or (event == "os.rename" and self._names.has_names(path))
        if is_closed and event == "open":
            # Opened as a folder, whose files are listed or opened by the descriptor.
            self.look(path)
            return
        if exists(path) and not is_lacking:
            return
        name = path[len(FOLDER) + 1 :]
        if os.getpid() != self._pid:
            raise RuntimeError(
                "the bridge can't be reached from a forked process, and this input isn't fetched yet;"
                f" in the main process write first: runtime.input({name!r})"
            )
        try:
            self.fetch(name)
        except MCPError as exc:
            if exc.code not in _MISSING:
                raise
            # As it is now: it was there when its name was put in place, or may be had by another cell.
            with self._turn:
                self._names.drop(path)

    def _reach(self, folder: str) -> None:
        """Have a folder there that is about to be entered, or written to."""
        if not can_enter(folder):
            self.look(folder)

    def look(self, path: str) -> bool:
        """Have the names in place that somebody looks at; whether a name alone is at a path."""
        if self._turn.owner == _thread.get_ident() or os.getpid() != self._pid:
            return False
        with self._turn:
            self._names.begin_cell()
            if not exists(path) or path not in self._names:
                self._names.place(path, is_whole=self._fetched.__contains__)
            return path in self._names


_LISTINGS = frozenset({"os.listdir", "os.scandir"})
_WAYS = frozenset({"os.chdir", "os.mkdir"})
_STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.exec"})
_EVENTS = frozenset(
    {
        "open",
        "os.remove",
        *_LISTINGS,
        *_WAYS,
        *_STARTS,
        "os.rename",
        "os.link",
        "os.chmod",
        "os.truncate",
        "sqlite3.connect",
    }
)
"""After which the content of a path, or the names in it, have to be there."""


def _database(name: Any) -> Any:
    """The file of an SQLite database, of whose name a URI is one form."""
    return name[5:].partition("?")[0] if isinstance(name, str) and name.startswith("file:") else name


class _Turn:
    """A lock that knows who has it: what that thread does in `FOLDER` is this module's own work."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self.owner: int | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        self.owner = _thread.get_ident()

    def __exit__(self, *_: object) -> None:
        self.owner = None
        self._lock.release()


class InputStream(io.RawIOBase):
    """A file of the operator's as a stream of bytes: for reading, and seekable.

    Args:
        channel: The channel.
        name: What was opened.
        found: The answer to that.

    Attributes:
        size: Bytes.
        sha256: The SHA-256 of its content, in hexadecimal.
    """

    def __init__(self, channel: Channel, name: str, found: dict[str, Any]) -> None:
        super().__init__()
        self._part_bytes: int = found["part"]
        self.name = name
        self.size: int = found["size"]
        self.sha256: str = found["files"][0]["sha256"]
        self._parts = Parts(channel, name, found["version"], -(-found["size"] // found["part"]))
        self._cell = call_ids.Running.cell
        self._at = 0
        self._number = -1
        self._part = b""

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._at

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As any stream."""
        at = offset + (0, self._at, self.size)[whence]
        if at < 0:
            raise ValueError(f"negative seek position {at}")
        self._at = at
        return at

    def close(self) -> None:
        """As any stream."""
        if not self.closed:
            self._parts.drop()
        super().close()

    def readinto(self, buffer: Any, /) -> int:
        """As any stream.

        Raises:
            MCPError: The file isn't what it was when it was opened; or a session's earlier cell has opened it.
        """
        if self._cell != call_ids.Running.cell:
            # What came ahead isn't used either: whether it did is chance.
            told = f"The stream of {self.name!r} was opened by an earlier cell: open it again in this one."
            raise MCPError(told, code="unknown_input")
        if self._at >= self.size:
            return 0
        number, start = divmod(self._at, self._part_bytes)
        if number != self._number:
            self._part = self._parts.part(number)
            self._number = number
        view = memoryview(buffer).cast("B")
        piece = memoryview(self._part)[start : start + len(view)]
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def _content(channel: Channel, name: str, found: dict[str, Any]) -> Iterator[bytes]:
    """All parts. Each is asked for before the one before it is taken: the host reads while this side writes."""
    count = -(-found["size"] // found["part"])
    parts = Parts(channel, name, found["version"], count)
    try:
        for number in range(count):
            yield parts.part(number)
    finally:
        parts.drop()


class Parts:
    """The parts of what was opened. The next part is requested ahead of time.

    Args:
        channel: The channel.
        name: What was opened.
        version: Its version.
        count: How many parts it has.
    """

    def __init__(self, channel: Channel, name: str, version: str, count: int) -> None:
        self._channel = channel
        self._name = name
        self._version = version
        self._count = count
        self._last = -1
        self._ahead: dict[int, Pending] = {}

    def part(self, number: int) -> bytes:
        """A part's content.

        Raises:
            MCPError: It can't be had.
        """
        import binascii

        pending = self._ahead.pop(number, None) or self._ask(number)
        if number == self._last + 1 and number + 1 < self._count:
            # Whoever reads in a row goes on.
            self.drop()
            self._ahead[number + 1] = self._ask(number + 1)
        self._last = number
        return binascii.a2b_base64(answered(pending.wait_for_answer)["base64"])

    def _ask(self, number: int) -> Pending:
        asked: Pending = answered(lambda: Pending(self._channel, InputRead(self._name, self._version, number)))
        return asked

    def drop(self) -> None:
        """Nobody takes what was asked for ahead."""
        for pending in self._ahead.values():
            pending.drop()
        self._ahead.clear()


def _plain_name(name: Any) -> str:
    """An input's name, also of its path in `FOLDER`."""
    text = os.fspath(name)
    if not isinstance(text, str):
        raise TypeError(f"the name of an input is a text, not {type(text).__name__}")
    return text.removeprefix(f"{FOLDER}/").rstrip("/")


def _room(path: str) -> int:
    """The bytes that a file may have which is written to a path."""
    # A file there is replaced.
    replaced = os.stat(path).st_blocks * 512 if os.path.isfile(path) else 0
    return _free() - _KEPT_BYTES + replaced


def _free() -> int:
    status = os.statvfs(os.path.dirname(FOLDER))
    return status.f_bavail * status.f_frsize


def _full(name: str, size: int) -> MCPError:
    free = _free()
    return MCPError(
        f"{name!r} has {size} bytes, and /workspace has room for {max(0, free - _KEPT_BYTES)}. Read it as a stream, "
        f"without a copy: runtime.open_input({name!r}). (Or the operator raises workspace_size, and memory.)",
        code="workspace_full",
        details={"size": size, "free": free},
    )


def _remove(path: str) -> None:
    """Remove a file or a folder, if it is there."""
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            import shutil

            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass


_made: dict[int, Inputs] = {}


def of(channel: Channel) -> Inputs:
    """The inputs of a channel's scripts: the same ones for all modules and cells."""
    known = _made.get(id(channel))
    return known or _made.setdefault(id(channel), Inputs(channel))


def fetch_on_open(channel: Channel) -> None:
    """From now on, have files of `FOLDER` fetched when they are opened."""
    try:
        os.makedirs(FOLDER, exist_ok=True)
    except OSError:
        pass
    inputs = of(channel)
    sys.addaudithook(inputs.on_event)
    follow_looks(inputs.look, inputs.reach)
