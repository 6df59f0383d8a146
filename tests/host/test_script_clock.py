"""A script's own time: what it takes itself, and not what it waits."""

import math

import pytest

from mcp_bridge.host.script_clock import ScriptClock


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def begun(clock, processor=0.0):
    made = ScriptClock(clock, processor)
    made.start()
    return made


def test_it_stands_still_while_a_request_is_under_way(clock):
    own = begun(clock)
    clock.now += 1
    own.pause()
    own.pause()
    clock.now += 10
    own.resume()
    clock.now += 10
    own.resume()
    clock.now += 2
    assert own.seconds == 3


def test_what_is_computed_beside_a_request_counts(clock):
    own = begun(clock)
    own.pause()
    clock.now += 5
    own.computed(4.0)
    assert own.seconds == 4
    clock.now += 5
    own.computed(4.0)
    assert own.seconds == 4


def test_what_is_computed_without_a_request_counts_once(clock):
    own = begun(clock)
    clock.now += 3
    own.pause()
    clock.now += 2
    own.computed(3.5)
    assert own.seconds == 3.5
    own.resume()
    clock.now += 5
    own.computed(8.5)
    assert own.seconds == 8.5


def test_several_processors_take_the_time_of_one(clock):
    own = begun(clock)
    own.pause()
    clock.now += 5
    own.computed(40.0)
    assert own.seconds == 5


def test_what_an_earlier_cell_has_computed_does_not_count(clock):
    own = begun(clock, None)
    own.pause()
    clock.now += 5
    own.computed(70.0)
    assert own.seconds == 0
    clock.now += 5
    own.computed(71.0)
    assert own.seconds == 1


@pytest.mark.parametrize("told", [-1.0, math.nan, -math.inf])
def test_a_report_that_can_not_be_takes_no_time_back(clock, told):
    own = begun(clock)
    clock.now += 1
    own.pause()
    clock.now += 5
    own.computed(told)
    assert own.seconds == 1


def test_a_report_before_the_script_has_begun_says_nothing(clock):
    own = ScriptClock(clock)
    own.computed(3.0)
    assert own.seconds == 0
