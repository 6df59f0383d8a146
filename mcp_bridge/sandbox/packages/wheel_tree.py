"""A wheel's files, as uv has unpacked them: checked, and without what has no use in a sandbox.

Nothing of it is trusted. uv writes below its target directory alone; here everything that isn't a plain file or a
directory is refused, and so is what has too many files or too large ones.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import stat
import uuid
import zipfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from mcp_bridge.atomic_files import write_private
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcp_bridge.sandbox.packages.package_set import LockedPackage

MAX_FILES = 50_000
"""Most files of one wheel."""

MAX_NAME_CHARS = 200
MAX_DEPTH = 40

TREE = "tree"
ARCHIVE = "package.zip"
_MANIFEST = "manifest.json"

_LEFT_OUT = frozenset({"bin", "share", "include", "__pycache__", ".lock"})
"""Of a wheel's top level, what no script needs: programs, and documents."""

_RUN_BY_ITSELF = frozenset({"sitecustomize", "usercustomize"})
"""Modules that an interpreter would run by itself, whether they are files or folders."""

_OURS = frozenset({"mcp_bridge"})
"""Names that the guest has."""


@dataclass(frozen=True, slots=True)
class WheelFiles:
    """A wheel in the cache.

    Attributes:
        name: The package's normalised name.
        version: Its version.
        size: The bytes of its files.
        native: Whether it has compiled modules or libraries.
        modules: What of it can be imported, at the top level.
    """

    name: str
    version: str
    size: int
    native: bool
    modules: tuple[str, ...]


def read_manifest(folder: Path) -> WheelFiles | None:
    """What a folder of the cache has; None if it isn't whole."""
    try:
        data = json.loads((folder / _MANIFEST).read_text())
        return WheelFiles(**data | {"modules": tuple(data["modules"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_manifest(folder: Path, files: WheelFiles) -> None:
    """Say that a folder of the cache is whole. Everything else of it is on the disk before."""
    write_private(folder / _MANIFEST, json.dumps(asdict(files)).encode(), durable=True)


def cleaned(tree: Path, package: LockedPackage, max_bytes: int) -> WheelFiles:
    """Check the files of a wheel, and remove those that have no use in a sandbox.

    Args:
        tree: The directory that they are in.
        package: What they have to be of.
        max_bytes: How large they may be together.

    Raises:
        BridgeError: `bad_wheel`, `packages_too_large`.
        OSError: They can't be read.
    """
    for entry in list(os.scandir(tree)):
        first = entry.name.partition(".")[0]
        if entry.name in _LEFT_OUT or first in _RUN_BY_ITSELF or entry.name.endswith(".pth"):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                (tree / entry.name).unlink()
        elif first in _OURS:
            raise _bad(package, f"it has files of the bridge's own name, {entry.name}")
    size = count = 0
    native = False
    for path, status in _walk(tree, package):
        count, size = count + 1, size + status.st_size
        name = os.path.basename(path)  # noqa: PTH119 - thousands of names
        native = native or name.endswith(".so") or ".so." in name
        if count > MAX_FILES:
            raise _bad(package, f"it has over {MAX_FILES} files")
        if size > max_bytes:
            raise BridgeError(
                "packages_too_large",
                f"The files of {package.pin} are too large: over {max_bytes / 1e6:.0f} MB.",
                hint="The operator can raise max_size in [install].",
            )
        os.chmod(path, 0o644)  # noqa: PTH101 - thousands of names
    _require_identity(tree, package)
    return WheelFiles(package.name, package.version, size, native, _modules(tree))


def _walk(tree: Path, package: LockedPackage) -> Iterator[tuple[str, os.stat_result]]:
    """The files below a directory.

    Raises:
        BridgeError: `bad_wheel`: something there is neither a file nor a directory, or has an impossible name.
    """
    pending = [(str(tree), 0)]
    while pending:
        here, depth = pending.pop()
        with os.scandir(here) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if not entry.name.isprintable() or len(entry.name) > MAX_NAME_CHARS or "\\" in entry.name:
                    raise _bad(package, f"a file of it is called {entry.name[:MAX_NAME_CHARS]!r}")
                if stat.S_ISDIR(status.st_mode):
                    if depth >= MAX_DEPTH:
                        raise _bad(package, f"its directories are over {MAX_DEPTH} deep")
                    pending.append((entry.path, depth + 1))
                elif stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                    yield entry.path, status
                else:
                    raise _bad(package, f"{entry.name!r} is no plain file")


def _require_identity(tree: Path, package: LockedPackage) -> None:
    found = [
        (canonicalize_name(item.name or ""), item.version)
        for item in importlib.metadata.distributions(path=[str(tree)])
    ]
    if found != [(package.name, package.version)]:
        said = ", ".join(f"{name}=={version}" for name, version in found) or "nothing"
        raise _bad(package, f"it says that it is {said[:MAX_NAME_CHARS]}")


def _modules(tree: Path) -> tuple[str, ...]:
    found = set()
    with os.scandir(tree) as entries:
        for entry in entries:
            name = entry.name.partition(".")[0]
            if name.isidentifier() and (
                entry.is_dir(follow_symlinks=False) if "." not in entry.name else entry.name.endswith((".py", ".so"))
            ):
                found.add(name)
    return tuple(sorted(found))


def write_archive(folder: Path) -> Path:
    """A wheel's files as one zip file, which is made once."""
    archive = folder / ARCHIVE
    if archive.exists():
        return archive
    tree = folder / TREE
    partial = folder / f"{ARCHIVE}.{uuid.uuid4().hex}"
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
            for path in sorted(tree.rglob("*")):
                if path.is_file():
                    out.writestr(zipfile.ZipInfo(str(path.relative_to(tree))), path.read_bytes(), zipfile.ZIP_DEFLATED)
        partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)
    return archive


def overlay_packages(site: Path, tree: Path, name: str) -> None:
    """Copy a wheel's files into a directory of packages, in the place of another version of the package there.

    Raises:
        OSError: They can't be copied.
    """
    for item in importlib.metadata.distributions(path=[str(site)]):
        if canonicalize_name(item.name or "") == name:
            for file in item.files or ():
                # The list is the wheel's own word: an absolute path, or one with "..", would be a file of the host's.
                if not file.is_absolute() and ".." not in file.parts and (path := site / file).is_file():
                    path.unlink()
    shutil.copytree(tree, site, dirs_exist_ok=True, symlinks=True)


def _bad(package: LockedPackage, why: str) -> BridgeError:
    return BridgeError(
        "bad_wheel",
        f"The wheel of {package.pin} isn't used: {why}.",
        hint="Ask for another version or another package, and tell the operator.",
    )
