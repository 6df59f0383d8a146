"""Budgets: what starts never passes a limit, and what was used is counted."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.errors import BridgeError
from mcp_bridge.kernel.values import canonical
from mcp_bridge.policy.rules.budgets import Amounts, Budget, Usage, Usages
from mcp_bridge.policy.rules.call import Call
from mcp_bridge.policy.rules.decision import decide
from mcp_bridge.policy.rules.globs import ToolNames
from mcp_bridge.policy.rules.policy_settings import read
from mcp_bridge.policy.rules.policy_snapshot import freeze


def budget(principal=None, *, record=None, of_principal=None, **limits):
    policy = read({"limits": {**limits, "principal": of_principal or {}}})
    return Budget(policy.limits, principal or Usage(), record)


@contextlib.contextmanager
def refused(code):
    with pytest.raises(BridgeError) as caught:
        yield caught
    assert caught.value.code == code


def used(of):
    return of.record()["usage"]


KINDS = [
    ("calls", "budget_calls", Amounts(calls=1), 3),
    ("bytes", "budget_bytes", Amounts(bytes=10), 30),
    ("model_tokens", "budget_tokens", Amounts(model_tokens=100), 300),
    ("model_cost_usd", "budget_cost", Amounts(model_cost_usd=0.1), 0.3),
]


@pytest.mark.parametrize(("kind", "code", "one", "three"), KINDS)
@pytest.mark.parametrize("principal", [False, True])
def test_a_limit_is_reached_and_never_passed(kind, code, one, three, principal):
    held = budget(of_principal={kind: three}) if principal else budget(**{kind: three})
    for _ in range(3):
        held.reserve(one).settle(one)
    with refused(code) as caught:
        held.reserve(one)
    holder = "everything this principal runs" if principal else "this execution"
    assert caught.value.message.endswith(f"for {holder} is reached.")
    assert caught.value.details == {"limit": kind}
    raised = f"`{kind}` in [policy.limits{'.principal' if principal else ''}]."
    assert caught.value.hint is not None
    assert caught.value.hint.endswith(raised)
    assert not any(sign.isdigit() for sign in str(caught.value))


@pytest.mark.parametrize("kind", ["calls", "bytes"])
@pytest.mark.parametrize("principal", [False, True])
def test_what_undoes_an_effect_is_counted_and_not_refused(kind, principal):
    held = budget(of_principal={kind: 3}) if principal else budget(**{kind: 3})
    one = Amounts(**{kind: 3})
    held.reserve(one).settle(one)
    more = Amounts(**{kind: 5})
    held.reserve(one, regardless=True).settle(more)
    assert used(held)[kind] == 8
    with refused(f"budget_{kind}"):
        held.reserve(Amounts(**{kind: 1}))


def test_without_limits_nothing_is_refused():
    held = budget()
    for _ in range(3):
        held.reserve(Amounts(calls=2**60, bytes=2**60, model_tokens=2**60, model_cost_usd=1e6))


def test_a_limit_of_nothing_lets_nothing_through():
    for kind, code, one, _ in KINDS:
        with refused(code):
            budget(**{kind: 0}).reserve(one)
        budget(**{kind: 0}).reserve(Amounts())


def test_what_is_refused_takes_nothing():
    principal = Usage()
    held = budget(principal, calls=5, of_principal={"bytes": 5})
    with refused("budget_bytes"):
        held.reserve(Amounts(calls=1, bytes=6))
    assert set(used(held).values()) | set(principal.record().values()) == {0}


async def test_calls_at_the_same_time_do_not_pass_a_limit_together():
    held = budget(calls=10, bytes=1000)
    everyone = asyncio.Barrier(30)

    async def effect():
        try:
            reservation = held.reserve(Amounts(calls=1, bytes=100))
        except BridgeError as error:
            await everyone.wait()
            return error.code
        with reservation:
            await everyone.wait()
            reservation.settle(Amounts(calls=1, bytes=50))
        return "done"

    outcomes = await asyncio.gather(*(effect() for _ in range(30)))
    assert sorted(outcomes) == ["budget_calls"] * 20 + ["done"] * 10
    assert used(held)["calls"] == 10
    assert used(held)["bytes"] == 500


def test_principals_are_held_apart_and_each_ones_executions_together():
    usages, limit = Usages(), {"calls": 2}
    for _ in range(2):
        budget(usages.of("ann"), of_principal=limit).reserve(Amounts(calls=1))
    with refused("budget_calls"):
        budget(usages.of("ann"), of_principal=limit).reserve(Amounts(calls=1))
    budget(usages.of("bob"), of_principal=limit).reserve(Amounts(calls=1))


def test_settling_gives_back_what_was_not_used():
    held = budget(bytes=100)
    for _ in range(26):
        held.reserve(Amounts(bytes=50)).settle(Amounts(bytes=2))
    with refused("budget_bytes"):
        held.reserve(Amounts(bytes=49))


def test_releasing_gives_everything_back():
    held = budget(calls=1)
    for _ in range(3):
        held.reserve(Amounts(calls=1)).release()
    assert used(held)["calls"] == 0


def test_a_result_that_passes_a_limit_is_counted_and_refused():
    held = budget(bytes=100)
    one, other = held.reserve(Amounts(bytes=40)), held.reserve(Amounts(bytes=40))
    with refused("budget_bytes"):
        one.settle(Amounts(bytes=90))
    assert used(held)["bytes"] == 130
    other.settle(Amounts(bytes=30))
    with refused("budget_bytes"):
        held.reserve(Amounts(bytes=1))


def test_what_was_reserved_by_others_can_not_be_used():
    held = budget(bytes=100)
    waiting = held.reserve(Amounts(bytes=60))
    with refused("budget_bytes"):
        held.reserve(Amounts(bytes=10)).settle(Amounts(bytes=50))
    waiting.settle(Amounts(bytes=1))


def test_an_effect_that_is_cut_short_keeps_what_it_reserved():
    held = budget(bytes=100)
    with pytest.raises(asyncio.CancelledError), held.reserve(Amounts(bytes=60)):
        raise asyncio.CancelledError
    assert used(held)["bytes"] == 60


def test_a_reservation_is_settled_once():
    held = budget()
    reservation = held.reserve(Amounts(calls=1))
    reservation.settle(Amounts(calls=1))
    reservation.settle(Amounts(calls=5))
    reservation.release()
    assert used(held)["calls"] == 1


def test_a_model_whose_price_is_known_afterwards_is_not_asked_when_the_money_is_spent():
    held, estimate = budget(model_cost_usd=1.0), Amounts(model_tokens=10)
    held.reserve(estimate).settle(Amounts(model_tokens=10, model_cost_usd=0.9))
    with refused("budget_cost"):
        held.reserve(estimate).settle(Amounts(model_tokens=10, model_cost_usd=0.2))
    with refused("budget_cost"):
        held.reserve(estimate)
    held.reserve(Amounts(calls=1, bytes=10))


def test_models_that_cost_nothing_may_be_asked_where_nothing_may_be_spent():
    held = budget(model_cost_usd=0)
    for _ in range(3):
        held.reserve(Amounts(model_tokens=10)).settle(Amounts(model_tokens=10))
    with refused("budget_cost"):
        held.reserve(Amounts(model_tokens=10)).settle(Amounts(model_tokens=10, model_cost_usd=1e-9))


def test_cents_add_up():
    held = budget(model_cost_usd=1)
    for _ in range(1000):
        held.reserve(Amounts(model_cost_usd=0.001)).settle(Amounts(model_cost_usd=0.001))
    with refused("budget_cost"):
        held.reserve(Amounts(model_cost_usd=1e-12))
    held = budget(model_cost_usd=0.041)
    for _ in range(10):
        held.reserve(Amounts(model_cost_usd=0.0041))


@pytest.mark.parametrize(
    "amounts", [{"calls": -1}, {"bytes": -1}, {"model_cost_usd": float("nan")}, {"model_cost_usd": float("inf")}]
)
def test_amounts_are_numbers_from_nothing_upwards(amounts):
    with pytest.raises(ValueError, match=r"an amount is negative|a cost is no number"):
        Amounts(**amounts)


def test_a_suspended_execution_goes_on_where_it_was():
    held = budget(calls=3, model_cost_usd=1)
    held.made[2] = 5
    held.reserve(Amounts(calls=1)).settle(Amounts(calls=1))
    held.reserve(Amounts(calls=1, model_cost_usd=0.5))
    record = held.record()
    canonical(record)
    again = budget(record=record, calls=3, model_cost_usd=1)
    assert (again.record(), again.made) == (record, {2: 5})
    again.reserve(Amounts(calls=1))
    with refused("budget_calls"):
        again.reserve(Amounts(calls=1))


def test_a_rule_counts_what_it_lets_through_until_it_lets_through_no_more():
    held = budget()
    frozen = freeze(read({"rules": [{"tools": ["a.b"], "effect": "approve", "max_calls": 2}]}), {})
    tool = ToolNames("a", "b", "a", "b")
    decisions = []
    for _ in range(4):
        decisions.append(decide(frozen, Call(tool, made=held.made)))
        held.count(decisions[-1])
    assert [decision.effect for decision in decisions] == ["approve", "approve", "deny", "deny"]
    held.uncount(decisions[0])
    assert decide(frozen, Call(tool, made=held.made)).effect == "approve"


AMOUNT = st.integers(0, 40)


@given(
    st.lists(st.tuples(AMOUNT, AMOUNT, st.sampled_from(["settle", "release", "leave", "cut"])), max_size=40),
    st.integers(0, 100),
)
def test_what_is_reserved_and_used_is_never_over_the_limit_but_for_results_that_are_refused(effects, limit):
    held, taken = budget(bytes=limit), 0
    for asked, used_up, how in effects:
        try:
            reservation = held.reserve(Amounts(bytes=asked))
        except BridgeError:
            assert asked
            assert taken + asked > limit
            continue
        assert taken + asked <= limit or not asked
        if how == "settle":
            try:
                reservation.settle(Amounts(bytes=used_up))
            except BridgeError:
                assert used_up > asked
                assert taken + used_up > limit
            else:
                assert taken + used_up <= limit or used_up <= asked
            taken += used_up
        elif how == "release":
            reservation.release()
        else:
            if how == "cut":
                with reservation:
                    pass
            taken += asked
        assert used(held)["bytes"] == taken
