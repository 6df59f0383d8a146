"""What a power cut leaves of a directory: played from the journal that shim.c has written.

The model, which is harsher than most disks and file systems:

- What was written to a file before its last sync is there. Of what was written since, every sector (512 or 4096 bytes)
  has what it was at the sync or after any number of the writes since, whatever other sectors have: so writes are
  lost, reordered and torn. Sometimes one is torn inside a sector. A file's length is any that it had since; where it is
  longer than what was written, there are zeros, or rubbish.
- A name (made, removed, renamed, linked) is durable when its directory has been synced; a sync of the file doesn't do
  that. Of the names since, the first so many are there, or any of them (`names`).
- What the journal holds of ACKNOWLEDGED is what the outside had been told.
"""

import struct
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

WRITE, TRUNCATE, SYNC, SYNC_DIRECTORY, CREATE, UNLINK, RENAME, LINK, MAKE_DIRECTORY, REMOVE_DIRECTORY, UNSUPPORTED = (
    range(1, 12)
)

ACKNOWLEDGED = "acknowledged"
"""The name of a file: what a workload writes there, a line each, has been acknowledged."""

_HEAD = struct.Struct("<IIQqII")


@dataclass(frozen=True, slots=True)
class Operation:
    """One record of the journal. Paths are relative to the directory."""

    kind: int
    inode: int
    offset: int
    path: str
    data: bytes


def journal(path, root):
    """The operations in a journal.

    Args:
        path: The journal.
        root: The directory that was watched.
    """
    root, data, at, found = str(Path(root).resolve()), memoryview(Path(path).read_bytes()), 0, []

    def relative(name):
        assert name == root or name.startswith(root + "/"), name
        return name[len(root) + 1 :]

    while at < len(data):
        kind, _, inode, offset, path_length, data_length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        name = bytes(data[at : at + path_length]).decode()
        at += path_length
        content = bytes(data[at : at + data_length])
        at += data_length
        assert kind != UNSUPPORTED, f"the journal can't follow {name}"
        if kind in {RENAME, LINK}:
            content = relative(content.decode())
        found.append(Operation(kind, inode, offset, relative(name.removesuffix(" (deleted)")), content))
    return found


@dataclass(slots=True)
class _File:
    durable: bytes = b""
    pending: list = field(default_factory=list)

    def sync(self):
        if self.pending:
            self.durable = self._applied()
            self.pending = []

    def _applied(self):
        content = bytearray(self.durable)
        for kind, offset, data in self.pending:
            _apply(content, kind, offset, data)
        return bytes(content)

    def cut(self, rng, survival):
        """What is left of it.

        Args:
            rng: Chooses.
            survival: `all`, `none` or `some` of what has not been synced.
        """
        if not self.pending or survival == "none":
            return self.durable
        if survival == "all":
            return self._applied()
        sector = rng.choice((512, 4096))
        sizes = [len(self.durable)]
        touching = {}
        for number, (kind, offset, data) in enumerate(self.pending):
            if kind == TRUNCATE:
                sizes.append(offset)
                touched = range(offset // sector, max(sizes) // sector + 1)
            else:
                sizes.append(max(sizes[-1], offset + len(data)))
                touched = range(offset // sector, (offset + len(data) - 1) // sector + 1)
            for place in touched:
                touching.setdefault(place, []).append(number)
        size = rng.choice(sizes)
        filler = b"\0" if rng.random() < 0.7 else rng.randbytes(1)
        content = bytearray(self.durable[:size]) + filler * (size - len(self.durable))
        for place, numbers in touching.items():
            begin, end = place * sector, min((place + 1) * sector, size)
            if begin >= size:
                continue
            version = bytearray(self.durable[begin : begin + sector])
            kept = rng.randint(0, len(numbers))
            for which, number in enumerate(numbers[:kept]):
                kind, offset, data = self.pending[number]
                if kind == TRUNCATE:
                    del version[max(0, offset - begin) :]
                    continue
                piece = data[max(0, begin - offset) : max(0, begin + sector - offset)]
                if which == kept - 1 and rng.random() < 0.1:
                    piece = piece[: rng.randint(0, len(piece))]
                _apply(version, WRITE, max(0, offset - begin), piece)
            version = version[: end - begin]
            content[begin : begin + len(version)] = version
        return bytes(content)


def _apply(content, kind, offset, data):
    if kind == TRUNCATE:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class Disk:
    """A directory, to which operations are applied, and which can be cut off from its power at any time."""

    def __init__(self):
        self.acknowledged = []
        self._told = b""
        self._files = {}  # by inode, as the names lead to them now
        self._names = {}  # path → file; None for a directory
        self._durable = {}
        self._pending = []  # changes of names, in order: (directories, kind, path, other path or file)

    def apply(self, operation):
        """Go on by one operation."""
        kind, path = operation.kind, operation.path
        if path == ACKNOWLEDGED:
            self._told += operation.data if kind == WRITE else b""
            *lines, self._told = self._told.split(b"\n")
            self.acknowledged += [line.decode() for line in lines]
        elif kind in {WRITE, TRUNCATE}:
            if operation.inode in self._files:
                self._files[operation.inode].pending.append((kind, operation.offset, operation.data))
        elif kind == SYNC:
            if operation.inode in self._files:
                self._files[operation.inode].sync()
        elif kind == SYNC_DIRECTORY:
            self._sync_names(path)
        else:
            other = operation.data
            if kind == CREATE:
                other = self._files[operation.inode] = _File()
            change = (kind, path, other)
            _rename(self._names, change)
            self._pending.append(change)

    def _sync_names(self, directory):
        left = []
        for change in self._pending:
            if directory in _directories(change):
                _rename(self._durable, change)
            else:
                left.append(change)
        self._pending = left

    def cut(self, target, rng):
        """Cut the power, and put what is left into an empty directory.

        Args:
            target: It.
            rng: A `random.Random`, which chooses what is left.
        """
        survival = rng.choice(("all", "none", "some", "some", "some", "some"))
        names = dict(self._durable)
        if survival == "all":
            names = self._names
        elif survival == "some":
            kept = rng.randint(0, len(self._pending))
            chosen = self._pending[:kept]
            if rng.random() < 0.3:
                chosen = [change for change in self._pending if rng.random() < 0.5]
            for change in chosen:
                _rename(names, change)
        for name in sorted(names):
            path = Path(target) / name
            if not all(str(parent) in names for parent in PurePosixPath(name).parents if str(parent) != "."):
                continue
            if names[name] is None:
                path.mkdir()
            elif name.endswith("-shm"):
                # Memory, of which a cut leaves anything.
                if rng.random() < 0.5:
                    path.write_bytes(rng.randbytes(32768))
            else:
                # Everything here is private; modes are not in the journal.
                path.touch(0o600)
                path.write_bytes(names[name].cut(rng, survival))


def _directories(change):
    kind, path, other = change
    paths = [path, other] if kind in {RENAME, LINK} else [path]
    if kind == LINK:
        paths = [other]
    return {path.rpartition("/")[0] for path in paths}


def _rename(names, change):
    """Apply a change of names to some, as far as it can be: of two that belong together one may have been lost."""
    kind, path, other = change
    if kind == CREATE:
        names[path] = other
    elif kind == MAKE_DIRECTORY:
        names[path] = None
    elif kind in {UNLINK, REMOVE_DIRECTORY}:
        names.pop(path, None)
    elif path in names:
        assert names[path] is not None, "a directory that is renamed is not followed"
        names[other] = names.pop(path) if kind == RENAME else names[path]
