"""Large work leaves the event loop, and a long text is searched in windows."""

import random
import re
import threading

import anyio
import anyio.lowlevel
import pytest

from mcp_bridge.offload import LARGE_CHARS, LARGE_VALUES, is_large, off_loop
from mcp_bridge.policy.redaction.encodings import _ESCAPE
from mcp_bridge.policy.redaction.patterns import BUILT_IN, MAX_VALUES, TooManyValuesError, find
from mcp_bridge.policy.redaction.projection import OVERSIZE, Projector
from mcp_bridge.policy.redaction.windows import NARROW_CHARS, REACH_CHARS, WINDOW_CHARS, matches
from mcp_bridge.policy.secrets.value_references import MemoryReferences
from mcp_bridge.policy.secrets.vault import Secrets

EVERY = tuple(BUILT_IN.values())
CARD = "4242424242424242"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"


@pytest.mark.parametrize(
    ("value", "large"),
    [
        ("x" * LARGE_CHARS, False),
        ("x" * (LARGE_CHARS + 1), True),
        ({"a": ["x" * LARGE_CHARS, "y"]}, True),
        ({"x" * LARGE_CHARS: "y"}, True),
        ([1] * (LARGE_VALUES - 1), False),
        ([1] * LARGE_VALUES, True),
        ([[[]] * 10] * (LARGE_VALUES // 10), True),
        (None, False),
    ],
)
def test_a_value_is_large_by_its_text_or_its_number_of_values(value, large):
    assert is_large(value) is large


async def test_others_get_their_turn_while_a_large_value_is_worked_on():
    let_go = threading.Event()
    turns = 0

    def mark_active():
        assert let_go.wait(60)
        return threading.get_ident()

    async def victim():
        nonlocal turns
        for _ in range(100):
            turns += 1
            await anyio.lowlevel.checkpoint()
        let_go.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(victim)
        worker = await off_loop("x" * (LARGE_CHARS + 1), mark_active)
    assert turns == 100
    assert worker != threading.get_ident()
    assert await off_loop("x", threading.get_ident) == threading.get_ident()


@pytest.mark.parametrize("seed", range(8))
def test_windows_find_what_the_whole_search_finds(seed):
    chance = random.Random(seed)  # noqa: S311
    pieces = [
        "\\u0041",
        CARD,
        JWT,
        "DE89370400440532013000",
        "a.b@example.org",
        "+49 30 1234567",
        "AKIAIOSFODNN7EXAMPLE",
    ]
    fill = " 0a-_.@\\n"
    text = ""
    while len(text) < 3 * WINDOW_CHARS:
        text += chance.choice(pieces) + chance.choice(fill) * chance.choice([0, 1, 2, 900, NARROW_CHARS - 20])
    # Values over each border, at every distance from it.
    at = WINDOW_CHARS - 60 + seed * 6
    text = text[:at] + f" {chance.choice(pieces)} " + text[at:]
    for regex in (*(pattern.regex for pattern in EVERY), _ESCAPE):
        whole = [match.span() for match in regex.finditer(text)]
        for window in (NARROW_CHARS, WINDOW_CHARS):
            assert [match.span() for match in matches(regex, text, window)] == whole


@pytest.mark.parametrize("shift", range(40))
def test_a_value_over_the_border_of_two_windows_is_found(shift):
    text = "x" * (WINDOW_CHARS - 20 - shift) + f" {CARD} " + "x" * (WINDOW_CHARS + REACH_CHARS)
    assert [text[span.start : span.end] for span in find(EVERY, text)] == [CARD]


def test_a_token_longer_than_a_window_is_found_whole():
    token = f"{JWT.partition('.')[0]}.eyJ{'b' * 3 * WINDOW_CHARS}.{'c' * 3 * WINDOW_CHARS}"
    text = f"x {token} y {JWT}"
    assert [text[span.start : span.end] for span in find(EVERY, text)] == [token, JWT]


def test_no_search_is_given_more_than_a_window_of_a_long_text():
    given = []

    class Regex:
        def finditer(self, text, start=0, end=None):
            given.append((len(text) if end is None else end) - start)
            return re.compile("y").finditer(text, start, len(text) if end is None else end)

    assert list(matches(Regex(), "x" * (1 << 20))) == []
    assert max(given) == WINDOW_CHARS + REACH_CHARS
    assert len(given) == (1 << 20) // WINDOW_CHARS


def test_a_value_of_more_sensitive_values_than_an_execution_may_have_is_shown_to_nobody():
    text = f"{CARD} " * (MAX_VALUES + 1)
    with pytest.raises(TooManyValuesError):
        find(EVERY, text)
    references = MemoryReferences()
    project = Projector(Secrets(), references, EVERY)
    assert project.output({"cards": text}) == OVERSIZE
    assert project.output(text.encode()) == OVERSIZE.encode()
    # None of them was kept on the way.
    assert references.values_behind(OVERSIZE) == {}
    assert not references._values
