"""What an execution has used of its limits, by its entries: a script's own calls, or all of a program."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mcp_bridge.policy.rules.budgets import Amounts, cut_short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.ledger.log.entries import Recorded


def usage_from_history(
    entries: Sequence[Recorded], policy: str, similar: Mapping[str, int] = MappingProxyType({})
) -> dict[str, Any]:
    """What an execution has used, as `Budget.adopt` takes it.

    Args:
        entries: All of the execution's.
        policy: The hash of the policy in force: the rules of another policy have other numbers.
        similar: By the hashes of other policies, how many of their first rules are the policy's first rules, too.
    """
    amounts = [Amounts()]
    rule_uses: dict[int, int] = {}
    called: set[int] = set()
    questions: dict[int | None, Amounts] = {}
    for row in entries:
        kind, payload = row.entry.kind, row.entry.payload
        if kind == "intent" and payload["kind"] == "tool":
            called |= {payload["effect"]} if "effect" in payload else set()
            amounts.append(Amounts(calls=1, bytes=len(json.dumps(payload.get("sent", payload["arguments"])))))
            for rule in payload.get("rules", ()):
                if row.entry.policy == policy or rule <= similar.get(row.entry.policy, 0):
                    rule_uses[rule] = rule_uses.get(rule, 0) + 1
        elif kind == "intent" and payload["kind"] == "llm" and "effect" in payload:
            # Asked again, the first question was cut short.
            amounts.append(questions.get(payload["effect"], Amounts()))
            questions[payload["effect"]] = cut_short(payload["arguments"])
        elif kind == "outcome":
            effect = payload.get("effect")
            usage = payload.get("usage") or {"total_tokens": 0, "cost_usd": 0}
            questions.pop(effect, None)
            # An outcome of a script's call names its kind; one of a program's effect doesn't.
            is_tool = payload["kind"] == "tool" if "kind" in payload else effect in called
            size = len(json.dumps(payload.get("value"))) if is_tool and payload["status"] == "ok" else 0
            tokens, cost = usage["total_tokens"], usage["cost_usd"] or 0
            amounts.append(Amounts(bytes=size, model_tokens=tokens, model_cost_usd=cost))
    counted = [amount.counted() for amount in (*amounts, *questions.values())]
    return {"usage": {kind: sum(row[kind] for row in counted) for kind in counted[0]}, "made": rule_uses}
