"""Budgets: the usage of an execution and of its principal, and the policy's limits on both.

An effect's amounts are reserved before it starts, so that concurrent calls can't exceed a limit together, and settled
when they are known. What is counted in memory needs no locks: nothing awaits between a check and its count.

No effect starts that would exceed a limit, but for one that undoes another (`regardless`). Usage beyond the reservation
(a result's bytes, a model's tokens) is counted in full; if that exceeds a limit, the result is refused: `settle`
raises.

The usage of `local` is counted in memory, from the start of the bridge's process to its end: whoever starts it has such
a limit begin anew. Another principal's is kept (`KeptUsages`), so that no restart gives it more. Several bridges may
share what is kept, and then it decides: what is in memory may be out of date, and only saves asking.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, cast

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from types import TracebackType

    from mcp_bridge.error_codes import Code
    from mcp_bridge.policy.rules.decision import Decision
    from mcp_bridge.policy.rules.policy_settings import Limits, PolicyLimits

Kind = Literal["calls", "bytes", "model_tokens", "model_cost_usd"]

Claim: TypeAlias = "Callable[[], Awaitable[None]]"
"""Waits until it is certain that amounts are within the limits, and raises the `budget_…` if they aren't."""

_THE_PRINCIPAL = "everything this principal runs"

# Costs are summed in billionths of a dollar, because binary fractions don't add up exactly.
_PER_USD = 10**9

_REFUSALS: dict[Kind, tuple[Code, str, str]] = {
    "calls": ("budget_calls", "tool calls", "Make fewer calls"),
    "bytes": ("budget_bytes", "bytes of arguments and results", "Pass and fetch less"),
    "model_tokens": ("budget_tokens", "tokens of models", "Ask models for less"),
    "model_cost_usd": ("budget_cost", "the cost of models", "Ask models for less"),
}
"""Of each kind: the error's code, what is limited, and what needs less of it."""

