"""The library of programs by name: those of the operator, and those that each principal has saved."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from mcp_bridge.errors import BridgeError, ended
from mcp_bridge.escaping import escape_name
from mcp_bridge.kernel.json_parsing import MAX_PARSED_CHARS, NotJSONError, parsed
from mcp_bridge.kernel.language import program_parser as programs
from mcp_bridge.kernel.language import program_warnings
from mcp_bridge.kernel.language.format_faults import Fault
from mcp_bridge.ledger.storage.execution_store import SavedProgram
from mcp_bridge.lookalikes import resembled
from mcp_bridge.near_names import nearest
from mcp_bridge.offload import off_loop, on_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.ledger.storage.execution_store import ProgramHead, ProgramStore

MAX_SAVED = 1000
"""Most programs that one principal may save."""

MAX_SAVED_CHARS = 64 << 20
"""Most characters of one principal's saved programs together, as JSON."""

MAX_USED_BYTES = 4 << 20
"""Most bytes of the saved programs that one program may run by name."""

MAX_DESCRIPTION_CHARS = 1000
"""Longest description in a listing; a longer one is truncated."""

MAX_NAME_CHARS = 1000
"""Longest name of a program."""

MAX_FAULTS_LISTED = 10
"""Most faults in the message of an invalid program; its details have all."""

MAX_NAMES_LISTED = 20
"""Most names in the error for an unknown program."""

Origin = Literal["operator", "agent"]

Planner: TypeAlias = "Callable[[str, Callable[[Any], Awaitable[Sequence[Fault]]]], Awaitable[dict[str, Any]]]"
"""Writes a program for an intent. Its second argument finds the faults of a program; the result has none."""


class Found(NamedTuple):
    """A program and its owner."""

    program: Program
    origin: Origin


