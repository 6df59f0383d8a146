"""Inputs: which files and folders of the operator's scripts may read.

```toml
[files]
"sales.csv" = "~/data/sales.csv"        # a file: relative to the configuration file, or absolute
reports = "reports/**/*.pdf"            # what matches, in one folder

[files.archive]                         # a folder, with limits
path = "/srv/archive"
glob = "2026-*/*.parquet"               # all files of the folder by default
max_files = 500
max_size = "2g"
```
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from mcp_bridge.configured_values import Size  # noqa: TC001 - pydantic evaluates the annotation
from mcp_bridge.toml_files.decoding import bad_config, decode

if TYPE_CHECKING:
    from collections.abc import Mapping

INPUT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

MAX_INPUTS = 5000
"""Most names that a configuration may have."""

MOST_FILES = 20_000
"""The most that `max_files` may be: the hashes of all are one answer, and one entry of the ledger."""

MAX_GLOB_PARTS = 32

_WILDCARD = re.compile(r"[*?\[]")
_NAME_HINT = "Use letters, digits, '_', '.' and '-', up to 100; not a dot or a hyphen first."


@dataclass(frozen=True, slots=True)
class InputSource:
    """One input.

    Attributes:
        name: What scripts call it, and its name in `/workspace/in`.
        path: The file or folder; absolute. Links in what is above it were followed when the configuration was read.
        glob: The parts of the pattern that files must match; empty for all.
        max_files: Most files.
        max_size: Most bytes of all together.
        dot_files: Whether names that begin with a dot belong to it.
        hard_links: Whether files with several names (hard links) belong to it.
        private: A folder that is never read: the state directory.
    """

    name: str
    path: Path
    glob: tuple[str, ...] = ()
    max_files: int = 10_000
    max_size: int = 4 << 30
    dot_files: bool = False
    hard_links: bool = False
    private: Path | None = None


class InputTable(BaseModel):
    """One `[files.NAME]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    path: Annotated[str, Field(min_length=1)]
    glob: Annotated[str | None, Field(min_length=1)] = None
    max_files: Annotated[int, Field(ge=1, le=MOST_FILES)] = 10_000
    max_size: Size = 4 << 30
    dot_files: bool = False
    hard_links: bool = False


def inputs_from_toml(
    table: Any, file: Path | None, base: Path, state_dir: Path, within: Path | None = None
) -> dict[str, InputSource]:
    """Decode a `[files]` table.

    Args:
        table: `files`, as the TOML reader gives it.
        file: Where it came from, for messages.
        base: The folder that its paths are relative to.
        state_dir: The state directory, of which nothing is handed in.
        within: The folder outside of which no path may lead; None for none.

    Raises:
        BridgeError: `bad_config`.
    """
    if not isinstance(table, dict):
        raise bad_config("is a table", file, "files", hint='Write [files] and NAME = "PATH".')
    if len(table) > MAX_INPUTS:
        raise bad_config(f"has more than {MAX_INPUTS} names", file, "files", hint="Provide a folder.")
    found: dict[str, InputSource] = {}
    folded: dict[str, str] = {}
    private = Path(os.path.realpath(state_dir))
    for name, entry in table.items():
        if not INPUT_NAME.fullmatch(name):
            raise bad_config("is no name for an input", file, "files", name, hint=_NAME_HINT)
        if (other := folded.setdefault(name.casefold(), name)) != name:
            raise bad_config(f"is another spelling of {other!r}", file, "files", name, hint="Use another name.")
        found[name] = _source(name, entry, file, base, private, within)
    return found


def _source(name: str, entry: Any, file: Path | None, base: Path, private: Path, within: Path | None) -> InputSource:
    written = decode(InputTable, {"path": entry} if isinstance(entry, str) else entry, file, "files", name)
    path, pattern = written.path, written.glob
    if "\0" in path or (pattern and "\0" in pattern):
        raise bad_config("has a character that no path has", file, "files", name)
    if pattern is None and isinstance(entry, str):
        path, pattern = _split(path)
    root = _real_path(base, path)
    if root is None:
        raise bad_config("can't be resolved", file, "files", name, hint="Write the path of a file or a folder.")
    if root.parent == root:
        raise bad_config("is the whole file system", file, "files", name, hint="Name a folder in it.")
    if within is not None and not root.is_relative_to(within):
        raise bad_config(
            f"leads out of the folder, to {root}, and a folder's configuration hands in only what is in it",
            file,
            "files",
            name,
            hint="Write it into your own configuration, if you mean it.",
        )
    if root.is_relative_to(private):
        raise bad_config("is in the state directory, of which nothing is provided to scripts", file, "files", name)
    parts = tuple(pattern.split("/")) if pattern else ()
    if len(parts) > MAX_GLOB_PARTS or any(part in {"", ".", ".."} for part in parts):
        raise bad_config(
            "is no pattern for names in the folder",
            file,
            "files",
            name,
            hint='Write, for example, glob = "**/*.csv"; no "..", and no "/" first or last.',
        )
    return InputSource(
        name, root, parts, written.max_files, written.max_size, written.dot_files, written.hard_links, private
    )


def _split(path: str) -> tuple[str, str | None]:
    """A path with wildcards as the folder above the first one, and the pattern within it."""
    parts = path.split("/")
    for number, part in enumerate(parts):
        if _WILDCARD.search(part):
            above = "/".join(parts[:number])
            return above or ("/" if number else "."), "/".join(parts[number:])
    return path, None


def _real_path(base: Path, path: str) -> Path | None:
    """The path with links resolved, but for its last part: a link there is refused when it is opened."""
    try:
        written = os.path.abspath(base / Path(path).expanduser())  # noqa: PTH100  (links are resolved below)
        above, name = os.path.split(written)
        return Path(os.path.realpath(above)) / name
    except (OSError, RuntimeError, ValueError):
        return None


def inputs_for(sources: Mapping[str, InputSource], usable: frozenset[str] | None) -> dict[str, InputSource]:
    """The inputs that one principal may have.

    Args:
        sources: All.
        usable: The principal's names; None for all.
    """
    return {name: source for name, source in sources.items() if usable is None or name in usable}
