"""The usage of an execution, computed from its entries: of a script its own calls, of a program all steps."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.events import Usage
from mcp_bridge.ledger.log.payloads import (
    CallOutcome,
    EffectOutcome,
    ModelIntent,
    Request,
    RequestOutcome,
    Success,
    ToolIntent,
    understood,
)
from mcp_bridge.policy.rules.budgets import KINDS, Amounts, cut_short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.ledger.log.entries import Recorded


def usage_from_history(
    entries: Sequence[Recorded], policy: str, similar: Mapping[str, int] = MappingProxyType({})
) -> dict[str, Any]:
    """The usage of an execution, for `Budget.adopt`.

    Args:
        entries: All entries of the execution.
        policy: The hash of the policy in force: the rules of another policy have other numbers.
        similar: For the hashes of other policies, how many of their first rules are this policy's first rules, too.

    Raises:
        BridgeError: `ledger_damaged`.
    """
    amounts = [Amounts()]
    rule_uses: dict[int, int] = {}
    called: set[int | None] = set()
    questions: dict[int, Amounts] = {}
    for row in entries:
        match understood(row):
            case ToolIntent() as intent:
                called.add(intent.effect)
                amounts.append(Amounts(calls=1, bytes=len(json.dumps(intent.given))))
                for rule in intent.rules:
                    if row.entry.policy == policy or rule <= similar.get(row.entry.policy, 0):
                        rule_uses[rule] = rule_uses.get(rule, 0) + 1
            case ModelIntent(effect, arguments):
                # If it is asked again, the first attempt was interrupted.
                amounts.append(questions.get(effect, Amounts()))
                questions[effect] = cut_short(arguments)
            case EffectOutcome(outcome):
                questions.pop(outcome.effect, None)
                usage = outcome.usage or Usage()
                counts = outcome.status == "ok" and outcome.effect in called
                size = len(json.dumps(outcome.value)) if counts else 0
                amounts.append(Amounts(bytes=size, model_tokens=usage.total_tokens, model_cost_usd=usage.cost_usd or 0))
            case CallOutcome(result=Success(value)) | RequestOutcome(Request("tool"), result=Success(value)):
                amounts.append(Amounts(bytes=len(json.dumps(value))))
            case _:
                pass
    counted = [amount.counted() for amount in (*amounts, *questions.values())]
    return {"usage": {kind: sum(row.get(kind, 0) for row in counted) for kind in KINDS}, "made": rule_uses}
