"""The input of a policy decision: a tool's call, its arguments, and the program's step that makes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.policy.rules.globs import ToolNames

Origin = Literal["operator", "agent"]
"""A program's owner: the operator (`[programs]`, read-only to the agent) or the agent (inline or saved)."""


@dataclass(frozen=True, slots=True)
class ProgramRef:
    """A program that a call comes through.

    Attributes:
        origin: Its owner, by where the host has read it from; never by its name or content.
        hash: SHA-256 of its canonical form, in lower-case hexadecimal.
        name: Its name, or None for one that was passed inline.
        differs: Whether the operator's programs aren't as this one: it was the operator's when its execution began, and
            has been edited or removed since; or it is run by a name by which the operator has another.
        is_unnamed: Whether it doesn't say its name itself. That of its file isn't known of an execution.
    """

    origin: Origin
    hash: str
    name: str | None = None
    differs: bool = False
    is_unnamed: bool = False


def program_ref(
    program: Program, name: str | None, execution_origin: Origin, operators: Mapping[str, Program]
) -> ProgramRef:
    """A program as rules see it. Its owner is by where the host has read it from, not by what it says of itself.

    Args:
        program: The program.
        name: The name by which a step runs it; None for the execution's own.
        execution_origin: The owner of the execution's own program.
        operators: The operator's programs as they are now, by name.
    """
    if name is not None:
        # What was begun or saved earlier may have one that is the operator's no longer, or never was.
        known = operators.get(name)
        is_operators = known is not None and known.hash == program.hash
        differs = known is not None and not is_operators
        return ProgramRef("operator" if is_operators else "agent", program.hash, name, differs)
    differs = execution_origin == "operator" and all(known.hash != program.hash for known in operators.values())
    return ProgramRef(execution_origin, program.hash, program.name, differs, "name" not in program.data)


@dataclass(frozen=True, slots=True)
class StepContext:
    """The step that makes a call.

    Attributes:
        chain: The programs around it, outermost first; at least one. A program that is written inline in another's step
            is a part of that other and has no entry: `chain[-1]` is the program whose text contains the step.
        path: The step's path in the machine.
        undoing: Which attempt to undo the step the call is, from 1; 0 for a call of the step's own.
    """

    chain: tuple[ProgramRef, ...]
    path: str = ""
    undoing: int = 0

    def __post_init__(self) -> None:
        if not self.chain:
            raise ValueError("a step stands in a program")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool, before it is made.

    Attributes:
        names: The tool's names from the catalogue; never as the caller wrote them.
        arguments: JSON by the names of the tool's schema, with the values behind references, and with the tool's
            defaults for arguments that a condition refers to. A text with a secret is a `comparisons.Unknown`.
        hints: The tool's annotations, as its server lists them.
        step: The step that makes the call; None for a call of the agent's script.
        made: How many calls each rule has allowed in this execution, by the rule's number.
        schema: The JSON Schema of the tool's arguments, as its server lists it.
        complete: Whether all of the tool's defaults are among the arguments. If not, a missing argument is unknown.
    """

    names: ToolNames
    arguments: Mapping[str, Any] = field(default_factory=dict)
    hints: Mapping[str, Any] = field(default_factory=dict)
    step: StepContext | None = None
    made: Mapping[int, int] = field(default_factory=dict)
    schema: Mapping[str, Any] = field(default_factory=dict)
    complete: bool = True
