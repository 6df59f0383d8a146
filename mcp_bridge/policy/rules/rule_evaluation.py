"""One rule and one call: whether the rule decides the call, and how. `decision` combines the rules."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mcp_bridge.kernel.language.conditions import Condition, ConditionError
from mcp_bridge.kernel.language.references import MISSING, walk, written_path
from mcp_bridge.policy.rules import schema_defaults
from mcp_bridge.policy.rules.comparisons import STRICT, UndeclaredList, truth
from mcp_bridge.policy.rules.globs import ToolGlob
from mcp_bridge.policy.rules.policy_settings import is_hash
from mcp_bridge.policy.rules.possible_defaults import may_have_default

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.policy.rules.call import Call, StepContext
    from mcp_bridge.policy.rules.globs import Reading, ToolNames
    from mcp_bridge.policy.rules.policy_settings import Rule

Verdict = Literal["pass", "allow", "approve", "deny", "at least approve"]
"""A rule's verdict on a call. `pass`: none. `at least approve`: none, but a person is asked if a later rule or the
preset allows the call."""

_MAX_CACHED_TOOLS = 10_000


class Cause(enum.Enum):
    """The reason of a rule's verdict, as text for the operator."""

    APPLIES = "it is for this tool"
    CONDITION_HOLDS = "it is for this tool, and its condition holds"
    OTHER_TOOL = "it is for other tools"
    OTHER_NAME = (
        "it names this tool only by an alias or in other case, and to be allowed a tool has to be named exactly"
    )
    CONDITION_FAILS = "its condition doesn't hold"
    NO_ANSWER = "its condition has no answer for these arguments"
    NOT_A_STEP = "the call is no step of a program"
    PROGRAM_NOT_LISTED = "the step is in a program that isn't one of the rule's"
    NOT_AN_OPERATOR_PROGRAM = "the step is in a program that isn't the operator's"
    PROGRAM_CHANGED = "the operator has changed or removed the step's program since the execution began"
    SAME_NAME_OTHER_PROGRAM = "the step's program has the name of one of the rule's, but isn't that one"
    CALL_LIMIT_REACHED = "its max_calls is reached in this execution"


class Finding(NamedTuple):
    """A rule's verdict on a call, with its reason."""

    verdict: Verdict
    cause: Cause


class CompiledRule:
    """A compiled rule.

    Args:
        number: Its position among the rules, from 1.
        rule: The rule.
        pins: The hashes of the operator's programs, by name.
    """

    __slots__ = ("_condition", "_globs", "_hashes", "_names", "number", "rule")

    def __init__(self, number: int, rule: Rule, pins: Mapping[str, str]) -> None:
        self.number = number
        self.rule = rule
        self._globs = [ToolGlob(text) for text in rule.tools]
        self._condition = None if rule.when is None else Condition(rule.when, STRICT, truth)
        self._names = {program for program in rule.programs if not is_hash(program)}
        self._hashes = {program if is_hash(program) else pins[program] for program in rule.programs}

    @property
    def label(self) -> str:
        """Its number, and its name if it has one, for people."""
        return f'rule {self.number} ("{self.rule.name}")' if self.rule.name else f"rule {self.number}"

    @property
    def roots(self) -> frozenset[str]:
        """The arguments that its condition refers to."""
        return frozenset() if self._condition is None else self._condition.roots

    def reading(self, tool: ToolNames) -> Reading | None:
        """How its globs match a tool; None if they don't."""
        if any(glob.names(tool) for glob in self._globs):
            return "narrow"
        return "broad" if any(glob.covers(tool) for glob in self._globs) else None

    def fitting(self, tool: ToolNames) -> list[str]:
        """Its globs that cover a tool."""
        return [glob.text for glob in self._globs if glob.covers(tool)]

    def judge(self, call: Call, reading: Reading) -> Finding:
        """The rule's verdict on a call whose tool it matches.

        A condition without an answer, such as `None <= 500`, never helps a call: a rule that denies or asks a person
        applies, one that allows doesn't, and one that allows steps of programs refuses them.
        """
        rule = self.rule
        fitted = Cause.APPLIES
        if self._condition is not None:
            fitted = self._asked(call)
        match rule.effect:
            case "deny":
                return Finding("pass" if fitted is Cause.CONDITION_FAILS else "deny", fitted)
            case "program":
                return self._judge_step(call, fitted)
            case "approve" if fitted is not Cause.CONDITION_FAILS:
                if self._used_up(call):
                    return Finding("deny", Cause.CALL_LIMIT_REACHED)
                return Finding("at least approve" if fitted is Cause.NO_ANSWER else "approve", fitted)
            case "allow" if fitted not in _UNFIT:
                if reading == "broad":
                    # A bound on calls is a restriction: an alias must not bypass it.
                    return Finding("pass" if rule.max_calls is None else "deny", Cause.OTHER_NAME)
                return Finding("deny", Cause.CALL_LIMIT_REACHED) if self._used_up(call) else Finding("allow", fitted)
        return Finding("pass", fitted)

    def problem(self, call: Call) -> str | None:
        """Why its condition has no answer for a call's arguments; None if it has one."""
        try:
            self._holds(call)
        except ConditionError as exc:
            return str(exc)
        return None

    def _judge_step(self, call: Call, fitted: Cause) -> Finding:
        """Decide every call of the rule's tools: one that doesn't match is refused, not left to later rules."""
        if (refused := self._refused(call.step)) is not None:
            return Finding("deny", refused)
        if fitted in _UNFIT:
            return Finding("deny", fitted)
        return Finding("deny", Cause.CALL_LIMIT_REACHED) if self._used_up(call) else Finding("allow", fitted)

    def _refused(self, step: StepContext | None) -> Cause | None:
        """Why the step's program isn't one of the rule's; None if it is. Only the program with the step's text counts.

        An agent's program may run the operator's as a step, as a script may: the agent chooses the inputs either way.
        An operator's program that runs one of the agent's doesn't pass its rights on.
        """
        if step is None:
            return Cause.NOT_A_STEP
        program = step.chain[-1]
        if program.origin == "operator" and program.hash in self._hashes:
            return None
        # One that doesn't say its name may be that of any file.
        if program.differs and (self._names if program.is_unnamed else program.name in self._names):
            return Cause.PROGRAM_CHANGED if program.origin == "operator" else Cause.SAME_NAME_OTHER_PROGRAM
        return Cause.NOT_AN_OPERATOR_PROGRAM if program.origin != "operator" else Cause.PROGRAM_NOT_LISTED

    def _used_up(self, call: Call) -> bool:
        return self.rule.max_calls is not None and call.made.get(self.number, 0) >= self.rule.max_calls

    def _asked(self, call: Call) -> Cause:
        try:
            return Cause.CONDITION_HOLDS if self._holds(call) else Cause.CONDITION_FAILS
        except ConditionError:
            return Cause.NO_ANSWER

    def _holds(self, call: Call) -> bool:
        def lookup(root: str, path: tuple[str, ...]) -> Any:
            return _argument(call, root, path)

        return self._condition is None or self._condition.holds(lookup)


