"""What the policy says of a call: a pure function of the snapshot and the call.

1. A rule that denies and matches decides, wherever it stands.
2. Else the first other rule that matches decides:
   - `allow` allows; `approve` has a person asked.
   - `program` matches every call of its tools: it allows steps of its programs for which its condition holds, and
     denies everything else.
   - a rule that has let through its `max_calls` denies.
3. Else the preset does.

A condition without an answer for these arguments never helps the call: a rule that denies matches; one that allows
doesn't; one that allows programs denies; and one that asks a person lets the others decide, but what they allow, a
person is asked about.

Rules that restrict (`deny`, `approve`, `program`, and the `max_calls` of any) know a tool by any of its names; a rule
that allows knows it by its own alone (see `globs`). Of the programs that a call comes through, the one counts in whose
text the step stands, and it has to be the operator's: one of the agent's with the same name, or the same content, is
not.

A folder's policy has the user's own beneath it, as a floor. Each decides by itself, and the stricter decision holds:
deny before approve before allow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.policy.rules.presets import preset_effect
from mcp_bridge.policy.rules.rule_evaluation import Cause

if TYPE_CHECKING:
    from mcp_bridge.policy.rules.call import Call, ProgramRef
    from mcp_bridge.policy.rules.globs import ToolNames
    from mcp_bridge.policy.rules.policy_snapshot import PolicySnapshot
    from mcp_bridge.policy.rules.presets import Outcome
    from mcp_bridge.policy.rules.rule_evaluation import CompiledRule

_FOR_THE_AGENT = {
    Cause.NOT_A_STEP: "it may only be called as a step of one of the operator's programs",
    Cause.NOT_AN_OPERATOR_PROGRAM: "it may only be called as a step of one of the operator's programs",
    Cause.PROGRAM_NOT_LISTED: "it may not be called as a step of this program",
    Cause.PROGRAM_CHANGED: (
        "it may not be called as a step of this program, which the operator has changed or removed since this execution"
        " began"
    ),
    Cause.SAME_NAME_OTHER_PROGRAM: (
        "it may not be called as a step of this program, which isn't the operator's of that name"
    ),
    Cause.NO_ANSWER: "the rule can't be decided for these arguments, which never lets a call through",
    Cause.CALL_LIMIT_REACHED: "the rule lets through no more calls in this execution",
}
"""What a denial says of its cause.