KINDS: tuple[Kind, ...] = tuple(_REFUSALS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The amounts that an effect uses.

    Attributes:
        calls: Tool calls.
        bytes: Bytes of arguments and results, as JSON.
        model_tokens: Tokens of prompt and answer together.
        model_cost_usd: Cost of models, in US dollars.
    """

    calls: int = 0
    bytes: int = 0
    model_tokens: int = 0
    model_cost_usd: float = 0.0

    def __post_init__(self) -> None:
        if min(self.calls, self.bytes, self.model_tokens, self.model_cost_usd) < 0:
            raise ValueError("an amount is negative")
        if not math.isfinite(self.model_cost_usd):
            raise ValueError("a cost is no number")

    def counted(self) -> dict[Kind, int]:
        """The amounts as integers, without those of 0; the cost in billionths of a dollar, rounded up."""
        counted: dict[Kind, int] = {}
        if self.calls:
            counted["calls"] = self.calls
        if self.bytes:
            counted["bytes"] = self.bytes
        if self.model_tokens:
            counted["model_tokens"] = self.model_tokens
        if self.model_cost_usd:
            counted["model_cost_usd"] = _billionths(self.model_cost_usd)
        return counted


def cut_short(arguments: Mapping[str, Any]) -> Amounts:
    """The amounts of a model call whose answer never arrived: one token for every byte of the question."""
    return Amounts(model_tokens=len(json.dumps(arguments)))


def _billionths(usd: float) -> int:
    # Rounding first removes the error of binary fractions: 0.1 dollars are not a billionth more than 0.1.
    return math.ceil(round(usd * _PER_USD, 3))


def _limit(limits: Limits, kind: Kind) -> int | None:
    if kind == "model_cost_usd":
        return None if limits.model_cost_usd is None else _billionths(limits.model_cost_usd)
    return cast("int | None", getattr(limits, kind))


class Usage:
    """The used and reserved amounts of an execution or a principal."""

    __slots__ = ("_taken",)

    def __init__(self, taken: Mapping[str, int] | None = None) -> None:
        self._taken: dict[Kind, int] = {kind: (taken or {}).get(kind, 0) for kind in KINDS}

    def record(self) -> dict[Kind, int]:
        """The amounts as JSON, the cost in billionths of a dollar; reserved amounts count as used."""
        return dict(self._taken)

    def first_exceeded(self, limits: Limits, more: Mapping[Kind, int]) -> Kind | None:
        """The first limit that `more` would exceed; an amount of 0 exceeds none."""
        for kind, amount in more.items():
            if amount and (limit := _limit(limits, kind)) is not None and self._taken[kind] + amount > limit:
                return kind
        return None

    def is_cost_exhausted(self, limits: Limits) -> bool:
        """Whether the cost limit is reached."""
        limit = _limit(limits, "model_cost_usd")
        return limit is not None and self._taken["model_cost_usd"] >= max(limit, 1)

    def add(self, more: Mapping[Kind, int]) -> None:
        """Add amounts; negative ones reduce the usage."""
        for kind, amount in more.items():
            self._taken[kind] += amount

    def claim(self, more: Mapping[Kind, int], limits: Limits, *, regardless: bool = False) -> Claim | None:  # noqa: ARG002
        """Add amounts that exceed no limit as far as is known here.

        Args:
            more: The amounts.
            limits: The limits.
            regardless: Whether they stay added if they do exceed one.

        Returns:
            What is left to be waited for, or None.
        """
        self.add(more)
        return None

    async def refresh(self) -> bool:
        """Take over what others have counted. Returns whether there may be any."""
        return False


class KeptUsages(Protocol):
    """What principals have used, as all bridges keep it together."""

    def add(self, principal: str, more: Mapping[Kind, int]) -> None:
        """Add amounts, durable with whatever is recorded next."""

    def claim(
        self, principal: str, more: Mapping[Kind, int], limits: Mapping[Kind, int], *, regardless: bool
    ) -> Callable[[], Awaitable[bool]]:
        """As `add`, if the sums exceed none of the limits.

        Args:
            principal: The principal.
            more: The amounts.
            limits: The limits of what is added.
            regardless: Whether they are added in any case.

        Returns:
            A function that waits until that is durable, and says whether no limit is exceeded.
        """

    async def used(self, principal: str) -> Mapping[str, int]:
        """What a principal has used by now."""


class SharedUsage(Usage):
    """A principal's usage that is kept when it changes, and that other bridges may change, too.

    Args:
        principal: The principal.
        kept: Where it is kept.
        taken: What was kept before.
    """

    __slots__ = ("_kept", "_principal")

    def __init__(self, principal: str, kept: KeptUsages, taken: Mapping[str, int] | None) -> None:
        super().__init__(taken)
        self._principal = principal
        self._kept = kept

    def add(self, more: Mapping[Kind, int]) -> None:
        """As `Usage.add`."""
        if any(more.values()):
            # First: if it can't be kept, nothing is used.
            self._kept.add(self._principal, more)
        super().add(more)

    def claim(self, more: Mapping[Kind, int], limits: Limits, *, regardless: bool = False) -> Claim | None:
        """As `Usage.claim`."""
        bounds: dict[Kind, int] = {
            kind: limit for kind, amount in more.items() if amount > 0 and (limit := _limit(limits, kind)) is not None
        }
        if not bounds:
            self.add(more)
            return None
        is_within = self._kept.claim(self._principal, more, bounds, regardless=regardless)
        super().add(more)

        async def confirm() -> None:
            if not await is_within():
                # By what another bridge has counted meanwhile, which this one is to know of from now on.
                await self.refresh()
                kind = self.first_exceeded(limits, more)
                raise _refusal(next(iter(bounds)) if kind is None else kind, _THE_PRINCIPAL)

        return confirm

    async def refresh(self) -> bool:
        """As `Usage.refresh`."""
        # What this process posts meanwhile may be missing: too little is claimed in vain, and too much refuses.
        used = await self._kept.used(self._principal)
        self._taken = {kind: used.get(kind, 0) for kind in KINDS}
        return True


class Usages:
    """The usage of each principal.

    Args:
        before: What principals had used when the bridge was opened.
        kept: Where it is kept; None keeps nothing.
        unkept: Principals whose usage is counted in this process alone.
    """

    def __init__(
        self,
        before: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
        kept: KeptUsages | None = None,
        unkept: Collection[str] = (),
    ) -> None:
        self._before = before
        self._kept = kept
        self._unkept = unkept
        self._by_principal: dict[str, Usage] = {}

    def of(self, principal: str) -> Usage:
        """The usage of a principal; the same object every time."""
        known = self._by_principal.get(principal)
        if known is None:
            if self._kept is None or principal in self._unkept:
                known = Usage()
            else:
                known = SharedUsage(principal, self._kept, self._before.get(principal))
            self._by_principal[principal] = known
        return known


class Budget:
    """The limits and the usage of one execution and of its principal.

    Args:
        limits: The limits of the frozen policy.
        principal: The principal's usage, which all of its executions share.
        record: The record of this execution's usage before it was suspended, or None.
    """

    def __init__(
        self,
        limits: PolicyLimits,
        principal: Usage,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        record = record or {}
        self._usage = Usage(record.get("usage"))
        self._limits = limits
        self._principal = principal
        self.made = {int(rule): calls for rule, calls in record.get("made", {}).items()}
        """The calls that each rule with `max_calls` has let through, by the rule's number: for `Call.made`."""
        self._holders = (
            ("this execution", limits, self._usage),
            (_THE_PRINCIPAL, limits.principal, principal),
        )

    def record(self) -> dict[str, Any]:
        """The usage as JSON: `usage` (reserved amounts count as used) and `made`."""
        return {"usage": self._usage.record(), "made": {str(rule): calls for rule, calls in self.made.items()}}

    def adopt(self, record: Mapping[str, Any]) -> None:
        """Add usage of this execution in another process, as `record` returns it. The principal's isn't changed."""
        self._usage.add(record["usage"])
        for rule, calls in record["made"].items():
            self.made[int(rule)] = self.made.get(int(rule), 0) + calls

    def count(self, decision: Decision) -> None:
        """Count a call against the rules that bound it. No await may come between `decide` and this."""
        for rule in decision.counts:
            self.made[rule] = self.made.get(rule, 0) + 1

    def uncount(self, decision: Decision) -> None:
        """Undo `count` for a call that was not made."""
        for rule in decision.counts:
            self.made[rule] -= 1

    def reserve(self, amounts: Amounts, *, regardless: bool = False) -> Reservation:
        """Reserve the amounts of an effect, before it starts.

        Args:
            amounts: The largest possible amounts, as far as they are known. A model's tokens are at most the bytes of
                its prompt and the tokens that it may answer; an unknown price is 0.
            regardless: Whether no limit holds it up: it undoes an effect. It is counted all the same.

        Raises:
            BridgeError: `budget_calls`, `budget_bytes`, `budget_tokens` or `budget_cost`; nothing is reserved then.
        """
        more = amounts.counted()
        if regardless:
            self._add(more)
            return Reservation(self, more, regardless=True)
        self._check(more)
        if amounts.model_tokens and not amounts.model_cost_usd:
            self._check_price_unknown()
        return Reservation(self, more, self._claim(more))

    async def reserve_persistent(self, amounts: Amounts, *, regardless: bool = False) -> Reservation:
        """As `reserve`, also where another bridge has given back what the principal had reserved there."""
        try:
            return self.reserve(amounts, regardless=regardless)
        except BridgeError:
            exceeded = self._principal.first_exceeded(self._limits.principal, amounts.counted())
            if exceeded is None or not await self._principal.refresh():
                raise
        return self.reserve(amounts)

    def _check(self, more: Mapping[Kind, int]) -> None:
        for holder, limits, usage in self._holders:
            if (kind := usage.first_exceeded(limits, more)) is not None:
                raise _refusal(kind, holder)

    def _check_price_unknown(self) -> None:
        """Refuse a model of unknown price once the cost limit is reached: its answers would all be refused."""
        for holder, limits, usage in self._holders:
            if usage.is_cost_exhausted(limits):
                raise _refusal("model_cost_usd", holder)

    def _claim(self, more: Mapping[Kind, int], *, regardless: bool = False) -> Claim | None:
        # The principal's first: keeping it may fail.
        claim = self._principal.claim(more, self._limits.principal, regardless=regardless)
        self._usage.add(more)
        return claim

    def _add(self, more: Mapping[Kind, int]) -> None:
        self._principal.add(more)
        self._usage.add(more)

    def _settle(self, reserved: Mapping[Kind, int], used: Mapping[Kind, int], *, regardless: bool) -> Claim | None:
        if used == reserved:
            return None
        more = {kind: used.get(kind, 0) - reserved.get(kind, 0) for kind in KINDS}
        if regardless:
            self._add(more)
            return None
        try:
            self._check({kind: max(0, amount) for kind, amount in more.items()})
        except BridgeError:
            self._add(more)
            raise
        return self._claim(more, regardless=True)


class Share:
    """One program's share of a budget. Several executions may resume it in turn, each with its own budget.

    Args:
        budget: The budget of the execution that runs the program now.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._usage = Usage()
        self._by_rule: dict[int, int] = {}

    def add(self, amounts: Amounts, rules: Sequence[int] = ()) -> None:
        """Add amounts that the program has used, and that the budget has counted already."""
        self._usage.add(amounts.counted())
        self._note(dict.fromkeys(rules, 1))

    def adopt(self, record: Mapping[str, Any]) -> None:
        """Add the program's total usage, as `Budget.record` returns it, as far as it isn't counted yet."""
        known = self._usage.record()
        usage = {kind: max(0, record["usage"][kind] - amount) for kind, amount in known.items()}
        made = {int(rule): max(0, calls - self._by_rule.get(int(rule), 0)) for rule, calls in record["made"].items()}
        self._budget.adopt({"usage": usage, "made": made})
        self._usage.add(usage)
        self._note(made)

    def _note(self, made: Mapping[int, int]) -> None:
        for rule, calls in made.items():
            self._by_rule[rule] = self._by_rule.get(rule, 0) + calls


class Reservation:
    """The reserved amounts of one effect, until they are settled or released.

    A context manager: what isn't settled inside stays reserved, because an interrupted effect may have used all of it.
    """

    __slots__ = ("_budget", "_claim", "_regardless", "_reserved")

    def __init__(
        self, budget: Budget, reserved: Mapping[Kind, int], claim: Claim | None = None, *, regardless: bool = False
    ) -> None:
        self._budget = budget
        self._reserved: Mapping[Kind, int] | None = reserved
        self._claim = claim
        self._regardless = regardless

    async def confirm(self) -> None:
        """Wait until the reservation is certain, which it is once it is durable. The effect starts after this.

        Raises:
            BridgeError: As `reserve`: another bridge has reserved what was left. Of this execution it stays counted.
        """
        if self._claim is not None:
            try:
                await self._claim()
            except BridgeError:
                self._close()
                raise

    async def settle_persistent(self, used: Amounts) -> None:
        """As `settle`, with what other bridges have counted."""
        if (claim := self.settle(used)) is not None:
            await claim()

    def settle(self, used: Amounts) -> Claim | None:
        """Replace the reservation by the amounts that the effect has used.

        Returns:
            What is left to be waited for, or None.

        Raises:
            BridgeError: As `reserve`: they exceed the reservation and a limit. They are counted, and the result must
                not be returned.
        """
        if (reserved := self._close()) is None:
            return None
        settle = self._budget._settle  # noqa: SLF001 - the two are one mechanism
        return settle(reserved, used.counted(), regardless=self._regardless)

    def release(self) -> None:
        """Cancel the reservation: the effect was not started."""
        self.settle(Amounts())

    def _close(self) -> Mapping[Kind, int] | None:
        reserved, self._reserved = self._reserved, None
        return reserved

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()


def _refusal(kind: Kind, holder: str) -> BridgeError:
    code, what, less = _REFUSALS[kind]
    hint = f"{less} in one execution, or have the operator raise `{kind}` in [policy.limits]."
    if holder == _THE_PRINCIPAL:
        hint = f"No execution gets more until the operator raises `{kind}` in [policy.limits.principal]."
    return BridgeError(code, f"The operator's limit on {what} for {holder} is reached.", hint=hint, limit=kind)
