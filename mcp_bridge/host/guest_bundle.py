"""The modules that go into the container, as the first bytes on its standard input.

Where the image's interpreter writes the same bytecode as ours (its label tells), they go compiled; else as source.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import marshal
import zlib
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, NoneType, UnionType

from mcp_bridge.wire.annotations import Any, Literal
from mcp_bridge.wire.messages import METHODS, CallId

PARTS = (
    *("wire", "kernel", "kernel/language", "guest"),
    *("guest/advice", "guest/files", "guest/packages", "guest/session", "guest/values", "guest/waits"),
)
"""Sub-packages that run inside. Standard library only; an import contract holds them to it."""

JAVASCRIPT = "guest/javascript"
"""The sub-package that runs scripts in Node; only where scripts in JavaScript are allowed."""

LATE = (
    "mcp_bridge.kernel.",
    *(f"mcp_bridge.guest.{part}." for part in ("advice", "files", "javascript", "packages")),
    *(f"mcp_bridge.guest.{name}" for name in ("programs", "near_names")),
    *(f"mcp_bridge.guest.{name}" for name in ("values.table_text", "values.images", "values.rich_forms")),
    *(f"mcp_bridge.guest.{name}" for name in ("waits.waits", "waits.activity")),
)
"""How the names of modules begin that few scripts need. A container keeps them compressed."""

_ROOT = Path(__file__).parent.parent

HOST_MAGIC = importlib.util.MAGIC_NUMBER.hex()
"""The magic number of this interpreter's bytecode, in hexadecimal."""


def loader() -> str:
    """The text for `python3 -c`."""
    return (_ROOT / "guest" / "loader.py").read_text("utf-8")


def bundle(image_magic: str, *, javascript: bool = False) -> bytes:
    """Length and marshalled modules, as `guest/loader.py` reads them.

    Args:
        image_magic: The bytecode magic number of the image's interpreter in hexadecimal, or "" if unknown.
        javascript: Whether it can run scripts in JavaScript, too.
    """
    return _bundle(compiled=image_magic == HOST_MAGIC, javascript=javascript)


@functools.cache
def _bundle(*, compiled: bool, javascript: bool = False) -> bytes:
    modules: dict[str, tuple[bool, str, bytes]] = {}

    def add(name: str, file: Path, *, package: bool) -> None:
        # Each by itself: most scripts never import the kernel, and shouldn't wait until it is read.
        if not compiled:
            modules[name] = (package, "source", file.read_bytes())
            return
        code = marshal.dumps(_code(name, file))
        # An interpreter that writes the same bytecode reads the same format. It is taken to have zlib, as this one has.
        modules[name] = (
            (package, "compressed", zlib.compress(code)) if name.startswith(LATE) else (package, "code", code)
        )

    add("mcp_bridge", _ROOT / "__init__.py", package=True)
    add("mcp_bridge._version", _ROOT / "_version.py", package=False)
    for part in (*PARTS, JAVASCRIPT) if javascript else PARTS:
        for file in (_ROOT / part).glob("*.py"):
            if file.stem not in {"loader", "module_texts"}:
                is_package = file.stem == "__init__"
                name = f"mcp_bridge.{part.replace('/', '.')}" + ("" if is_package else f".{file.stem}")
                add(name, file, package=is_package)
    if javascript:
        name = "mcp_bridge.guest.javascript.module_texts"
        text = _javascript_texts()
        modules[name] = (False, "source", text)
        if compiled:
            code = marshal.dumps(compile(text, f"<bridge>/{name}", "exec", dont_inherit=True))
            modules[name] = (False, "compressed", zlib.compress(code))
    # Of all but code, version 4 is read by every interpreter from 3.4 on.
    payload = marshal.dumps(modules, 4)
    return b"%012d" % len(payload) + payload


def _javascript_texts() -> bytes:
    """The module that holds our modules in JavaScript as texts."""
    texts = {file.stem: file.read_text("utf-8") for file in sorted((_ROOT / JAVASCRIPT).glob("*.js"))}
    boot = texts.pop("boot")
    parameters = {
        method: {
            name: (_types(annotation), name not in kind._field_defaults)
            for name, annotation in kind.__annotations__.items()
        }
        for method, kind in METHODS.items()
    }
    texts["parameters"] = f"module.exports = {json.dumps(parameters)};\n"
    return f"BOOT = {boot!r}\nMODULES = {texts!r}\n".encode()


def _types(annotation: Any) -> list[str | list[str]]:
    """The types of a message's parameter by their names; a list is of the texts that it may be."""
    if isinstance(annotation, UnionType):
        return [kind for member in annotation.__args__ for kind in _types(member)]
    origin = getattr(annotation, "__origin__", annotation)
    if origin is Literal:
        return [list(annotation.__args__)]
    names = {Any: "any", NoneType: "null", CallId: "str"}
    return [names.get(origin) or origin.__name__]


def _code(name: str, file: Path) -> CodeType:
    """A module's code, under a name that says nothing of this host. It is compiled only if no bytecode is cached."""
    code = SourceFileLoader(name, str(file)).get_code(name)
    assert code is not None  # None is for loaders without source
    return _renamed(code, f"<bridge>/{name}")


def _renamed(code: CodeType, shown: str) -> CodeType:
    consts = tuple(_renamed(const, shown) if isinstance(const, CodeType) else const for const in code.co_consts)
    return code.replace(co_filename=shown, co_consts=consts)
