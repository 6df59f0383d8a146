"""The programs that there are: the operator's, and those that a principal has saved."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from mcp_bridge.downstream.catalog.aliases import nearest
from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import escape_name
from mcp_bridge.kernel import program_parser as programs
from mcp_bridge.kernel import program_warnings
from mcp_bridge.ledger.storage.execution_store import SavedProgram
from mcp_bridge.lookalikes import resembled
from mcp_bridge.offload import off_loop, on_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from mcp_bridge.kernel.program_parser import Program
    from mcp_bridge.kernel.program_schema import Fault
    from mcp_bridge.ledger.storage.execution_store import ProgramHead, ProgramStore

MAX_SAVED = 1000
"""Programs that one principal may keep."""

MAX_SAVED_CHARS = 64 << 20
"""Of the programs that one principal may keep, as JSON."""

MAX_USED_BYTES = 4 << 20
"""Of the saved programs that one program may run by their names."""

MAX_DESCRIPTION_CHARS = 1000
"""Of a program's description, in a listing."""

MAX_NAME_CHARS = 1000
"""Longest name of a program that is looked for."""

MAX_NAMES_TOLD = 20
"""Of programs, to whoever asks for one that there isn't."""

Origin = Literal["operator", "agent"]

Planner: TypeAlias = "Callable[[str, Callable[[Any], Awaitable[Sequence[Fault]]]], Awaitable[dict[str, Any]]]"
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
        self._told: dict[str, dict[str, tuple[ProgramHead, dict[str, Any]]]] = {}
        """Of each principal's programs what a listing tells, and of which one that is."""

    async def find(self, asked: Any, principal: str) -> Found:
        """A program by name, or from an object.

        Raises:
            BridgeError: `unknown_program`, `invalid_program` with all of its faults.
        """
        if isinstance(asked, str):
            if asked in self.operators:
                return Found(self.operators[asked], "operator")
            if len(asked) > MAX_NAME_CHARS:
                raise BridgeError(
                    "unknown_program",
                    f"There is no program {asked[:100]!r}…: a name has at most {MAX_NAME_CHARS} characters.",
                )
            if (kept := await self.store.program(principal, asked)) is not None:
                return Found(await off_loop(kept.data, kept_program, kept), "agent")
            names = [*self.operators, *(head.name for head in await self.store.program_heads(principal))]
            close = nearest(asked, names)
            hint = f"Did you mean {', '.join(close)}?" if close else _names(names)
            raise BridgeError("unknown_program", f"There is no program {asked[:100]!r}.", hint=hint, nearest=close)

        try:
            return Found(await self._read(asked, principal), "agent")
        except programs.InvalidProgramError as exc:
            faults = [fault._asdict() for fault in exc.faults]
            told = "; ".join(map(str, exc.faults[:10])) + ("; …" if len(faults) > 10 else "")  # noqa: PLR2004
            raise BridgeError("invalid_program", f"The program is not valid: {told}.", faults=faults) from None

    async def _read(self, asked: Any, principal: str) -> Program:
        """The program that an object is, with those that its steps run by name: the operator's first.

        Raises:
            InvalidProgramError: It is none.
            BridgeError: `programs_too_large`.
        """
        names = await off_loop(asked, programs_named, asked)
        if not names:
            return await off_loop(asked, programs.unbundle, {"program": asked, "uses": []})
        heads = {head.name: head for head in await self.store.program_heads(principal)}
        # In their order, so that who is over the limit is told so of the same ones each time.
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
                known[name] = kept_program(kept)
            return known.get(name)

        return await on_thread(programs.parse, asked, resolve)

    async def without_values(self, found: Found, project: Callable[[Any], Awaitable[Any]]) -> Found:
        """An agent's program with references in the place of the sensitive values that are written out in it.

        Every entry of its execution has its hash, which is to tell nothing of them. The operator's programs that it
        runs stay as they are.

        Args:
            found: The program.
            project: Takes values out of JSON.

        Raises:
            BridgeError: `program_sensitive`: without its values it is no program.
        """
        written = programs.bundle(found.program)
        shown = await project(written)
        if shown == written:
            return found
        try:
            if not isinstance(shown, dict):
                raise TypeError
            pairs = zip(written["uses"], shown["uses"], strict=True)
            uses = [own if own[0] in self.operators else other for own, other in pairs]
            bundle = {"program": shown["program"], "uses": uses}
            return found._replace(program=await off_loop(bundle, programs.unbundle, bundle))
        except (programs.InvalidProgramError, ValueError, TypeError):
            raise BridgeError(
                "program_sensitive",
                "The program has sensitive values where no reference can take their place: in names, or too many.",
                hint="Name its steps otherwise, and give it such values in its context.",
            ) from None

    async def validate(self, asked: Any, principal: str) -> dict[str, Any]:
        """`{"faults", "warnings", "hash"}` of what may be a program."""
        try:
            found = (await self.find(asked, principal)).program
        except BridgeError as exc:
            if exc.code != "invalid_program":
                raise
            return {"faults": exc.details["faults"], "warnings": [], "hash": None}
        warnings = await off_loop(found.data, lambda: program_warnings.warnings(found))
        return {"faults": [], "warnings": [fault._asdict() for fault in warnings], "hash": found.hash}

    async def save(self, name: str, asked: Any, principal: str) -> dict[str, Any]:
        """Keep a program under a name.

        Raises:
            BridgeError: `invalid_program`; `reserved_name`: the operator has one of that name, or of one that looks
                like it; `too_many_programs`.
        """
        self.check_name(name)
        found = await self.find(asked, principal)
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
        """Whether a program can be saved under a name.

        Raises:
            BridgeError: `reserved_name`; `bad_request`: it is too long.
        """
        if len(name) > MAX_NAME_CHARS:
            raise BridgeError("bad_request", f"A name has at most {MAX_NAME_CHARS} characters; this one {len(name)}.")
        if not name.strip():
            raise BridgeError("reserved_name", "An empty name is none.", hint="Use another name.")
        if name in self.operators:
            raise BridgeError("reserved_name", f"The name {name!r} is the operator's.", hint="Use another name.")
        self._check_resemblance(name)

    def check_program(self, program: Program) -> None:
        """Whether an agent's program can be shown to a person by the name that it has in itself.

        Raises:
            BridgeError: `reserved_name`: it would be taken for one of the operator's.
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
        """The operator's and the principal's programs, by name."""
        rows = {name: _row(name, program, "operator") for name, program in self.operators.items()}
        seen = self._told.setdefault(principal, {})
        heads = {head.name: head for head in await self.store.program_heads(principal)}
        for name in seen.keys() - heads.keys():
            seen.pop(name, None)
        for name, head in heads.items():
            if name in rows:
                continue
            known = seen.get(name)
            if known is None or known[0] != head:
                # Once a program: what is told of it is as it was when it was saved, and was found valid.
                kept = await self.store.program(principal, name)
                if kept is None:
                    continue
                known = seen[name] = (head, _kept_row(kept))
            rows[name] = dict(known[1])
        return [rows[name] for name in sorted(rows)]

    async def delete(self, name: str, principal: str) -> bool:
        """Forget a saved program; whether there was one. What is recorded of its executions stays.

        Raises:
            BridgeError: `denied`: it is the operator's.
        """
        if name in self.operators:
            raise BridgeError("denied", f"The program {name!r} is the operator's.")
        kept = any(head.name == name for head in await self.store.program_heads(principal))
        if kept:
            await self.store.delete_program(principal, name)
        return kept

    async def plan(self, intent: str, principal: str, planner: Planner) -> dict[str, Any]:
        """A program that a model has written.

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


