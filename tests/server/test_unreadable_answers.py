"""Answers to questions that are none: what stands in their place before the SDK looks at them."""

import pytest
from mcp.server.context import ServerRequestContext

from mcp_bridge.server import questions

APPROVED = {"action": "accept", "content": {"approve": True}}
CANCELLED = {"action": "cancel"}


async def taken(answers):
    """What is left of a round's answers."""
    params = {"name": "run_python", "inputResponses": answers}
    ctx = ServerRequestContext(
        session=None, lifespan_context={}, protocol_version="2026-07-28", method="tools/call", params=params
    )
    return (await questions.take_unreadable(ctx, passed)).params


async def passed(ctx):
    return ctx


@pytest.mark.parametrize("answer", [{"x": 1}, [], None, "yes", {"action": "accept", "content": {"approve": {}}}])
async def test_an_answer_that_is_none_counts_as_cancelled_beside_others(answer):
    left = await taken({"question-1": answer, "question-2": APPROVED})
    assert left == {"name": "run_python", "inputResponses": {"question-1": CANCELLED, "question-2": APPROVED}}


async def test_of_many_answers_only_those_that_may_be_asked_for_are_looked_at_and_one_line_is_logged(caplog):
    others = {f"k{number}": {"x": 1} for number in range(100_000)}
    many = {f"question-{number}": {"x": 1} for number in range(100_000)}
    left = (await taken(others | many))["inputResponses"]
    assert left == dict.fromkeys(list(many)[: questions.MAX_ANSWERS], CANCELLED)
    assert [record.message for record in caplog.records] == ["1000 of the client's answers to questions can't be read"]
