"""The inputs of one execution: listed, opened, and read in parts. What is opened is recorded with its hashes.

An execution that runs again from its record gets an input again only if the input is what it was.
"""

from __future__ import annotations

import base64
import mimetypes
import threading
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.inputs.changed_inputs import ChangedInput
from mcp_bridge.inputs.input_snapshot import PART_BYTES, InputSnapshot, opened
from mcp_bridge.inputs.listing import listed, parts_of
from mcp_bridge.inputs.open_without_links import RefusedError, error
from mcp_bridge.near_names import nearest
from mcp_bridge.offload import on_blocking_thread
from mcp_bridge.wire.base64_frames import Base64

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcp_bridge.inputs.config import InputSource

LISTED_AT_ONCE = 1000
"""Most rows of one answer about inputs."""

MAX_OPEN = 100_000
"""Most files and parts of files that an execution has open at once, each with its hash; beyond that, what was opened
first is closed. One input of any size is open."""


class ExecutionInputs:
    """The inputs of one execution.

    Args:
        sources: The inputs that it may have, by name.
    """

    def __init__(self, sources: Mapping[str, InputSource]) -> None:
        self._sources = sources
        self._open: dict[str, InputSnapshot] = {}
        self._turn = anyio.Lock()

    async def listed(self, name: str | None, start: int) -> dict[str, Any]:
        """The inputs, or the files of one.

        Args:
            name: The input's name, or a folder's of it as `NAME/FOLDER`; None for all inputs.
            start: The number of the first row.

        Returns:
            `files`, rows of `name`, `kind`, `size`, `type`, `modified` (seconds since 1970) and, of folders, `files`
            (a count); with `error` of an input that can't be had. `left_out`: what isn't handed in. `next`: the number
            of the next row, or None.

        Raises:
            BridgeError: `unknown_input`; of a name: as `opened`.
        """
        if name is not None:
            source, within = self._find(name)
            found: dict[str, Any] = await self._on_thread(_rows_of, source, within, name, start)
            return found
        names = sorted(self._sources)[start : start + LISTED_AT_ONCE]
        rows = await self._on_thread(_rows, [self._sources[each] for each in names])
        return {"files": rows, "left_out": [], "next": _next(start, len(self._sources))}

    async def opened(self, name: str, room: int | None = None) -> dict[str, Any]:
        """Open an input, to be read in parts.

        Args:
            name: Its name, or `NAME/PATH` for a folder or file in it.
            room: The most bytes that it may have, as far as it has to be hashed; None for any number.

        Returns:
            `kind` (`file`, `folder`), `version`, `size`, `part` (bytes of each part but the last), `type`, `left_out`,
            and `files`: rows of `path`, `size`, `sha256`, `modified`, whose content follows one another in the parts.

        Raises:
            BridgeError: `unknown_input`, `input_unavailable`, `input_refused`, `input_too_large`, `file_changed`,
                `workspace_full`.
        """
        snapshot = await self._snapshot(name, room)
        return {
            # First what people look for, who see the first characters of it.
            "files": [file.row() for file in snapshot.files],
            "kind": snapshot.kind,
            "type": _type(name, snapshot.kind),
            "size": snapshot.size,
            "part": PART_BYTES,
            "version": snapshot.version,
            "left_out": list(snapshot.left_out),
        }

    async def read(self, name: str, version: str, number: int) -> Base64:
        """A part of an opened input.

        Args:
            name: As it was opened.
            version: Which version of it.
            number: The part's number, from 0.

        Raises:
            BridgeError: `file_changed`: it isn't what it was; `unknown_input`: it isn't open.
        """
        snapshot = self._open.get(name)
        if snapshot is None:
            raise BridgeError(
                "unknown_input",
                f"The input {name!r} isn't open in this run.",
                hint="Open it again: in each cell of a session that reads it, after a change, and after much else.",
            )
        source, within = self._find(name)
        if snapshot.version != version:
            # It was opened again since, when it was another one.
            raise error(source, within, RefusedError("has changed while it was read", "file_changed"))
        async with self._turn:
            try:
                data = await on_blocking_thread(_encoded_part, snapshot, number)
            except RefusedError as exc:
                if exc.code == "file_changed":
                    # The next one who opens it gets it as it is then.
                    self._open.pop(name, None)
                raise error(source, within, exc) from None
        return data

    async def changed(self, name: str, answer: dict[str, Any], call: str) -> ChangedInput | None:
        """Open an input that was opened before the execution began to run again; how it differs, or None.

        Args:
            name: As it was opened.
            answer: What `opened` gave then.
            call: The call that opens it.
        """
        try:
            snapshot = await self._snapshot(name)
        except BridgeError as exc:
            return ChangedInput.unavailable(call, name, answer, exc.message)
        if snapshot.version == answer["version"]:
            return None
        return ChangedInput.between(call, name, answer, snapshot.kind, [file.row() for file in snapshot.files])

    async def _snapshot(self, name: str, room: int | None = None) -> InputSnapshot:
        source, within = self._find(name)
        is_unwanted = threading.Event()

        def work() -> InputSnapshot:
            before = self._open.get(name)
            if before is not None and before.is_current():
                # Its parts are checked when they are read, so it need not be hashed again.
                return before
            return opened(source, within, is_unwanted.is_set, room)

        async with self._turn:
            try:
                snapshot = await self._unless_abandoned(work, is_unwanted)
            except RefusedError as exc:
                raise error(source, within, exc) from None
            self._open.pop(name, None)
            self._open[name] = snapshot
            while len(self._open) > 1 and sum(each.weight for each in self._open.values()) > MAX_OPEN:
                del self._open[next(iter(self._open))]
        return snapshot

    @staticmethod
    async def _unless_abandoned(work: Callable[[], InputSnapshot], is_unwanted: threading.Event) -> InputSnapshot:
        """Hash on a thread, which notices when nobody waits for it any more."""

        def answered() -> InputSnapshot | RefusedError:
            # Returned: a task group would wrap it in a group.
            try:
                return work()
            except RefusedError as exc:
                return exc

        async def watch() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                is_unwanted.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            # So that it has begun before anything can be cancelled.
            await anyio.lowlevel.checkpoint()
            answer = await on_blocking_thread(answered)
            tasks.cancel_scope.cancel()
        if isinstance(answer, RefusedError):
            raise answer
        return answer

    async def _on_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        async with self._turn:
            return await on_blocking_thread(function, *args)

    def _find(self, name: str) -> tuple[InputSource, str]:
        """The input of a name, and the path within it.

        Raises:
            BridgeError: `unknown_input`, `input_refused`.
        """
        first, _, within = name.partition("/")
        source = self._sources.get(first)
        if source is None:
            raise unknown_input(first or name, self._sources)
        try:
            parts_of(within)
        except RefusedError as exc:
            raise error(source, within[:200], exc) from None
        return source, within