def programs_named(asked: Any) -> set[str]:
    """The programs that what may be a program may run by their names."""
    found: set[str] = set()
    stack = [asked]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if isinstance(name := node.get("program"), str):
                found.add(name)
            stack += node.values()
        elif isinstance(node, list):
            stack += node
    return found


def _kept_row(kept: SavedProgram) -> dict[str, Any]:
    """As `_row`, of a program that was found valid when it was saved: it isn't read for that again.

    Raises:
        BridgeError: `bad_state`.
    """
    program = kept.data.get("program") if isinstance(kept.data, dict) else None
    if not isinstance(program, dict):
        raise BridgeError("bad_state", f"The program {kept.name!r} is kept, and can't be used.", hint="Delete it.")
    return {
        "name": kept.name,
        "version": program.get("version", "1.0"),
        "description": _shortened(program.get("description", "")),
        "hash": kept.hash,
        "owner": "agent",
    }


def _shortened(description: str) -> str:
    return description if len(description) <= MAX_DESCRIPTION_CHARS else f"{description[:MAX_DESCRIPTION_CHARS]}…"


def _names(names: list[str]) -> str:
    if not names:
        return "None is saved, and [programs] of the configuration has none."
    more = ", …" if len(names) > MAX_NAMES_TOLD else ""
    return f"Programs: {', '.join(name[:100] for name in names[:MAX_NAMES_TOLD])}{more}."


def _row(name: str, program: Program, owner: Origin) -> dict[str, Any]:
    return {
        "name": name,
        "version": program.version,
        "description": _shortened(program.description),
        "hash": program.hash,
        "owner": owner,
    }
