"""A root file system made from the running interpreter: no network, no shell, nothing else of the host.

In it: the executable, the standard library without its tests and tools, the shared objects that the loader names, the
time zones, a passwd of two lines, and the packages' directory. Everything is moved to one layout (`/usr/local`),
whatever the host's is, so the guest sees the same paths in an image from pyenv, a distribution or a relocatable build.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import stat
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import anyio.from_thread
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.image.elf import read_elf, resolve_libraries
from mcp_bridge.sandbox.image.tool import disk_full, run_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SITE_PACKAGES = "/opt/site-packages"
"""Where packages are inside; not on the interpreter's own path: the guest adds it."""

PYTHON = "/usr/local/bin/python3"
"""The interpreter inside."""

COMPILE_SECONDS = 600.0
"""Byte-compiling the largest profile takes a tenth of this on a slow machine."""

_PREFIX = "/usr/local"
_MTIME = 946684800  # any constant serves: the .pyc files are unchecked-hash, so nothing compares it
_UNCHECKED_HASH = (0b01).to_bytes(4, "little")  # PEP 552
_ZONEINFO = Path("/usr/share/zoneinfo")
_LOCALES = (Path("/usr/lib/locale/C.utf8"), Path("/usr/lib/locale/C.UTF-8"))
"""The image's LANG; a C library that has it built in ships neither."""

# No network, no display and no installer inside: these could never work there.
_OMITTED_TOP = frozenset(
    {"ensurepip", "idlelib", "tkinter", "turtledemo", "site-packages", "dist-packages", "lib-dynload"}
    | {"turtle.py", "sitecustomize.py", "usercustomize.py", "EXTERNALLY-MANAGED"}
)
_OMITTED_ANYWHERE = frozenset({"__pycache__", "test", "tests", "idle_test"})
_OMITTED_MODULES = ("_tkinter", "_test", "_ctypes_test", "_xxtestfuzz", "xxlimited", "xxsubtype", "nis.", "nis_")
_OMITTED_SUFFIXES = (".pyc", ".pyo", ".a", ".o", ".exe")

