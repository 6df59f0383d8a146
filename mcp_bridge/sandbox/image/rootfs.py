"""Builds a root file system from the running interpreter: no network, no shell, no other files of the host.

It contains the executable, the standard library without its tests and tools, the shared objects that the loader
reports, the time zones, a passwd of two lines, and the packages. Everything is placed in one layout (`/usr/local`),
whatever the host's layout is, so the guest sees the same paths in an image from pyenv, a distribution or a relocatable
build.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import stat
import sys
import sysconfig
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import anyio.from_thread
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.image.elf import read_elf, resolve_libraries
from mcp_bridge.sandbox.image.host_tools import disk_full, run_tool

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Callable, Iterator, Mapping, Sequence

SITE_PACKAGES = "/opt/site-packages"
"""The packages' directory in the image. It isn't on the interpreter's default path: the guest adds it."""

PYTHON = "/usr/local/bin/python3"
"""The interpreter's path in the image."""

NODE = "/usr/local/bin/node"
"""Node's path in the image."""

COMPILE_SECONDS = 600.0
"""Bound on byte-compilation. The largest profile takes a tenth of this on a slow machine."""

_PREFIX = "/usr/local"
_MTIME = 946684800  # any constant works: the .pyc files are unchecked-hash, so no time is compared
_UNCHECKED_HASH = (0b01).to_bytes(4, "little")  # PEP 552
_ZONEINFO = Path("/usr/share/zoneinfo")
_LOCALES = (Path("/usr/lib/locale/C.utf8"), Path("/usr/lib/locale/C.UTF-8"))
"""Files for the image's LANG; a C library with a built-in C.UTF-8 has neither."""

# These could never work inside, without network, display and installer.
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
_MANYLINUX = frozenset(
    {"libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libdl.so.2", "librt.so.1", "libnsl.so.1", "libutil.so.1"}
    | {"libpthread.so.0", "libresolv.so.2", "libz.so.1", "libexpat.so.1", "libatomic.so.1", "libmvec.so.1"}
    | {"libglib-2.0.so.0", "libgobject-2.0.so.0", "libgthread-2.0.so.0", "libX11.so.6", "libXext.so.6"}
    | {"libXrender.so.1", "libICE.so.6", "libSM.so.6", "libGL.so.1"}
)
"""The libraries that a manylinux wheel may expect of a system (PEP 600)."""

_EMPTY_DIRECTORIES = ("/proc", "/dev", "/sys", "/run", "/var/tmp", SITE_PACKAGES)  # noqa: S108 - inside the image
_OPEN_DIRECTORIES = ("/tmp", "/workspace")  # noqa: S108 - inside the image


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The host's base interpreter, which is also found from a virtual environment.

    Attributes:
        executable: The executable, with symbolic links resolved.
        version: For example `3.11.7`.
        magic: The magic number of its bytecode, in hexadecimal.
        abi: The tag of extension modules, for example `cpython-311-x86_64-linux-gnu`.
        system: For example `linux-x86_64`.
        stdlib: The directory of the standard library.
        modules: The directory of its extension modules; may not exist.
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
        """The values that distinguish interpreters, for the image's name."""
        status = self.executable.stat()
        return [self.version, self.magic, self.abi, self.system, status.st_mtime_ns, status.st_size]


def running_interpreter() -> Interpreter:
    """The base interpreter of this process.

    Raises:
        BridgeError: `image_build_failed` if it can't be found (an embedded or frozen interpreter).
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
        content: Bytes, or a host file that is read when it is written.
        executable: Whether it is a program or shared object.
        header: Replaces the same number of bytes at the beginning of the content.
    """

    content: Path | bytes
    executable: bool = False
    header: bytes = b""

    def read(self) -> bytes:
        data = self.content if isinstance(self.content, bytes) else self.content.read_bytes()
        return self.header + data[len(self.header) :]


class _Tree:
    """The image's files, symbolic links and directories by absolute, normalised path."""

    def __init__(self) -> None:
        self.files: dict[str, _File] = {}
        self.links: dict[str, str] = {}
        self.directories: dict[str, int] = {"/": 0o755}

    def write(self, tar: Path) -> None:
        """Write a tar file whose bytes depend only on the tree."""
        for path in [*self.files, *self.links, *self.directories]:
            for parent in PurePosixPath(path).parents:
                self.directories.setdefault(str(parent), 0o755)
        del self.directories["/"]
        import tarfile  # noqa: PLC0415  (likewise)

        with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted({*self.files, *self.links, *self.directories}):
                anyio.from_thread.check_cancelled()
                self._add(archive, path)

    def _add(self, archive: tarfile.TarFile, path: str) -> None:
        import tarfile  # noqa: PLC0415  (an idle bridge has built nothing)

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
            # Modes and owners of the host, set-id bits in particular, are never copied.
            info.mode = 0o755 if file.executable else 0o644
            info.size = len(data)
            archive.addfile(info, BytesIO(data))


