"""The programs that there are: the operator's, and those that a principal has saved."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from mcp_bridge.downstream.aliases import nearest
from mcp_bridge.errors import BridgeError
from mcp_bridge.kernel import program as programs
from mcp_bridge.ledger.store import SavedProgram

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from mcp_bridge.kernel.format import Fault
    from mcp_bridge.kernel.program import Program
    from mcp_bridge.ledger.store import ProgramStore

MAX_SAVED = 1000
"""Programs that one principal may keep."""

MAX_SAVED_CHARS = 64 << 20
"""Of the programs that one principal may keep, as JSON."""

MAX_NAMES_TOLD = 20
"""Of programs, to whoever asks for one that there isn't."""

Origin = Literal["operator", "agent"]

Planner: TypeAlias = "Callable[[str, Callable[[Any], Sequence[Fault]]], Awaitable[dict[str, Any]]]"
"""From an intent, and what finds the faults of a program, to a program without any."""


class Found(NamedTuple):
    """A program and whose it is."""

    program: Program
    origin: Origin


class ProgramLibrary:
    """Programs by name.

    Args:
        store: Keeps those that are saved.
        operators: The operator's programs, by name.
    """

    def __init__(self, store: ProgramStore, operators: Mapping[str, Program]) -> None:
        self.store = store
        self.operators = operators

    async def find(self, asked: Any, principal: str) -> Found:
        """A program by name, or from an object.

        Raises:
            BridgeError: `unknown_program`, `invalid_program` with all of its faults.
        """
        if isinstance(asked, str):
            if asked in self.operators:
                return Found(self.operators[asked], "operator")
            saved = {kept.name: kept for kept in await self.store.programs(principal)}
            if asked in saved:
                return Found(kept_program(saved[asked]), "agent")
            close = nearest(asked, [*self.operators, *saved])
            hint = f"Did you mean {', '.join(close)}?" if close else _names([*self.operators, *saved])
            raise BridgeError("unknown_program", f"There is no program {asked[:100]!r}.", hint=hint, nearest=close)

        try:
            if _runs_others(asked):
                return Found(programs.parse(asked, await self.resolver(principal)), "agent")
            return Found(programs.unbundle({"program": asked, "uses": []}), "agent")
        except programs.InvalidProgramError as exc:
            faults = [fault._asdict() for fault in exc.faults]
            told = "; ".join(map(str, exc.faults[:10])) + ("; …" if len(faults) > 10 else "")  # noqa: PLR2004
            raise BridgeError("invalid_program", f"The program is not valid: {told}.", faults=faults) from None

    async def resolver(self, principal: str) -> programs.Resolve:
        """Finds the programs that steps run by name: the operator's first."""
        saved = {kept.name: kept for kept in await self.store.programs(principal)}

        def resolve(name: str) -> Program | None:
            if name in self.operators:
                return self.operators[name]
            return kept_program(saved[name]) if name in saved else None

        return resolve

    async def validate(self, asked: Any, principal: str) -> dict[str, Any]:
        """`{"faults", "warnings", "hash"}` of what may be a program."""
        try:
            found = (await self.find(asked, principal)).program
        except BridgeError as exc:
            if exc.code != "invalid_program":
                raise
            return {"faults": exc.details["faults"], "warnings": [], "hash": None}
        return {"faults": [], "warnings": [fault._asdict() for fault in found.warnings], "hash": found.hash}

    async def save(self, name: str, asked: Any, principal: str) -> dict[str, Any]:
        """Keep a program under a name.

        Raises:
            BridgeError: `invalid_program`; `reserved_name`: the operator has one of that name; `too_many_programs`.
        """
        self.check_name(name)
        found = await self.find(asked, principal)
        row = SavedProgram(name, found.program.hash, programs.bundle(found.program), time.time())
        if not await self.store.save_program(principal, row, MAX_SAVED, MAX_SAVED_CHARS):
            raise BridgeError(
                "too_many_programs",
                f"Saved programs are limited to {MAX_SAVED}, and to {MAX_SAVED_CHARS} characters together.",
                hint="Delete some.",
            )
        return {"hash": found.program.hash}

    def check_name(self, name: str) -> None:
        """Whether a program can be saved under a name.

        Raises:
            BridgeError: `reserved_name`.
        """
        if not name.strip():
            raise BridgeError("reserved_name", "An empty name is none.", hint="Use another name.")
        if name in self.operators:
            raise BridgeError("reserved_name", f"The name {name!r} is the operator's.", hint="Use another name.")

    async def listed(self, principal: str) -> list[dict[str, Any]]:
        """The operator's and the principal's programs, by name."""
        rows = {name: _row(name, program, "operator") for name, program in self.operators.items()}
        for kept in await self.store.programs(principal):
            rows.setdefault(kept.name, _row(kept.name, kept_program(kept), "agent"))
        return [rows[name] for name in sorted(rows)]

    async def delete(self, name: str, principal: str) -> bool:
        """Forget a saved program; whether there was one. What is recorded of its executions stays.

        Raises:
            BridgeError: `denied`: it is the operator's.
        """
        if name in self.operators:
            raise BridgeError("denied", f"The program {name!r} is the operator's.")
        kept = {row.name for row in await self.store.programs(principal)}
        if name in kept:
            await self.store.delete_program(principal, name)
        return name in kept

    async def plan(self, intent: str, principal: str, planner: Planner) -> dict[str, Any]:
        """A program that a model has written.

        Raises:
            BridgeError: As the planner.
        """
        resolve = await self.resolver(principal)

        def faults(claimed: Any) -> Sequence[Fault]:
            try:
                programs.parse(claimed, resolve)
            except programs.InvalidProgramError as exc:
                return exc.faults
            return ()

        return await planner(intent, faults)


def kept_program(kept: SavedProgram) -> Program:
    """The program that was saved.

    Raises:
        BridgeError: `bad_state`.
    """
    try:
        return programs.unbundle(kept.data)
    except (ValueError, KeyError, TypeError) as exc:
        raise BridgeError(
            "bad_state", f"The program {kept.name!r} is kept, and can't be used: {exc}.", hint="Delete it."
        ) from None


def _runs_others(asked: Any) -> bool:
    """Whether what may be a program may run others by their names."""
    stack = [asked]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if isinstance(node.get("program"), str):
                return True
            stack += node.values()
        elif isinstance(node, list):
            stack += node
    return False


def _names(names: list[str]) -> str:
    if not names:
        return "None is saved, and [programs] of the configuration has none."
    more = ", …" if len(names) > MAX_NAMES_TOLD else ""
    return f"Programs: {', '.join(name[:100] for name in names[:MAX_NAMES_TOLD])}{more}."


def _row(name: str, program: Program, owner: Origin) -> dict[str, Any]:
    return {
        "name": name,
        "version": program.version,
        "description": program.description,
        "hash": program.hash,
        "owner": owner,
    }
