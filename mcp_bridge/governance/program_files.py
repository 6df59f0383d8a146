"""The operator's programs: files of YAML, JSON or TOML in the folders of `[programs]`, read once, at the start."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  (pydantic reads the annotations)
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from mcp_bridge.configured_values import HomePath  # noqa: TC001  (pydantic reads the annotations)
from mcp_bridge.errors import BridgeError, ended
from mcp_bridge.kernel.language.program_parser import MAX_BYTES, InvalidProgramError, Program, parse
from mcp_bridge.toml_files import reader as toml_reader
from mcp_bridge.toml_files.line_numbers import line_of
from mcp_bridge.toml_files.refused_values import example, said

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcp_bridge.error_codes import Code
    from mcp_bridge.workspace.folder_content import Content

SUFFIXES = (".yaml", ".yml", ".json", ".toml")


class ProgramsConfig(BaseModel):
    """The table `[programs]`.

    Attributes:
        path: Folders of program files, from the configuration file's folder.
        denied_steps: What becomes of a program with a step that the policy denies in any case.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: tuple[HomePath, ...] = ()
    denied_steps: Literal["warn", "refuse"] = "warn"


def programs_config(table: Mapping[str, Any], file: Path | None) -> ProgramsConfig:
    """Decode the table.

    Raises:
        BridgeError: `bad_config`, naming file, line and key.
    """
    try:
        return ProgramsConfig.model_validate(table)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False)[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    line = line_of(file, "programs", key) if file else None
    if first["type"] == "extra_forbidden":
        raise _bad(f"there is no setting 'programs.{key}'", file, line)
    raise _bad(f"programs.{key}: {said(first)}" if key else "programs: must be a table", file, line, example(first))


def load_programs(
    config: ProgramsConfig, base: Path, trusted: Content | None = None, known: Mapping[str, Program] | None = None
) -> dict[str, Program]:
    """Read every file; a program's name is what it says, or else its file's.

    Args:
        config: The table.
        base: The folder that relative paths start at.
        trusted: What alone may be read of a folder's files; None for everything.
        known: Other programs of the operator's, which these may run, and whose names they can't have.

    Raises:
        BridgeError: `bad_program`: a folder or file that can't be read, one that is no program (with all of its
            faults), two of one name, programs that run each other without end.
    """
    files: dict[str, tuple[Path, Any]] = {}
    for folder in config.path:
        place = (base / folder).resolve()
        if not place.is_dir():
            message = f"programs.path names {place}, which is no folder"
            raise _bad(f"{message}; a relative path starts at the configuration file's folder", place, None)
        for file in sorted(path for path in place.iterdir() if path.suffix in SUFFIXES and path.is_file()):
            data = read_file(file, trusted)
            name = name_of(data, file)
            if name in files:
                raise _bad(f"{file} and {files[name][0]} are both called {name!r}: give one another name", file, None)
            if name in (known or {}):
                raise _bad(f"{file} is called {name!r}, as one of your own programs: give it another name", file, None)
            files[name] = (file, data)
    return _resolved(files, known or {})


def _resolved(files: Mapping[str, tuple[Path, Any]], known: Mapping[str, Program]) -> dict[str, Program]:
    done: dict[str, Program] = {}
    under_way: list[str] = []

    def resolve(name: str) -> Program | None:
        if name in done or name not in files:
            return done.get(name) or known.get(name)
        if name in under_way:
            chain = " → ".join([*under_way[under_way.index(name) :], name])
            raise _bad(f"{files[name][0]}: programs run each other without end: {chain}", files[name][0], None)
        under_way.append(name)
        file, data = files[name]
        try:
            done[name] = parse(data, resolve)
        except InvalidProgramError as exc:
            listed = "; ".join(map(str, exc.faults))
            raise BridgeError(
                "bad_program",
                ended(f"{file}: {listed}"),
                file=str(file),
                faults=[fault._asdict() for fault in exc.faults],
            ) from None
        under_way.pop()
        return done[name]

    for name in files:
        resolve(name)
    return done


def name_of(data: Any, file: Path) -> str:
    """What a program in a file is called."""
    name = data.get("name") if isinstance(data, dict) else None
    return name if isinstance(name, str) and name else file.stem


def read_file(file: Path, trusted: Content | None = None) -> Any:
    """What is written in one file, undecoded.

    Args:
        file: The file.
        trusted: What its bytes have to be, if they have to be some.

    Raises:
        BridgeError: `bad_program`: it can't be read, or isn't what its name says; `folder_changed`.
    """
    if file.suffix not in SUFFIXES:
        raise _bad(f"{file} isn't one of {', '.join(SUFFIXES)}", file, None)
    try:
        if file.stat().st_size > MAX_BYTES:
            raise _bad(f"{file} has more than {MAX_BYTES} bytes", file, None)
        return decoded(trusted.read(file, MAX_BYTES) if trusted else file.read_bytes(), file)
    except OSError as exc:
        raise _bad(f"{file} can't be read: {exc.strerror or exc}", file, None) from None


def decoded(data: bytes, file: Path) -> Any:
    """What some bytes say, in the format that a file's name tells.

    Raises:
        BridgeError: `bad_program`.
    """
    try:
        return _READERS[file.suffix](data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise _bad(f"{file} is not UTF-8 text", file, None) from None
    except RecursionError:
        raise _bad(f"{file} nests too deeply", file, None) from None
    except ValueError as exc:
        raise _bad(f"{file}: {' '.join(str(exc).split())}", file, None) from None


def _yaml(text: str) -> Any:
    from mcp_bridge.governance import yaml_text  # noqa: PLC0415  (most operators have no programs)

    return yaml_text.load(text)


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=unique_names)


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, of which no name is dropped: an `object_pairs_hook`.

    Raises:
        ValueError: A name is there twice.
    """
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"{name[:60]!r} is there twice in one object")
        members[name] = value
    return members


_READERS: dict[str, Callable[[str], Any]] = {
    ".yaml": _yaml,
    ".yml": _yaml,
    ".json": _json,
    ".toml": toml_reader.loads,
}


def _bad(message: str, file: Path | None, line: int | None, hint: str | None = None) -> BridgeError:
    where = f"{file}, line {line}: " if line else ""
    code: Code = "bad_program" if line is None else "bad_config"
    return BridgeError(code, ended(f"{where}{message}"), hint=hint, file=str(file), line=line)
