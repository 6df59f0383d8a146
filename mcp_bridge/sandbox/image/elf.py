"""Finds the shared objects that a set of ELF files needs, as the host's own loader resolves them.

The names come from the dynamic sections of the files, which are parsed here. The paths come from the loader's `--list`,
which honours the cache, RPATH and hardware variants exactly as at run time, and executes none of the listed code. The
loader is asked only about names that no earlier answer has resolved, so hundreds of extension modules take a handful of
processes.

Source: System V ABI, chapter 5 (program header, dynamic section); ld.so(8).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.image.host_tools import run_tool

if TYPE_CHECKING:
    from collections.abc import Iterable

LOADER_SECONDS = 30.0
"""Bound on one `--list`, which takes milliseconds: this allows for a stalled disk."""

_MAGIC = b"\x7fELF"
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_SEGMENT_BYTES = 65536  # real dynamic sections are a hundredth of this; a package's file may claim anything
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5


@dataclass(frozen=True, slots=True)
class ElfFile:
    """The parts of an ELF file that the loader reads first.

    Attributes:
        needed: The DT_NEEDED names, in order.
        loader: The PT_INTERP path, or None for a shared object or static executable.
    """

    needed: tuple[str, ...]
    loader: str | None


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def read_elf(path: Path) -> ElfFile | None:
    """The dynamic section of a file, or None if it isn't a well-formed ELF file.

    Raises:
        OSError: The file can't be read.
    """
    with path.open("rb") as file:
        try:
            return _read(file)
        except (struct.error, ValueError, OverflowError):  # A truncated file, or invalid offsets.
            return None


def _read(file: BinaryIO) -> ElfFile | None:
    ident = file.read(16)
    if not ident.startswith(_MAGIC) or len(ident) < 16:  # noqa: PLR2004 - EI_NIDENT
        return None
    wide = ident[4] == 2  # noqa: PLR2004 - ELFCLASS64
    order = "<" if ident[5] == 1 else ">"
    word = order + ("Q" if wide else "I")
    header = struct.unpack(order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"), file.read(48 if wide else 36))
    table, entry_size, count = header[4], header[8], header[9]
    segments: list[_Segment] = []
    for index in range(count):
        file.seek(table + index * entry_size)
        if wide:
            kind, _, offset, address, _, size = struct.unpack(order + "IIQQQQ", file.read(40))
        else:
            kind, offset, address, _, size = struct.unpack(order + "IIIII", file.read(20))
        segments.append(_Segment(kind, offset, address, size))

    loader: str | None = None
    tags: list[tuple[int, int]] = []
    for segment in segments:
        if segment.kind == _PT_INTERP:
            file.seek(segment.offset)
            loader = file.read(min(segment.size, _SEGMENT_BYTES)).rstrip(b"\0").decode()
        elif segment.kind == _PT_DYNAMIC:
            file.seek(segment.offset)
            tags = list(struct.iter_unpack(word + word[1:], file.read(min(segment.size, _SEGMENT_BYTES))))
    return ElfFile(tuple(_needed(file, segments, tags)), loader)


def _needed(file: BinaryIO, segments: list[_Segment], tags: list[tuple[int, int]]) -> Iterable[str]:
    offsets: list[int] = []
    strings: int | None = None
    for tag, value in tags:
        if tag == _DT_NULL:
            break
        if tag == _DT_NEEDED:
            offsets.append(value)
        elif tag == _DT_STRTAB:
            strings = next(
                (
                    value - segment.address + segment.offset
                    for segment in segments
                    if segment.kind == _PT_LOAD and segment.address <= value < segment.address + segment.size
                ),
                None,
            )
    if strings is None:
        return
    for offset in offsets:
        file.seek(strings + offset)
        yield file.read(256).split(b"\0", 1)[0].decode()


@dataclass(frozen=True, slots=True)
class Libraries:
    """The path of each shared object, and the names that the loader did not find."""

    found: dict[str, Path]
    missing: frozenset[str]


async def resolve_libraries(
    loader: str, program: Path, objects: Iterable[Path], *, preload: str | None = None
) -> Libraries:
    """Resolve all shared objects that `program` and `objects` need, transitively.

    Args:
        loader: The program's PT_INTERP path.
        program: The executable.
        objects: Modules that it may load later.
        preload: An object that is opened by name at run time, and so is in no dynamic section.

    Raises:
        BridgeError: `image_build_failed` if the loader can't list the program itself.
    """
    found: dict[str, Path] = {}
    missing: set[str] = set()
    await _list(loader, program, found, missing, preload=preload)
    if not found:
        raise BridgeError("image_build_failed", f"The ELF loader {loader} can't list what {program} needs.")
    wanted = await anyio.to_thread.run_sync(lambda: [(path, read_elf(path)) for path in objects])
    for path, elf in wanted:
        if elf and any(name not in found and name not in missing for name in elf.needed):
            await _list(loader, path, found, missing)
    return Libraries(found, frozenset(missing))


async def _list(
    loader: str, path: Path, found: dict[str, Path], missing: set[str], *, preload: str | None = None
) -> None:
    result = await run_tool(
        [loader, "--list", str(path)],
        seconds=LOADER_SECONDS,
        environment={"LC_ALL": "C", "LD_PRELOAD": preload or ""},
    )
    for line in result.stdout.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow:
            continue
        place = rest.rpartition(" (")[0] or rest
        if place.startswith("/"):
            found.setdefault(Path(name).name, Path(place))
        elif "not found" in rest:
            missing.add(name)