That a rule can't be decided tells that it has a condition on the arguments: whoever calls can then write them as the
tool's schema has them. It isn't told what the condition is, nor that it doesn't hold, nor of other rules.
"""


_CERTAIN = frozenset(
    {
        Cause.NOT_A_STEP,
        Cause.NOT_AN_OPERATOR_PROGRAM,
        Cause.PROGRAM_NOT_LISTED,
        Cause.PROGRAM_CHANGED,
        Cause.SAME_NAME_OTHER_PROGRAM,
    }
)
"""Why a call is denied whatever its arguments are."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The policy's decision on a call.

    Attributes:
        effect: `allow`, `approve` (ask a person first) or `deny`.
        tool: The tool, as `server.tool`.
        rule: The number of the rule that decided, from 1; None if the preset did.
        decider: The same for people: `rule 2 ("no deletions")`, `the preset "locked"`.
        cause: Why the rule decided so; None if the preset did.
        reason: The operator's own words, or None.
        counts: Numbers of the rules with `max_calls` that the call counts against unless it is denied.
        hint: What helps after a denial, or None.
    """

    effect: Outcome
    tool: str
    rule: int | None
    decider: str
    cause: Cause | None = None
    reason: str | None = None
    counts: tuple[int, ...] = ()
    hint: str | None = None

    @property
    def message(self) -> str:
        """For the agent: which rule, and nothing else of the policy."""
        verb = {"allow": "allows", "approve": "has a person decide about", "deny": "denies"}[self.effect]
        text = f"The operator's policy {verb} {self.tool}, by {self.decider}"
        said = _FOR_THE_AGENT.get(self.cause) if self.cause and self.effect == "deny" else None
        return ". ".join(part for part in (f"{text}: {said}" if said else text, self.reason) if part).rstrip(".") + "."

    def error(self) -> BridgeError:
        """The denial as an error, `denied`, whose every part may be shown to the agent."""
        return BridgeError("denied", self.message, hint=self.hint, tool=self.tool, rule=self.rule)


_MAX_NAME_CHARS = 100

_STRICTNESS: dict[Outcome, int] = {"allow": 0, "approve": 1, "deny": 2}


def decide(snapshot: PolicySnapshot, call: Call) -> Decision:
    """Decide one call, by the policy and by the floor beneath it; some microseconds where no condition is involved."""
    made = decide_alone(snapshot, call)
    if snapshot.floor is None:
        return made
    by_floor = decide(snapshot.floor, call)
    if by_floor.hint is not None:
        # Its rules may not be for whoever reads this to change.
        by_floor = replace(by_floor, hint=None)
    stricter = made if _STRICTNESS[made.effect] > _STRICTNESS[by_floor.effect] else by_floor
    # What both let through counts against the rules of both.
    return stricter if stricter.effect == "deny" else replace(stricter, counts=(*by_floor.counts, *made.counts))


def decide_alone(snapshot: PolicySnapshot, call: Call) -> Decision:
    """As `decide`, without the floor."""
    fitting = snapshot.compiled.fitting(call.names)
    for rule in fitting.denying:
        finding = rule.judge(call, "broad")
        if finding.verdict == "deny":
            return _by_rule("deny", call, rule, finding.cause)
    asking: CompiledRule | None = None
    for rule, reading in fitting.others:
        verdict, cause = rule.judge(call, reading)
        if verdict == "pass":
            continue
        if verdict == "at least approve":
            asking = asking or rule
        elif verdict == "allow" and asking:
            return _by_rule("approve", call, asking, Cause.NO_ANSWER, rule)
        else:
            return _by_rule(verdict, call, rule, cause)
    effect = preset_effect(snapshot, call)
    if effect == "allow" and asking:
        return _by_rule("approve", call, asking, Cause.NO_ANSWER)
    return Decision(effect, str(call.names), None, f'the preset "{snapshot.preset}"')


def unconditional_denial(snapshot: PolicySnapshot, call: Call, *, knows_hints: bool) -> Decision | None:
    """The denial of a call whose arguments aren't known yet, if it is denied for all arguments; otherwise None.

    Args:
        snapshot: The policy.
        call: Without arguments.
        knows_hints: Whether the tool's hints are known; without them the presets that ask for them say nothing.
    """
    made = _unconditional_denial_alone(snapshot, call, knows_hints=knows_hints)
    if made is None and snapshot.floor is not None:
        return unconditional_denial(snapshot.floor, call, knows_hints=knows_hints)
    return made


def _unconditional_denial_alone(snapshot: PolicySnapshot, call: Call, *, knows_hints: bool) -> Decision | None:
    fitting = snapshot.compiled.fitting(call.names)
    for rule in fitting.denying:
        if rule.rule.when is None:
            return _by_rule("deny", call, rule, Cause.APPLIES)
    for rule, reading in fitting.others:
        if rule.rule.effect == "program":
            # What isn't a step of its programs is refused before its condition is asked.
            verdict, cause = rule.judge(call, reading)
            return _by_rule("deny", call, rule, cause) if verdict == "deny" and cause in _CERTAIN else None
        if rule.rule.effect == "allow" and reading == "broad":
            if rule.rule.when is None and rule.rule.max_calls is not None:
                return _by_rule("deny", call, rule, Cause.OTHER_NAME)
            continue
        return None
    if snapshot.preset == "locked" or (knows_hints and preset_effect(snapshot, call) == "deny"):
        return Decision("deny", str(call.names), None, f'the preset "{snapshot.preset}"')
    return None


def arguments_in_conditions(snapshot: PolicySnapshot, tool: ToolNames) -> frozenset[str]:
    """The arguments of a tool that a condition of the policy, or of the floor beneath it, refers to."""
    roots = snapshot.compiled.fitting(tool).roots
    return roots if snapshot.floor is None else roots | arguments_in_conditions(snapshot.floor, tool)


def _by_rule(
    effect: Outcome, call: Call, rule: CompiledRule, cause: Cause, overruled: CompiledRule | None = None
) -> Decision:
    bounding = [each for each in (rule, overruled) if each and each.rule.max_calls is not None]
    counts = () if effect == "deny" else tuple(each.number for each in bounding)
    hint = _unblock_hint(call.step.chain[-1], cause) if call.step else None
    return Decision(effect, str(call.names), rule.number, rule.label, cause, rule.rule.reason, counts, hint)


def _unblock_hint(program: ProgramRef, cause: Cause) -> str | None:
    """What the operator can do so that other executions of this program aren't denied."""
    if cause is Cause.SAME_NAME_OTHER_PROGRAM:
        what = f"The program {repr(program.name)[:_MAX_NAME_CHARS]} in it isn't the operator's of today"
        return f"{what}. Start it again; save a program that includes it again first."
    if cause is not Cause.PROGRAM_CHANGED:
        return None
    unblocks = f"restores the program's file, or lists {program.hash} in the rule's programs"
    if program.is_unnamed:
        return f"If the rule is for it, the operator {unblocks}, before other suspended executions resume."
    return f"Before other suspended executions resume, the operator {unblocks}."