def _argument(call: Call, root: str, path: tuple[str, ...]) -> Any:
    """A value among a call's arguments, or `MISSING`.

    Raises:
        ConditionError: The path leads into what has no such parts: for a name, a list, a text or a number; for an
            index, what is no list. A server may take one for the other: a text for an object's JSON, an object for a
            list of one. Or there is no value, and whether the tool has a default for it is unknown.
    """
    value = call.arguments.get(root, MISSING)
    reached = 1
    for name in path:
        if value is MISSING or value is None:
            break
        reached += 1
        if not _may_have(value, name):
            kind = "list" if _is_index(name) else "object"
            raise ConditionError(f"{written_path((root,))} is asked for its {name!r}, and is no {kind} there")
        value = walk(value, (name,), of_step=False)
    names = (root, *path)
    if value is MISSING and (not call.complete or may_have_default(call.schema, names[:reached])):
        raise ConditionError(f"whether its tool has a default for {written_path(names[:reached])} isn't known")
    if isinstance(value, list) and not schema_defaults.announces_array(call.schema, names):
        return UndeclaredList(value)
    return value


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdecimal()


def _may_have(value: Any, name: str) -> bool:
    """Whether a value is of the kind that a name of a path leads into; `output` may be the value itself."""
    if name == "output":
        return True
    if isinstance(value, dict):
        return name in value or not _is_index(name)
    return isinstance(value, list) and _is_index(name)


_UNFIT = frozenset({Cause.CONDITION_FAILS, Cause.NO_ANSWER})


class MatchingRules(NamedTuple):
    """The rules that match one tool: those that deny, and the others in their order.

    Attributes:
        denying, others: The rules.
        roots: The arguments that their conditions ask about.
    """

    denying: tuple[CompiledRule, ...]
    others: tuple[tuple[CompiledRule, Reading], ...]
    roots: frozenset[str]


class CompiledRules:
    """A policy's rules, with a cache of which of them match which tool.

    Args:
        rules: The rules, in order.
        pins: As in `CompiledRule`.
        first: The number of the first rule: a folder's rules are numbered after those of the policy beneath it.
    """

    __slots__ = ("_fitting", "rules")

    def __init__(self, rules: Sequence[Rule], pins: Mapping[str, str], first: int = 1) -> None:
        self.rules = tuple(CompiledRule(number, rule, pins) for number, rule in enumerate(rules, first))
        self._fitting: dict[ToolNames, MatchingRules] = {}

    def fitting(self, tool: ToolNames) -> MatchingRules:
        """The rules that match a tool."""
        rules = self._fitting.get(tool)
        if rules is None:
            if len(self._fitting) >= _MAX_CACHED_TOOLS:
                self._fitting.clear()
            rules = self._fitting[tool] = self._fit(tool)
        return rules

    def _fit(self, tool: ToolNames) -> MatchingRules:
        read = [(rule, rule.reading(tool)) for rule in self.rules]
        return MatchingRules(
            tuple(rule for rule, reading in read if reading and rule.rule.effect == "deny"),
            tuple((rule, reading) for rule, reading in read if reading and rule.rule.effect != "deny"),
            frozenset().union(*(rule.roots for rule, reading in read if reading)),
        )
