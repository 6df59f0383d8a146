"""The guest's modules, as they are sent into a container."""

from __future__ import annotations

import importlib.util
import marshal
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

import mcp_bridge
from mcp_bridge.host import guest_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(mcp_bridge.__file__).parent


def modules(magic: str) -> dict[str, tuple[bool, bool, bytes]]:
    sent = guest_bundle.bundle(magic)
    assert int(sent[:12]) == len(sent) - 12
    found: dict[str, tuple[bool, bool, bytes]] = marshal.loads(sent[12:])  # noqa: S302 - ours
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
    for name, (is_package, is_compiled, sent) in modules(importlib.util.MAGIC_NUMBER.hex()).items():
        assert is_compiled
        code = marshal.loads(sent)  # noqa: S302 - ours
        assert code == compile(source(name, is_package=is_package), "x", "exec", dont_inherit=True)
        assert {part.co_filename for part in codes(code)} == {f"<bridge>/{name}"}


def test_an_interpreter_with_other_bytecode_is_sent_source() -> None:
    for name, (is_package, is_compiled, sent) in modules("").items():
        assert not is_compiled
        assert sent == source(name, is_package=is_package)
