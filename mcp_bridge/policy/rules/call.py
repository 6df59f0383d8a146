"""The input of a policy decision: a tool's call, its arguments, and the program's step that makes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        has_changed: Whether the operator's programs have another in its place by now, or none.
    """

    origin: Origin
    hash: str
    name: str | None = None
    has_changed: bool = False


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