class ProgramLibrary:
    """The programs that can be run by name.

    Args:
        store: The store of saved programs.
        operators: The operator's programs, by name.
    """

    def __init__(self, store: ProgramStore, operators: Mapping[str, Program]) -> None:
        self.store = store
        self.operators = operators
        self._rows: dict[str, dict[str, tuple[ProgramHead, dict[str, Any]]]] = {}
        """For each principal, the rows of the last listing, with the heads of the programs that they describe."""

    async def find(self, requested: Any, principal: str) -> Found:
        """Find a program by its name, or parse one.

        Args:
            requested: A name, or a program as JSON. Models also give the program as a text of JSON: it is parsed where
                no program has that text for its name.
            principal: Whose saved programs are searched.

        Raises:
            BridgeError: `unknown_program`; `invalid_program` with all faults; `programs_too_large`.
        """
        if isinstance(requested, str):
            if (named := await self._named(requested, principal)) is not None:
                return named
            written = await off_loop(requested, _read_text, requested) if _is_written_out(requested) else None
            if written is None:
                raise await self._neither(requested, principal)
            requested = written
        try:
            return Found(await self._read(requested, principal), "agent")
        except programs.InvalidProgramError as exc:
            raise _invalid(exc.faults) from None

    async def has(self, name: str, principal: str) -> bool:
        """Whether a principal can run a program by this name.

        Raises:
            BridgeError: `bad_state`: it is saved, but can't be used.
        """
        return await self._named(name, principal) is not None

    async def _named(self, name: str, principal: str) -> Found | None:
        if name in self.operators:
            return Found(self.operators[name], "operator")
        if len(name) > MAX_NAME_CHARS or (saved := await self.store.program(principal, name)) is None:
            return None
        return Found(await off_loop(saved.data, parse_saved, saved), "agent")

    async def _neither(self, text: str, principal: str) -> BridgeError:
        """The error for a text that is no program's name, and no program."""
        names = [*self.operators, *(head.name for head in await self.store.program_heads(principal))]
        close = nearest(text, names)
        if _is_written_out(text) and not close and not _NAME_LIKE.fullmatch(text):
            return _no_object(_json_fault(text))
        if len(text) > MAX_NAME_CHARS:
            message = f"There is no program {text[:100]!r}…: a name has at most {MAX_NAME_CHARS} characters."
            return BridgeError("unknown_program", message)
        hint = f"Did you mean {', '.join(close)}?" if close else _names(names)
        return BridgeError("unknown_program", f"There is no program {text[:100]!r}.", hint=hint, nearest=close)

    async def _read(self, data: Any, principal: str) -> Program:
        """Parse a program, with the programs that its steps run by name. The operator's programs take precedence.

        Raises:
            InvalidProgramError: It is not a valid program.
            BridgeError: `programs_too_large`.
        """
        names = await off_loop(data, named_programs, data)
        if not names:
            return await off_loop(data, programs.unbundle, {"program": data, "uses": []})
        heads = {head.name: head for head in await self.store.program_heads(principal)}
        # Sorted, so that the error about the limit is the same each time.
        wanted = [heads[name] for name in sorted(names) if name not in self.operators and name in heads]
        size = sum(head.size for head in wanted)
        if size > MAX_USED_BYTES:
            raise BridgeError(
                "programs_too_large",
                f"The saved programs that this one runs have {size} bytes; the limit is {MAX_USED_BYTES}.",
                hint="Have it run fewer or smaller programs.",
            )
        saved = {head.name: await self.store.program(principal, head.name) for head in wanted}
        known: dict[str, Program] = dict(self.operators)

        def resolve(name: str) -> Program | None:
            if name not in known and (kept := saved.get(name)) is not None:
                known[name] = parse_saved(kept)
            return known.get(name)

        return await on_thread(programs.parse, data, resolve)

    async def without_values(self, owned: Found, project: Callable[[Any], Awaitable[Any]]) -> Found:
        """An agent's program with references in the place of its literal sensitive values.

        Every entry of its execution contains its hash, which must not disclose them. Operators' programs that it runs
        are not changed.

        Args:
            owned: The program.
            project: Replaces sensitive values in JSON by references.

        Raises:
            BridgeError: `program_sensitive`: with references it is not a valid program.
        """
        written = programs.bundle(owned.program)
        projected = await project(written)
        if projected == written:
            return owned
        try:
            if not isinstance(projected, dict):
                raise TypeError
            pairs = zip(written["uses"], projected["uses"], strict=True)
            uses = [own if own[0] in self.operators else other for own, other in pairs]
            bundle = {"program": projected["program"], "uses": uses}
            return owned._replace(program=await off_loop(bundle, programs.unbundle, bundle))
        except (programs.InvalidProgramError, ValueError, TypeError):
            raise BridgeError(
                "program_sensitive",
                "The program has sensitive values where no reference can take their place: in names, or too many.",
                hint="Name its steps otherwise, and give it such values in its context.",
            ) from None

    async def validate(self, data: Any, principal: str) -> dict[str, Any]:
        """Check a program, given by name or as JSON: `{"faults", "warnings", "hash"}`; the hash is None if invalid."""
        try:
            program = (await self.find(data, principal)).program
        except BridgeError as exc:
            if exc.code != "invalid_program":
                raise
            return {"faults": exc.details["faults"], "warnings": [], "hash": None}
        warnings = await off_loop(program.data, lambda: program_warnings.warnings(program))
        return {"faults": [], "warnings": [fault._asdict() for fault in warnings], "hash": program.hash}

    async def save(self, name: str, requested: Any, principal: str) -> dict[str, Any]:
        """Save a program under a name.

        Raises:
            BridgeError: `invalid_program`; `reserved_name`: the operator has a program of that name, or of a name that
                looks like it; `too_many_programs`.
        """
        self.check_name(name)
        found = await self.find(requested, principal)
        self.check_program(found.program)
        data = programs.bundle(found.program)
        row = SavedProgram(name, found.program.hash, data, time.time())
        if not await self.store.save_program(principal, row, MAX_SAVED, MAX_SAVED_CHARS):
            raise BridgeError(
                "too_many_programs",
                f"Saved programs are limited to {MAX_SAVED}, and to {MAX_SAVED_CHARS} characters together.",
                hint="Delete some.",
            )
        return {"hash": found.program.hash}

    def check_name(self, name: str) -> None:
        """Refuse a name under which no program can be saved.

        Raises:
            BridgeError: `reserved_name`; `bad_request`: it is too long.
        """
        if len(name) > MAX_NAME_CHARS:
            raise BridgeError("bad_request", f"A name has at most {MAX_NAME_CHARS} characters; this one {len(name)}.")
        if not name.strip():
            raise BridgeError("reserved_name", "The name is empty.", hint="Use another name.")
        if name in self.operators:
            raise BridgeError("reserved_name", f"The name {name!r} is the operator's.", hint="Use another name.")
        self._check_resemblance(name)

    def check_program(self, program: Program) -> None:
        """Refuse an agent's program whose own name a person would take for that of an operator's program.

        Raises:
            BridgeError: `reserved_name`.
        """
        own = self.operators.get(program.name)
        if own is not None and own.hash != program.hash:
            raise BridgeError(
                "reserved_name",
                f"The program calls itself {program.name!r}, which is the operator's, and is another.",
                hint="Give it another name.",
            )
        self._check_resemblance(program.name)

    def _check_resemblance(self, name: str) -> None:
        if name not in self.operators and (other := resembled(name, self.operators)) is not None:
            raise BridgeError(
                "reserved_name",
                f"The name {escape_name(name)[:200]} looks like {escape_name(other)}, which is the operator's.",
                hint="Use a name that nobody takes for that.",
            )

    async def listed(self, principal: str) -> list[dict[str, Any]]:
        """A row for each of the operator's and the principal's programs, sorted by name."""
        rows = {name: _row(name, program, "operator") for name, program in self.operators.items()}
        seen = self._rows.setdefault(principal, {})
        heads = {head.name: head for head in await self.store.program_heads(principal)}
        for name in seen.keys() - heads.keys():
            seen.pop(name, None)
        for name, head in heads.items():
            if name in rows:
                continue
            known = seen.get(name)
            if known is None or known[0] != head:
                # Read once for each saved version. It was checked when it was saved.
                saved = await self.store.program(principal, name)
                if saved is None:
                    continue
                known = seen[name] = (head, _saved_row(saved))
            rows[name] = dict(known[1])
        return [rows[name] for name in sorted(rows)]

    async def delete(self, name: str, principal: str) -> bool:
        """Delete a saved program; whether it existed. The records of its executions stay.

        Raises:
            BridgeError: `denied`: it is the operator's.
        """
        if name in self.operators:
            raise BridgeError("denied", f"The program {name!r} is the operator's.")
        exists = any(head.name == name for head in await self.store.program_heads(principal))
        if exists:
            await self.store.delete_program(principal, name)
        return exists

    async def plan(self, intent: str, principal: str, planner: Planner) -> dict[str, Any]:
        """Have a model write a program.

        Raises:
            BridgeError: As the planner.
        """

        async def faults(claimed: Any) -> Sequence[Fault]:
            try:
                await self._read(claimed, principal)
            except programs.InvalidProgramError as exc:
                return exc.faults
            return ()

        return await planner(intent, faults)


