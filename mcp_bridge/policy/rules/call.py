"""A call as the policy sees it: which tool, with what, and as a step of which program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.policy.rules.globs import ToolNames

Origin = Literal["operator", "agent"]
"""Whose a program is: the operator's, from `[programs]` and read-only to the agent, or the agent's, inline or saved."""


@dataclass(frozen=True, slots=True)
class ProgramRef:
    """A program that a call comes through.

    Attributes:
        origin: Whose it is, by where the host took it from: never by its name, nor by what it contains.
        hash: SHA-256 of its canonical form, in lower-case hexadecimal.
        name: Its name, or None for one that was passed inline.
    """

    origin: Origin
    hash: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class StepContext:
    """The step that a call is made by.

    Attributes:
        chain: The programs around it, outermost first; at least one. A program that is written out inside another's
            step is a part of that other and has no entry: `chain[-1]` is the program in whose text the step stands.
        path: The step's path, as the machine has it.
    """

    chain: tuple[ProgramRef, ...]
    path: str = ""

    def __post_init__(self) -> None:
        if not self.chain:
            raise ValueError("a step stands in a program")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, before it is made.

    Attributes:
        names: The tool's, from the catalogue: never as the caller wrote them.
        arguments: JSON under the names that the tool's schema has, with the values behind references, and with the
            tool's defaults in those that a condition asks about. A text that holds a secret is a
            `comparisons.Unknown`.
        hints: The tool's annotations, as its server claims them.
        step: None for a call that the agent's script makes itself.
        made: From a rule's number to the calls that it has let through in this execution.
        schema: The JSON Schema of the tool's arguments, as its server claims it.
        complete: Whether all of the tool's defaults are among the arguments: else what isn't there isn't known.
    """

    names: ToolNames
    arguments: Mapping[str, Any] = field(default_factory=dict)
    hints: Mapping[str, Any] = field(default_factory=dict)
    step: StepContext | None = None
    made: Mapping[int, int] = field(default_factory=dict)
    schema: Mapping[str, Any] = field(default_factory=dict)
    complete: bool = True
