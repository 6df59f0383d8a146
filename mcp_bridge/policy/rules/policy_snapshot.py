"""The policy as one execution has it, from its start to its end: frozen, hashed, and whole.

A snapshot holds everything that a decision takes. What is changed in the configuration afterwards, or in the operator's
programs, is for later executions.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from mcp_bridge.errors import BridgeError
from mcp_bridge.kernel.values import canonical, digest, normal
from mcp_bridge.near_names import suggestion
from mcp_bridge.policy.rules.policy_settings import UNKNOWN_SOURCE, PolicyLimits, Preset, Rule, is_hash
from mcp_bridge.policy.rules.rule_evaluation import CompiledRules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.policy.rules.policy_settings import Policy, Source

_NO_PROGRAMS = "There is none: put the program's file into a folder that [programs] path = [...] names."


class PinnedProgram(BaseModel):
    """One of the operator's programs as it was when the policy was frozen.

    Attributes:
        name: Its name.
        hash: SHA-256 of its canonical form, in lower-case hexadecimal.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _by_name(programs: tuple[PinnedProgram, ...]) -> tuple[PinnedProgram, ...]:
    return tuple(sorted(programs, key=lambda program: program.name))


class PolicySnapshot(BaseModel):
    """A frozen policy. Two that mean the same, written in whatever order of keys, are equal and have equal hashes.

    Attributes:
        version: Of this form.
        preset: What happens to calls that no rule decides.
        rules: In their order.
        limits: Of the execution, and of its principal.
        trust_hints: Configured names of the servers whose hints are believed.
        programs: The operator's programs that rules name, by name.
        floor: The user's own policy beneath this one, which is a folder's: of what both say, the stricter holds. The
            rules of both are numbered in one sequence, the floor's first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    preset: Preset = "open"
    rules: tuple[Rule, ...] = ()
    limits: PolicyLimits = PolicyLimits()
    trust_hints: tuple[str, ...] = ()
    programs: Annotated[tuple[PinnedProgram, ...], AfterValidator(_by_name)] = ()
    floor: PolicySnapshot | None = None

    @model_validator(mode="after")
    def _pinned(self) -> Self:
        pinned = [program.name for program in self.programs]
        named = {program for rule in self.rules for program in rule.programs if not is_hash(program)}
        if sorted(named) != pinned:
            raise ValueError("the programs are not those that the rules name, each once")
        return self

    @functools.cached_property
    def compiled(self) -> CompiledRules:
        """The compiled rules; not a part of the data."""
        pins = {program.name: program.hash for program in self.programs}
        return CompiledRules(self.rules, pins, self.count - len(self.rules) + 1)

    @property
    def count(self) -> int:
        """How many rules there are, those of the floors beneath among them."""
        return len(self.rules) + (self.floor.count if self.floor else 0)

    @functools.cached_property
    def may_deny(self) -> bool:
        """Whether it denies any call."""
        denies = self.preset in {"locked", "read-only"} or any(
            rule.effect in {"deny", "program"} or rule.max_calls is not None for rule in self.rules
        )
        return denies or (self.floor is not None and self.floor.may_deny)

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of `canonical()`, in hexadecimal."""
        return digest(self._data())

    def canonical(self) -> bytes:
        """The policy as canonical JSON (RFC 8785), from which `restore` makes it again."""
        return canonical(self._data())

    def _data(self) -> Any:
        # Without a floor as before there were any: the hashes of such policies stay what they are.
        data = self.model_dump(mode="json", exclude={"floor"})
        return normal(data | {"floor": self.floor._data()} if self.floor else data)  # noqa: SLF001 - of the same class

    @classmethod
    def restore(cls, data: bytes) -> PolicySnapshot:
        """The snapshot with these canonical bytes.

        Raises:
            BridgeError: `bad_policy_snapshot`: they are none, or of another version of this form.
        """
        try:
            return cls.model_validate_json(data)
        except ValidationError as exc:
            error = exc.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, error["loc"]))
            raise BridgeError(
                "bad_policy_snapshot",
                f"The stored policy can't be read: {where + ': ' if where else ''}{error['msg']}.",
                hint="It was changed, or stored by another version.",
            ) from None

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """A validated copy: pydantic's own would go on with the hash and the compiled rules of the original."""
        return type(self).model_validate(self.model_dump() | dict(update or {}))


def freeze(policy: Policy, programs: Mapping[str, str], source: Source = UNKNOWN_SOURCE) -> PolicySnapshot:
    """The policy for an execution that starts now.

    Args:
        policy: As configured.
        programs: From the names of the operator's programs to their hashes. Those that no rule names are left out: a
            change to them is no change of policy.
        source: Where the policy was written.

    Raises:
        BridgeError: `bad_config`: a rule names a program that there isn't.
    """
    named: set[str] = set()
    for index, rule in enumerate(policy.rules):
        for program in rule.programs:
            if is_hash(program):
                continue
            if program not in programs:
                raise source.error(
                    f"there is no program {program!r} in [programs]",
                    *("rules", index, "programs"),
                    hint=suggestion(program, sorted(programs)) if programs else _NO_PROGRAMS,
                )
            named.add(program)
    return PolicySnapshot(
        preset=policy.preset,
        rules=policy.rules,
        limits=policy.limits,
        trust_hints=policy.trust_hints,
        programs=tuple(PinnedProgram(name=name, hash=programs[name]) for name in named),
    )