def unknown_input(name: str, known: Mapping[str, Any]) -> BridgeError:
    """The error for an input that there isn't, or that the execution may not have: it doesn't tell which."""
    close = nearest(name, list(known))
    if close:
        hint = f"Did you mean {', '.join(close)}?"
    else:
        hint = f"There are: {', '.join(sorted(known)[:20])}." if known else "The operator hands none in ([files])."
    return BridgeError("unknown_input", f"There is no input {name[:100]!r}.", hint=hint)


def narrowed(sources: Mapping[str, InputSource], files: Sequence[str] | None) -> dict[str, InputSource]:
    """The inputs that are left when a call names those that it uses.

    Raises:
        BridgeError: `unknown_input`.
    """
    if files is None:
        return dict(sources)
    for name in files:
        if name not in sources:
            raise unknown_input(name, sources)
    return {name: sources[name] for name in files}


def _next(start: int, count: int) -> int | None:
    return start + LISTED_AT_ONCE if start + LISTED_AT_ONCE < count else None


def _rows(sources: Sequence[InputSource]) -> list[dict[str, Any]]:
    return [_row(source) for source in sources]


def _row(source: InputSource) -> dict[str, Any]:
    try:
        listing = listed(source)
    except RefusedError as exc:
        told = error(source, "", exc)
        return {"name": source.name, "error": f"[{told.code}] {told.message}"}
    modified = max((file.modified_ns for file in listing.files), default=0) / 1e9
    row = {
        "name": source.name,
        "kind": listing.kind,
        "size": listing.size,
        "type": _type(source.name if listing.kind == "file" else "", listing.kind, str(source.path)),
        "modified": modified,
    }
    return row if listing.kind == "file" else row | {"files": len(listing.files)}


def _rows_of(source: InputSource, within: str, name: str, start: int) -> dict[str, Any]:
    try:
        listing = listed(source, within)
    except RefusedError as exc:
        raise error(source, within, exc) from None
    rows = [
        {
            "name": f"{name}/{file.path}" if file.path else name,
            "kind": "file",
            "size": file.size,
            "type": _type(file.path or name, "file", str(source.path)),
            "modified": file.modified_ns / 1e9,
        }
        for file in listing.files[start : start + LISTED_AT_ONCE]
    ]
    left_out = [*listing.left_out, *([f"{listing.more_left_out} more"] if listing.more_left_out else [])]
    return {"files": rows, "left_out": left_out, "next": _next(start, len(listing.files))}


def _type(name: str, kind: str, path: str = "") -> str:
    """The MIME type that a file's name implies, or else that of its path."""
    if kind == "folder":
        return "inode/directory"
    for each in (name, path):
        # A folder is put before it: the name itself may look like a URL.
        found, encoding = mimetypes.guess_type("/" + each)
        if found and not encoding:
            return found
    return "application/octet-stream"


def _encoded_part(snapshot: InputSnapshot, number: int) -> Base64:
    return Base64(base64.b64encode(snapshot.read(number)))