_STATIC_FILES = {
    "/etc/passwd": "root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/tmp:/sbin/nologin\n",
    "/etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_EMPTY_DIRECTORIES = ("/proc", "/dev", "/sys", "/run", "/var/tmp", SITE_PACKAGES)  # noqa: S108 - inside the image
_OPEN_DIRECTORIES = ("/tmp", "/workspace")  # noqa: S108 - inside the image


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The host's base interpreter, found from a virtual environment too.

    Attributes:
        executable: The real file, no symbolic link.
        version: For example `3.11.7`.
        magic: The bytecode's magic number, in hexadecimal.
        abi: The extension modules' tag, for example `cpython-311-x86_64-linux-gnu`.
        system: For example `linux-x86_64`.
        stdlib: The standard library's directory.
        modules: The directory of its extension modules; need not exist.
    """

    executable: Path
    version: str
    magic: str
    abi: str
    system: str
    stdlib: Path
    modules: Path

    @property
    def identity(self) -> list[str | int]:
        """What tells two interpreters apart, for an image's name."""
        status = self.executable.stat()
        return [self.version, self.magic, self.abi, self.system, status.st_mtime_ns, status.st_size]


def running_interpreter() -> Interpreter:
    """The interpreter behind this process.

    Raises:
        BridgeError: `image_build_failed` when it can't be found (an embedded or frozen interpreter).
    """
    named = getattr(sys, "_base_executable", None) or sys.executable
    executable = Path(os.path.realpath(named)) if named else None
    base = {"installed_base": sys.base_prefix, "base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    stdlib = Path(sysconfig.get_path("stdlib", vars={**base, "installed_platbase": sys.base_exec_prefix}))
    if executable is None or not executable.is_file() or not (stdlib / "os.py").is_file():
        raise BridgeError(
            "image_build_failed",
            f"Python's own files can't be found (executable {named or 'unknown'}, library {stdlib}).",
            hint="Run mcp-bridge with an ordinary CPython installation, or configure an image.",
        )
    modules = Path(sysconfig.get_path("platstdlib", vars=base)) / "lib-dynload"
    return Interpreter(
        executable=executable,
        version=platform.python_version(),
        magic=importlib.util.MAGIC_NUMBER.hex(),
        abi=str(sysconfig.get_config_var("SOABI") or ""),
        system=f"{sys.platform}-{platform.machine()}",
        stdlib=stdlib,
        modules=modules,
    )


@dataclass(frozen=True, slots=True)
class _File:
    """One regular file of the image.

    Attributes:
        content: A host file, read only when it is written, or bytes made here.
        executable: Programs and shared objects.
        header: Takes the place of the content's first bytes, as many as it has itself.
    """

    content: Path | bytes
    executable: bool = False
    header: bytes = b""

    def read(self) -> bytes:
        data = self.content if isinstance(self.content, bytes) else self.content.read_bytes()
        return self.header + data[len(self.header) :]


class _Tree:
    """The image's paths, absolute and normal, each with what stands there."""

    def __init__(self) -> None:
        self.files: dict[str, _File] = {}
        self.links: dict[str, str] = {}
        self.directories: dict[str, int] = {"/": 0o755}

    def write(self, tar: Path) -> None:
        """Write a tar whose bytes depend on the tree alone."""
        for path in [*self.files, *self.links, *self.directories]:
            for parent in PurePosixPath(path).parents:
                self.directories.setdefault(str(parent), 0o755)
        del self.directories["/"]
        with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted({*self.files, *self.links, *self.directories}):
                anyio.from_thread.check_cancelled()
                self._add(archive, path)

    def _add(self, archive: tarfile.TarFile, path: str) -> None:
        info = tarfile.TarInfo(path.lstrip("/"))
        info.mtime = _MTIME
        if (mode := self.directories.get(path)) is not None:
            info.type, info.mode = tarfile.DIRTYPE, mode
            archive.addfile(info)
        elif (target := self.links.get(path)) is not None:
            info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, target
            archive.addfile(info)
        else:
            file = self.files[path]
            data = file.read()
            # The host's modes and owners never go in, its set-id bits least of all.
            info.mode = 0o755 if file.executable else 0o644
            info.size = len(data)
            archive.addfile(info, BytesIO(data))


async def write_root(tar: Path, interpreter: Interpreter, *, work: Path, site: Path | None) -> frozenset[str]:
    """Write the root file system as a tar, owned by root, with fixed times.

    Args:
        tar: The file to write.
        interpreter: Of this process: its bytecode is the image's.
        work: An empty directory for intermediate files.
        site: Installed packages, or None.

    Returns:
        The names of shared objects that some module wants and this host doesn't have; the modules that want
        them fail inside as they would on the host.

    Raises:
        BridgeError: `image_build_failed` when this interpreter can't run in a Linux container.
        OSError: Reading or writing failed.
    """
    elf = await anyio.to_thread.run_sync(read_elf, interpreter.executable)
    if elf is None or not sys.platform.startswith("linux"):
        raise BridgeError(
            "image_build_failed",
            f"{interpreter.executable} is no Linux program, so no image can be made from it.",
            hint="Build sandbox_image/Containerfile and configure its reference as the image.",
        )
    tree = await anyio.to_thread.run_sync(_lay_out, interpreter, site)
    missing: frozenset[str] = frozenset()
    if elf.loader:
        missing = await _add_libraries(tree, elf.loader, interpreter.executable, site)
    roots = [(interpreter.stdlib, _library(interpreter))]
    if site is not None:
        roots.append((site, SITE_PACKAGES))
    await _add_bytecode(tree, interpreter.executable, roots, work)
    await anyio.to_thread.run_sync(tree.write, tar)
    return missing


def _library(interpreter: Interpreter) -> str:
    # getpath looks for this directory by this name, relative to the executable.
    return f"{_PREFIX}/{sys.platlibdir}/{interpreter.stdlib.name}"


def _lay_out(interpreter: Interpreter, site: Path | None) -> _Tree:
    tree = _Tree()
    tree.directories |= dict.fromkeys(_EMPTY_DIRECTORIES, 0o755) | dict.fromkeys(_OPEN_DIRECTORIES, 0o1777)
    tree.files |= {path: _File(text.encode()) for path, text in _STATIC_FILES.items()}

    tree.files[PYTHON] = _File(interpreter.executable, executable=True)
    version = ".".join(interpreter.version.split(".")[:2])
    for name in ("python", f"python{version}"):
        tree.links[f"{_PREFIX}/bin/{name}"] = "python3"

    library = _library(interpreter)
    for path in _walk(interpreter.stdlib, omit=_omit_from_stdlib):
        tree.files[f"{library}/{path.relative_to(interpreter.stdlib).as_posix()}"] = _File(path)
    tree.directories[f"{library}/lib-dynload"] = 0o755  # getpath complains where there is none
    if interpreter.modules.is_dir():
        for path in sorted(interpreter.modules.glob("*.so")):
            if not path.name.startswith(_OMITTED_MODULES):
                tree.files[f"{library}/lib-dynload/{path.name}"] = _File(path, executable=True)
    for locale in filter(Path.is_dir, _LOCALES):
        tree.files |= {str(path): _File(path) for path in _walk(locale, omit=_nothing)}
    _add_time_zones(tree)
    if site is not None:
        for path in _walk(site, omit=_omit_from_site):
            executable = ".so" in path.name
            tree.files[f"{SITE_PACKAGES}/{path.relative_to(site).as_posix()}"] = _File(path, executable)
    return tree


def _omit_from_stdlib(path: PurePosixPath) -> bool:
    return (
        path.parts[0] in _OMITTED_TOP
        or path.parts[0].startswith("config-")
        or path.name in _OMITTED_ANYWHERE
        or path.suffix in _OMITTED_SUFFIXES
    )


def _omit_from_site(path: PurePosixPath) -> bool:
    # Test modules and their data are a sixth of the data profile. The packages that hold them stay: some are
    # imported at run time (openpyxl.tests, for one).
    in_tests = "tests" in path.parts[:-1]
    return (
        path.name == "__pycache__"
        or path.suffix in {".pyc", ".pyi"}
        or (len(path.parts) == 1 and (path.name in {"bin", "share"} or path.name.startswith(".")))
        or (in_tests and (path.name == "data" or (path.name.startswith("test_") and path.suffix == ".py")))
    )


def _nothing(_: PurePosixPath) -> bool:
    return False


def _walk(root: Path, *, omit: Callable[[PurePosixPath], bool]) -> Iterator[Path]:
    """The regular files below `root`, through symbolic links only where they stay inside it."""
    real_root = root.resolve()
    for directory, names, files in os.walk(root):
        here = Path(directory)
        inside = PurePosixPath(here.relative_to(root).as_posix())
        names[:] = sorted(name for name in names if not omit(inside / name))
        for name in sorted(files):
            path = here / name
            if omit(inside / name):
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(real_root):
                continue
            if stat.S_ISREG(path.stat().st_mode):
                yield path


def _add_time_zones(tree: _Tree) -> None:
    if not _ZONEINFO.is_dir():
        return
    for path in _walk(_ZONEINFO, omit=lambda path: path.parts[0] in {"posix", "right"}):
        inside = str(_ZONEINFO / path.relative_to(_ZONEINFO))
        target = path.resolve()
        if path.is_symlink() and not target.is_relative_to(_ZONEINFO / "posix"):
            tree.links[inside] = os.path.relpath(target, path.parent)
        else:
            tree.files[inside] = _File(path)


async def _add_libraries(tree: _Tree, loader: str, program: Path, site: Path | None) -> frozenset[str]:
    objects = [
        file.content
        for path, file in tree.files.items()
        if isinstance(file.content, Path) and ".so" in PurePosixPath(path).name
    ]
    # Threads that end by cancellation open libgcc_s by name. Before glibc 2.34 getpwuid opened libnss_files too.
    libraries = await resolve_libraries(loader, program, objects, preload="libgcc_s.so.1:libnss_files.so.2")
    # Every library goes beside libc: the one directory that this loader searches whatever its configuration says.
    home = str(next((path for name, path in libraries.found.items() if name.startswith("libc.")), Path(loader)).parent)
    for name, path in libraries.found.items():
        if site is None or not path.is_relative_to(site):  # packages find their own through RPATH
            tree.files[f"{home}/{name}"] = _File(path, executable=True)
    tree.files[loader] = _File(Path(loader), executable=True)
    vendored = {PurePosixPath(path).name for path in tree.files}
    return libraries.missing - vendored


async def _add_bytecode(tree: _Tree, program: Path, roots: Sequence[tuple[Path, str]], work: Path) -> None:
    """A .pyc beside every module, which the interpreter takes without even looking at the source."""
    stale = await anyio.to_thread.run_sync(_reuse_bytecode, tree)
    cache = work / "bytecode"
    for number, (root, inside) in enumerate(roots):
        sources = [str(source) for source in stale.values() if source.is_relative_to(root)]
        if not sources:
            continue
        listing = work / f"sources-{number}.txt"
        await anyio.to_thread.run_sync(listing.write_text, "\n".join(sources))
        argv = [str(program), "-I", "-S", "-W", "ignore", "-X", f"pycache_prefix={cache}", "-m", "compileall"]
        # The code objects name the path inside, so that two builds of the same packages are the same bytes.
        argv += ["-q", "-q", "-j", "0", "-s", str(root), "-p", inside, "-i", str(listing)]
        # Modules that don't compile (another version's syntax) stay sources, so the exit status says nothing.
        result = await run_tool(argv, seconds=COMPILE_SECONDS)
        if result.disk_full:
            raise disk_full(result.tail())
    await anyio.to_thread.run_sync(_take_bytecode, tree, stale, cache)


def _reuse_bytecode(tree: _Tree) -> dict[str, Path]:
    """Adopt the host's valid bytecode; returns the modules that have none, with their sources."""
    stale: dict[str, Path] = {}
    for path, file in list(tree.files.items()):
        if not path.endswith(".py") or not isinstance(file.content, Path):
            continue
        anyio.from_thread.check_cancelled()
        cached = Path(importlib.util.cache_from_source(str(file.content), optimization=""))
        if not _adopt(tree, path, file.content, cached):
            stale[path] = file.content
    return stale


def _take_bytecode(tree: _Tree, stale: Mapping[str, Path], cache: Path) -> None:
    for path, source in stale.items():
        name = Path(importlib.util.cache_from_source(source.name, optimization="")).name
        _adopt(tree, path, source, cache / source.parent.relative_to("/") / name)


def _adopt(tree: _Tree, path: str, source: Path, cached: Path) -> bool:
    """Put `cached` in as the bytecode of `path` if it is that of `source` as it is now."""
    try:
        with cached.open("rb") as file:
            code = file.read(16)
    except OSError:
        return False
    text = source.read_bytes()
    digest = importlib.util.source_hash(text)
    flags, stamp = code[4:8], code[8:16]
    status = source.stat()
    size_and_time = (int(status.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little") + (len(text) & 0xFFFFFFFF).to_bytes(
        4, "little"
    )
    current = stamp == (digest if flags[:1] != b"\0" else size_and_time)
    if not current or code[:4] != importlib.util.MAGIC_NUMBER:
        return False
    target = PurePosixPath(path)
    name = PurePosixPath(importlib.util.cache_from_source(target.name, optimization="")).name
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + digest
    tree.files[str(target.parent / "__pycache__" / name)] = _File(cached, header=header)
    return True
