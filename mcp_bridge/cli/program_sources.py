"""Programs for the command line: from files, the operator's, and saved ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.cli.command_runner import run_with_database
from mcp_bridge.errors import BridgeError, ended
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.governance.program_files import (
    SUFFIXES,
    decoded,
    load_programs,
    name_of,
    programs_config,
    read_file,
)
from mcp_bridge.kernel.language.format_faults import Fault
from mcp_bridge.kernel.language.program_parser import MAX_BYTES, InvalidProgramError, Program, parse
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.near_names import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.governance.governance import Governance
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.execution_store import SavedProgram
    from mcp_bridge.settings import Loaded

STDIN = "-"

_STDIN_FILE = Path("standard input.yaml")
"""A name with the suffix of YAML, whose reader accepts JSON too."""


def is_file(text: str) -> bool:
    """Whether an argument is a file and not a program's name."""
    return text == STDIN or "/" in text or Path(text).suffix in SUFFIXES


def read(text: str) -> Any:
    """The undecoded content of a file or of standard input.

    Raises:
        BridgeError: `bad_program`.
    """
    if text != STDIN:
        return read_file(Path(text))
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BridgeError("bad_program", f"Standard input has more than {MAX_BYTES} bytes.")
    return decoded(data, _STDIN_FILE)


def configured_name(governance: Governance | None, file: str, data: Any) -> str | None:
    """The name of the operator's program that a file has in it; None if it has another."""
    name = name_of(data, Path(file))
    own = governance.programs.get(name) if governance is not None else None
    return name if own is not None and own.data == data else None


class ProgramFile(NamedTuple):
    """A program in a given file.

    Attributes:
        label: The file's name.
        data: Its undecoded content.
    """

    label: str
    data: Any


class Sources:
    """The sources of programs: given files, the operator's programs, saved programs.

    Args:
        loaded: The configuration.
        given: The given files; a step that runs one of these programs by name gets the given one.
        lenient: Whether to continue without the operator's programs if one is invalid: it may be the one in question.

    Attributes:
        problem: The error in the operator's programs if it was ignored, else None.
    """

    def __init__(self, loaded: Loaded, files: Sequence[ProgramFile] = (), *, lenient: bool = False) -> None:
        self.problem: BridgeError | None = None
        self._lenient = lenient
        self._loaded = loaded
        self._named = {name_of(row.data, Path(row.label)): row.data for row in files}
        self._parsed: dict[str, Program] = {}
        self._under_way: list[str] = []
        self._operators: Mapping[str, Program] | None = None
        self._saved: dict[str, SavedProgram] | None = None

    @property
    def operators(self) -> Mapping[str, Program]:
        """The operator's programs.

        Raises:
            BridgeError: `bad_config`, `bad_program`.
        """
        if self._operators is None:
            try:
                self._operators = self._load_operators()
            except BridgeError as exc:
                if not self._lenient:
                    raise
                self.problem, self._operators = exc, {}
        return self._operators

    def _load_operators(self) -> dict[str, Program]:
        programs: dict[str, Program] = {}
        for layer in self._loaded.layers:
            config = programs_config(layer.tables.get("programs", {}), layer.file)
            programs |= load_programs(config, layer.base, layer.trusted, programs)
        return programs

    @property
    def saved(self) -> dict[str, SavedProgram]:
        """The saved programs by name; none if there is no database.

        Raises:
            BridgeError: `database_unusable`, `database_newer`.
        """
        if self._saved is None:
            settings = self._loaded.settings
            rows = (
                run_with_database(settings, _saved, allow_read_only=True)
                if (settings.state_dir / FILE_NAME).exists()
                else []
            )
            self._saved = {row.name: row for row in rows}
        return self._saved

    def resolve(self, name: str) -> Program | None:
        """A program that a step runs by name, as `kernel.program_parser.Resolve`.

        Raises:
            InvalidProgramError: It is in one of the files and invalid.
            BridgeError: As `operators` and `saved`.
        """
        if name in self._named:
            return self._from_file(name)
        if name in self.operators:
            return self.operators[name]
        return self.restored(name) if name in self.saved else None

    def restored(self, name: str) -> Program:
        """One of the saved programs.

        Raises:
            BridgeError: `bad_state`.
        """
        from mcp_bridge.executions.programs.library import parse_saved

        return parse_saved(self.saved[name])

    def _from_file(self, name: str) -> Program:
        if name not in self._parsed:
            if name in self._under_way:
                chain = " → ".join([*self._under_way[self._under_way.index(name) :], name])
                raise InvalidProgramError([Fault("", "program_cycle", f"programs run each other without end: {chain}")])
            self._under_way.append(name)
            try:
                self._parsed[name] = parse(self._named[name], self.resolve)
            finally:
                self._under_way.pop()
        return self._parsed[name]

    def parse(self, file: ProgramFile) -> Program:
        """The program in one of the files.

        Raises:
            InvalidProgramError: It is invalid; has all faults.
            BridgeError: As `resolve`.
        """
        name = name_of(file.data, Path(file.label))
        if self._named[name] is file.data:
            return self._from_file(name)
        # Another file has a program with the same name: this file is parsed separately.
        return parse(file.data, self.resolve)

    def find(self, name: str) -> tuple[Program, str]:
        """A program by name, and its owner.

        Raises:
            BridgeError: `unknown_program`; as `operators` and `saved`.
        """
        if name in self.operators:
            return self.operators[name], "operator"
        if name in self.saved:
            return self.restored(name), "agent"
        close = nearest(name, [*self.operators, *self.saved])
        hint = f"Did you mean {', '.join(close)}?" if close else "`mcp-bridge program list` has their names."
        if Path(name).exists():
            hint = f"A file's name ends in {', '.join(SUFFIXES)}."
        raise BridgeError("unknown_program", f"There is no program {name[:100]!r}.", hint=hint, nearest=close)


def one(loaded: Loaded, file_or_name: str) -> tuple[Program, str]:
    """A program from a file or by name, and its owner (`file`, `operator`, `agent`).

    Raises:
        BridgeError: `bad_program`, `invalid_program`; as `Sources.find`.
    """
    if not is_file(file_or_name):
        return Sources(loaded).find(file_or_name)
    file = ProgramFile(file_or_name, read(file_or_name))
    try:
        return Sources(loaded, [file]).parse(file), "file"
    except InvalidProgramError as exc:
        listed = "; ".join(map(str, exc.faults))
        raise BridgeError(
            "invalid_program", ended(f"{file_or_name}: {listed}"), faults=[fault._asdict() for fault in exc.faults]
        ) from None


async def _saved(database: Database) -> list[SavedProgram]:
    return await ProgramStore(database).programs(LOCAL_PRINCIPAL.name)