def parse_saved(saved: SavedProgram) -> Program:
    """Parse a saved program.

    Raises:
        BridgeError: `bad_state`: it is not valid any more.
    """
    try:
        return programs.unbundle(saved.data)
    except (ValueError, KeyError, TypeError) as exc:
        raise BridgeError(
            "bad_state", f"The program {saved.name!r} is saved, but can't be used: {exc}.", hint="Delete it."
        ) from None


def _is_written_out(text: str) -> bool:
    """Whether a text that stands for a program may be meant to be the program, and not its name."""
    stripped = text.strip()
    return stripped.startswith(("{", "[", "`")) or "\n" in stripped


_NAME_LIKE = re.compile(r"[^\"':\n]{1,100}")
"""A text that is no program, however it begins, and may be a name that somebody has mistyped."""


def _read_text(text: str) -> dict[str, Any] | None:
    """The program of a text of JSON; None if the text is none.

    Raises:
        BridgeError: `invalid_program`: it is the JSON of another value.
    """
    try:
        data = parsed(text)
    except NotJSONError:
        return None
    if not isinstance(data, dict):
        raise _no_object()
    return data


def _no_object(fault: str = "") -> BridgeError:
    message = (
        f"this text is no JSON object of at most {MAX_PARSED_CHARS} characters{fault}: a program is an object, or the "
        "name of a saved one"
    )
    return _invalid([Fault("", "not_json", message)])


def _json_fault(text: str) -> str:
    """Where a text that begins as an object isn't JSON, in parentheses; empty for any other text."""
    if text.lstrip().startswith("{") and len(text) <= MAX_PARSED_CHARS:
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            return f" (line {error.lineno}, column {error.colno}: {error.msg})"
        except (ValueError, RecursionError):
            pass
    return ""


def _invalid(faults: Sequence[Fault]) -> BridgeError:
    listed = "; ".join(map(str, faults[:MAX_FAULTS_LISTED])) + ("; …" if len(faults) > MAX_FAULTS_LISTED else "")
    rows = [fault._asdict() for fault in faults]
    return BridgeError("invalid_program", ended(f"The program is not valid: {listed}"), faults=rows)


def named_programs(data: Any) -> set[str]:
    """The names of programs that the steps of a program, valid or not, may run."""
    names: set[str] = set()
    stack = [data]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if isinstance(name := node.get("program"), str):
                names.add(name)
            stack += node.values()
        elif isinstance(node, list):
            stack += node
    return names


def _saved_row(saved: SavedProgram) -> dict[str, Any]:
    """As `_row`, of a saved program, which is not parsed again.

    Raises:
        BridgeError: `bad_state`.
    """
    program = saved.data.get("program") if isinstance(saved.data, dict) else None
    if not isinstance(program, dict):
        raise BridgeError("bad_state", f"The program {saved.name!r} is saved, but can't be used.", hint="Delete it.")
    return {
        "name": saved.name,
        "version": program.get("version", "1.0"),
        "description": _shortened(program.get("description", "")),
        "hash": saved.hash,
        "owner": "agent",
    }


def _shortened(description: str) -> str:
    return description if len(description) <= MAX_DESCRIPTION_CHARS else f"{description[:MAX_DESCRIPTION_CHARS]}…"


def _names(names: list[str]) -> str:
    if not names:
        return "None is saved, and [programs] of the configuration has none."
    more = ", …" if len(names) > MAX_NAMES_LISTED else ""
    return f"Programs: {', '.join(name[:100] for name in names[:MAX_NAMES_LISTED])}{more}."


def _row(name: str, program: Program, owner: Origin) -> dict[str, Any]:
    return {
        "name": name,
        "version": program.version,
        "description": _shortened(program.description),
        "hash": program.hash,
        "owner": owner,
    }
