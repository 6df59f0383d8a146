"""The modules that go into the container, as the first bytes on its standard input.

Where the image's interpreter writes the same bytecode as ours (its label tells), they go compiled; else as source.
"""

from __future__ import annotations

import functools
import importlib.util
import marshal
from importlib import resources

PARTS = ("wire", "kernel", "guest", "guest/advice", "guest/values")
"""Sub-packages that run inside. Standard library only; an import contract holds them to it."""

_HOST_MAGIC = importlib.util.MAGIC_NUMBER.hex()


def loader() -> str:
    """The text for `python3 -c`."""
    return (resources.files("mcp_bridge.guest") / "loader.py").read_text("utf-8")


def bundle(image_magic: str) -> bytes:
    """Length and marshalled modules, as `guest/loader.py` reads them.

    Args:
        image_magic: The bytecode magic number of the image's interpreter in hexadecimal, or "" if unknown.
    """
    return _bundle(compiled=image_magic == _HOST_MAGIC)


@functools.cache
def _bundle(*, compiled: bool) -> bytes:
    modules: dict[str, tuple[bool, bool, bytes]] = {}
    root = resources.files("mcp_bridge")

    def add(name: str, source: bytes, *, package: bool) -> None:
        # Each by itself: most scripts never import the kernel, and shouldn't wait until it is read.
        code = marshal.dumps(compile(source, f"<bridge>/{name}", "exec", dont_inherit=True), 4) if compiled else source
        modules[name] = (package, compiled, code)

    add("mcp_bridge", (root / "__init__.py").read_bytes(), package=True)
    add("mcp_bridge._version", (root / "_version.py").read_bytes(), package=False)
    for part in PARTS:
        for file in (root / part).iterdir():
            stem = file.name.removesuffix(".py")
            if not file.name.endswith(".py") or stem == "loader":
                continue
            name = f"mcp_bridge.{part.replace('/', '.')}" + ("" if stem == "__init__" else f".{stem}")
            add(name, file.read_bytes(), package=stem == "__init__")
    # Version 4 is read by every interpreter from 3.4 on.
    payload = marshal.dumps(modules, 4)
    return b"%012d" % len(payload) + payload