async def write_root(
    tar: Path,
    interpreter: Interpreter,
    *,
    work: Path,
    site: Path | None,
    node: Path | None = None,
    is_trusted: bool = True,
) -> frozenset[str]:
    """Write the root file system as a tar file, owned by root, with fixed times.

    Args:
        tar: The file to write.
        interpreter: This process's interpreter: the image gets its bytecode.
        work: An empty directory for intermediate files.
        site: The directory of installed packages, or None.
        is_trusted: Whether the loader may look at the packages' shared objects. Of others only the names of what they
            need are read, and what of that a wheel may expect of any Linux comes into the image.
        node: Node's executable, or None.

    Returns:
        The names of shared objects that a module needs and this host lacks. Those modules fail in the image as they
        would on the host.

    Raises:
        BridgeError: `image_build_failed` if this interpreter can't run in a Linux container.
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
    if node is not None:
        tree.files[NODE] = _File(node, executable=True)
    missing: frozenset[str] = frozenset()
    if elf.loader:
        missing = await _add_libraries(tree, elf.loader, interpreter.executable, site, is_trusted=is_trusted)
    roots = [(interpreter.stdlib, _library(interpreter))]
    if site is not None:
        roots.append((site, SITE_PACKAGES))
    await _add_bytecode(tree, interpreter.executable, roots, work)
    await anyio.to_thread.run_sync(tree.write, tar)
    return missing


def _library(interpreter: Interpreter) -> str:
    # getpath searches for a directory of this name relative to the executable.
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
    tree.directories[f"{library}/lib-dynload"] = 0o755  # getpath warns if it doesn't exist
    if interpreter.modules.is_dir():
        for path in sorted(interpreter.modules.glob("*.so")):
            if not path.name.startswith(_OMITTED_MODULES):
                tree.files[f"{library}/lib-dynload/{path.name}"] = _File(path, executable=True)
    for locale in filter(Path.is_dir, _LOCALES):
        tree.files |= {str(path): _File(path) for path in _walk(locale, omit=_omit_none)}
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
    # Test modules and their data are a sixth of the data profile. The packages that contain them stay: some are
    # imported at run time (openpyxl.tests, for example).
    in_tests = "tests" in path.parts[:-1]
    return (
        path.name == "__pycache__"
        or path.suffix in {".pyc", ".pyi"}
        or (len(path.parts) == 1 and (path.name in {"bin", "share"} or path.name.startswith(".")))
        or (in_tests and (path.name == "data" or (path.name.startswith("test_") and path.suffix == ".py")))
    )


def _omit_none(_: PurePosixPath) -> bool:
    return False


def _walk(root: Path, *, omit: Callable[[PurePosixPath], bool]) -> Iterator[Path]:
    """The regular files below `root`. Symbolic links are followed only if their target is below `root`."""
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


async def _add_libraries(
    tree: _Tree, loader: str, program: Path, site: Path | None, *, is_trusted: bool
) -> frozenset[str]:
    objects = [
        file.content
        for path, file in tree.files.items()
        if isinstance(file.content, Path) and (path == NODE or ".so" in PurePosixPath(path).name)
    ]
    # Thread cancellation opens libgcc_s by name. Before glibc 2.34 getpwuid opened libnss_files, too.
    preload = ["libgcc_s.so.1", "libnss_files.so.2"]
    if site is not None and not is_trusted:
        strange = [path for path in objects if path.is_relative_to(site)]
        objects = [path for path in objects if not path.is_relative_to(site)]
        preload += await anyio.to_thread.run_sync(_system_libraries, strange)
    libraries = await resolve_libraries(loader, program, objects, preload=":".join(preload))
    # Libraries are placed beside libc, in the one directory that this loader searches in any configuration.
    home = str(next((path for name, path in libraries.found.items() if name.startswith("libc.")), Path(loader)).parent)
    for name, path in libraries.found.items():
        if site is None or not path.is_relative_to(site):  # packages find their own libraries through RPATH
            tree.files[f"{home}/{name}"] = _File(path, executable=True)
    tree.files[loader] = _File(Path(loader), executable=True)
    vendored = {PurePosixPath(path).name for path in tree.files}
    return libraries.missing - vendored


def _system_libraries(objects: Sequence[Path]) -> list[str]:
    """The system's libraries, by name, that some shared objects need: of those alone that a wheel may expect."""
    needed: set[str] = set()
    for path in objects:
        elf = read_elf(path)
        needed.update(() if elf is None else elf.needed)
    return sorted(needed & _MANYLINUX)


async def _add_bytecode(tree: _Tree, program: Path, roots: Sequence[tuple[Path, str]], work: Path) -> None:
    """Add a .pyc file for every module, which the interpreter uses without checking the source."""
    stale = await anyio.to_thread.run_sync(_reuse_bytecode, tree)
    cache = work / "bytecode"
    for number, (root, inside) in enumerate(roots):
        sources = [str(source) for source in stale.values() if source.is_relative_to(root)]
        if not sources:
            continue
        listing = work / f"sources-{number}.txt"
        await anyio.to_thread.run_sync(listing.write_text, "\n".join(sources))
        argv = [str(program), "-I", "-S", "-W", "ignore", "-X", f"pycache_prefix={cache}", "-m", "compileall"]
        # Code objects contain the path in the image, so that builds of the same packages are reproducible.
        argv += ["-q", "-q", "-j", "0", "-s", str(root), "-p", inside, "-i", str(listing)]
        # Modules that don't compile (syntax of another version) are kept as source: the exit status is meaningless.
        result = await run_tool(argv, seconds=COMPILE_SECONDS)
        if result.disk_full:
            raise disk_full(result.tail())
    await anyio.to_thread.run_sync(_take_bytecode, tree, stale, cache)


def _reuse_bytecode(tree: _Tree) -> dict[str, Path]:
    """Add the host's valid bytecode; return the modules without, and their sources."""
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
    """Add `cached` as the bytecode of `path` if it matches the current source; return whether it does."""
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
