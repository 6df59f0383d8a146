"""Why a call is decided as it is, for the operator: every rule, and what it says of the call. Never for the agent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mcp_bridge.policy.rules.decision import decide, decide_alone
from mcp_bridge.policy.rules.presets import preset_effect
from mcp_bridge.policy.rules.rule_evaluation import Cause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.policy.rules.call import Call
    from mcp_bridge.policy.rules.decision import Decision
    from mcp_bridge.policy.rules.policy_settings import Effect
    from mcp_bridge.policy.rules.policy_snapshot import PolicySnapshot
    from mcp_bridge.policy.rules.rule_evaluation import CompiledRule


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """What one rule says of a call.

    Attributes:
        number: The rule's, from 1.
        label: What people call it.
        effect: As written.
        verdict: `pass` (nothing), `allow`, `approve`, `deny`, or `at least approve`: its condition has no answer, and a
            person is asked unless a later rule or the preset denies.
        why: In words.
        tools: Its globs that fit the tool.
        decides: Whether it is the rule that decided.
    """

    number: int
    label: str
    effect: Effect
    verdict: str
    why: str
    tools: tuple[str, ...]
    decides: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision with everything that led to it.

    Attributes:
        decision: The decision.
        policy_hash: The snapshot's.
        rules: Each rule in its order; what comes after the rule that decided was not asked, and is shown all the same.
        preset: What the preset says, in words.
        floor: What the policy beneath says by itself, where there is one: everybody's beneath a principal's, the
            user's own beneath a folder's; or None.
        by_floor: Whether it was the floor that decided.
    """

    decision: Decision
    policy_hash: str
    rules: tuple[RuleFinding, ...]
    preset: str
    floor: Explanation | None = None
    by_floor: bool = False

    def record(self) -> dict[str, Any]:
        """As a JSON object.

        Returns:
            `effect`, `tool`, `rule`, `decider` and `message` (what the agent is told) of the decision; `policy_hash`;
            `rules`, objects like `RuleFinding`; `preset`. With a floor, `floor`: an object like this one, of the policy
            beneath; `rules` and `preset` are those of the policy over it.
        """
        made = self.decision
        return {
            "effect": made.effect,
            "tool": made.tool,
            "rule": made.rule,
            "decider": made.decider,
            "message": made.message,
            "policy_hash": self.policy_hash,
            "rules": [asdict(rule) | {"tools": list(rule.tools)} for rule in self.rules],
            "preset": self.preset,
            **({"floor": self.floor.record()} if self.floor else {}),
        }

    def text(self, layers: Sequence[str] = ()) -> str:
        """For a terminal, once its control characters are escaped: the tool's name is its server's.

        Args:
            layers: What the policies are called, from the lowest floor up; not said of one without a floor.
        """
        lines = [f"{self.decision.effect}: {self.decision.tool}, by {self.decision.decider}"]
        if self.floor is None:
            return "\n".join([*lines, *self._findings()])
        explained = self._from_floor()
        decides = next(each for each in reversed(explained) if not each.by_floor)
        for name, each in zip(layers, explained, strict=True):
            lines += [f"{name}{', which decides' if each is decides else ''}:", *each._findings()]  # noqa: SLF001 - of the same class
        return "\n".join(lines)

    def _from_floor(self) -> list[Explanation]:
        return [*(self.floor._from_floor() if self.floor else []), self]  # noqa: SLF001 - of the same class

    def _findings(self) -> list[str]:
        lines = []
        for rule in self.rules:
            mark = "→" if rule.decides else " "
            fits = f" [{', '.join(rule.tools)}]" if rule.tools else ""
            lines.append(f"{mark} {rule.label}, {rule.effect}{fits}: {rule.verdict}, {rule.why}")
        return [*lines, f"{'→' if not any(rule.decides for rule in self.rules) else ' '} {self.preset}"]


def explain(snapshot: PolicySnapshot, call: Call) -> Explanation:
    """Decide a call, and say of each rule why it did or didn't match."""
    alone = decide_alone(snapshot, call)
    made = decide(snapshot, call)
    floor = explain(snapshot.floor, call) if snapshot.floor else None
    return Explanation(
        decision=made,
        policy_hash=snapshot.hash,
        rules=tuple(_finding(rule, call, alone) for rule in snapshot.compiled.rules),
        preset=_preset(snapshot, call),
        floor=floor,
        # The upper one decides only where it is stricter.
        by_floor=floor is not None and made.effect == floor.decision.effect,
    )


def _finding(rule: CompiledRule, call: Call, made: Decision) -> RuleFinding:
    reading = rule.reading(call.names)
    if reading is None:
        verdict, why = "pass", Cause.OTHER_TOOL.value
    else:
        verdict, cause = rule.judge(call, reading)
        why = cause.value
        if cause is Cause.NO_ANSWER:
            why += f" ({rule.problem(call)})"
        if cause is Cause.OTHER_NAME:
            why += f": {call.names}"
    return RuleFinding(
        number=rule.number,
        label=rule.label,
        effect=rule.rule.effect,
        verdict=verdict,
        why=why,
        tools=tuple(rule.fitting(call.names)),
        decides=rule.number == made.rule,
    )


def _preset(snapshot: PolicySnapshot, call: Call) -> str:
    text = f'the preset "{snapshot.preset}": {preset_effect(snapshot, call)}'
    if snapshot.preset not in {"read-only", "approve-writes"}:
        return text
    if call.names.server not in snapshot.trust_hints:
        return f"{text}, trust_hints doesn't list the server"
    claims = [f"{name} = {call.hints.get(name)}" for name in ("readOnlyHint", "destructiveHint") if name in call.hints]
    return f"{text}, the server says {' and '.join(claims) or 'nothing of the tool'}"
