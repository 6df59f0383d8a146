"""The modules that go into the container, as the first bytes on its standard input.

Where the image's interpreter writes the same bytecode as ours (its label tells), they go compiled; else as source.
"""

from __future__ import annotations

import functools
import importlib.util
import marshal
import zlib
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

PARTS = (
    *("wire", "kernel", "kernel/language"),
    *("guest", "guest/advice", "guest/files", "guest/session", "guest/values", "guest/waits"),
)
"""Sub-packages that run inside. Standard library only; an import contract holds them to it."""

LATE = (
    "mcp_bridge.kernel.",
    "mcp_bridge.guest.advice.",
    "mcp_bridge.guest.waits.",
    "mcp_bridge.guest.files.",
    "mcp_bridge.guest.programs",
    "mcp_bridge.guest.near_names",
)
"""How the names of modules begin that few scripts need. A container keeps them compressed."""

_ROOT = Path(__file__).parent.parent

_HOST_MAGIC = importlib.util.MAGIC_NUMBER.hex()


def loader() -> str:
    """The text for `python3 -c`."""
    return (_ROOT / "guest" / "loader.py").read_text("utf-8")


def bundle(image_magic: str) -> bytes:
    """Length and marshalled modules, as `guest/loader.py` reads them.

    Args:
        image_magic: The bytecode magic number of the image's interpreter in hexadecimal, or "" if unknown.
    """
    return _bundle(compiled=image_magic == _HOST_MAGIC)


@functools.cache
def _bundle(*, compiled: bool) -> bytes:
    modules: dict[str, tuple[bool, str, bytes]] = {}

    def add(name: str, file: Path, *, package: bool) -> None:
        # Each by itself: most scripts never import the kernel, and shouldn't wait until it is read.
        if not compiled:
            modules[name] = (package, "source", file.read_bytes())
            return
        code = marshal.dumps(_code(name, file), 4)
        # An interpreter that writes the same bytecode is taken to have zlib, as this one has.
        modules[name] = (
            (package, "compressed", zlib.compress(code)) if name.startswith(LATE) else (package, "code", code)
        )

    add("mcp_bridge", _ROOT / "__init__.py", package=True)
    add("mcp_bridge._version", _ROOT / "_version.py", package=False)
    for part in PARTS:
        for file in (_ROOT / part).glob("*.py"):
            if file.stem != "loader":
                is_package = file.stem == "__init__"
                name = f"mcp_bridge.{part.replace('/', '.')}" + ("" if is_package else f".{file.stem}")
                add(name, file, package=is_package)
    # Version 4 is read by every interpreter from 3.4 on.
    payload = marshal.dumps(modules, 4)
    return b"%012d" % len(payload) + payload


def _code(name: str, file: Path) -> CodeType:
    """A module's code, under a name that says nothing of this host. It is compiled only if no bytecode is cached."""
    code = SourceFileLoader(name, str(file)).get_code(name)
    assert code is not None  # noqa: S101 - None is for loaders without source
    return _renamed(code, f"<bridge>/{name}")


def _renamed(code: CodeType, shown: str) -> CodeType:
    consts = tuple(_renamed(const, shown) if isinstance(const, CodeType) else const for const in code.co_consts)
    return code.replace(co_filename=shown, co_consts=consts)
