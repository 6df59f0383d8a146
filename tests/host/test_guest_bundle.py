"""The guest's modules, as they are sent into a container."""

from __future__ import annotations

import importlib.util
import marshal
import subprocess
import sys
import zlib
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

import mcp_bridge
from mcp_bridge.host import guest_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(mcp_bridge.__file__).parent


def modules(magic: str) -> dict[str, tuple[bool, str, bytes]]:
    sent = guest_bundle.bundle(magic)
    assert int(sent[:12]) == len(sent) - 12
    found: dict[str, tuple[bool, str, bytes]] = marshal.loads(sent[12:])  # noqa: S302 - ours
    return found


def source(name: str, *, is_package: bool) -> bytes:
    path = ROOT.joinpath(*name.split(".")[1:])
    return (path / "__init__.py" if is_package else path.with_suffix(".py")).read_bytes()


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes(const)


def test_the_bytecode_that_is_sent_is_that_of_the_source_and_names_no_file_of_the_host() -> None:
    forms = set()
    for name, (is_package, form, sent) in modules(importlib.util.MAGIC_NUMBER.hex()).items():
        forms.add(form)
        code = marshal.loads(zlib.decompress(sent) if form == "compressed" else sent)  # noqa: S302 - ours
        assert code == compile(source(name, is_package=is_package), "x", "exec", dont_inherit=True)
        assert {part.co_filename for part in codes(code)} == {f"<bridge>/{name}"}
    assert forms == {"code", "compressed"}


def test_an_interpreter_with_other_bytecode_is_sent_source() -> None:
    for name, (is_package, form, sent) in modules("").items():
        assert form == "source"
        assert sent == source(name, is_package=is_package)


def test_what_every_start_loads_is_little_and_not_compressed() -> None:
    check = "import sys, mcp_bridge.guest.init, mcp_bridge.guest.main; print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT.parent)!r}); {check}"],
        capture_output=True,
        check=True,
    )
    loaded = set(shown.stdout.decode().split())
    # Together they take longer to load than all of ours, and a waiting container keeps what is loaded.
    assert not loaded & {"asyncio", "collections", "enum", "functools", "json", "re", "signal", "threading", "typing"}
    sent = modules(importlib.util.MAGIC_NUMBER.hex())
    assert {sent[name][1] for name in loaded & sent.keys()} == {"code"}
