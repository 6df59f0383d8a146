"""YAML of program files: scalars are what JSON has, and all else is text."""

import datetime as dt
import math

import pytest
import yaml

from mcp_bridge.governance import yaml_text

NUMBERS = {
    "0": 0,
    "-0": 0,
    "17": 17,
    "-1": -1,
    "1e3": 1000,
    "1E-2": 0.01,
    "-2.50": -2.5,
    "12345678901234567890": 12345678901234567890,
}
TEXTS = [
    *(
        "01234",
        "007",
        "1_000",
        "0o17",
        "0x1F",
        "0b11",
        "+1",
        "1.",
        ".5",
        "12:30:00",
        "1:30",
        "190:20:30.15",
        "1e",
        "e3",
    ),
    *("2026-01-31", "2026-01-31T12:30:00Z", "yes", "No", "on", "OFF", "y", "1.2.3", "1-2"),
]


@pytest.mark.parametrize("written", NUMBERS)
def test_a_number_is_what_json_takes_for_one(written):
    found = yaml_text.load(f"x: {written}")["x"]
    assert (found, isinstance(found, bool)) == (NUMBERS[written], False)


@pytest.mark.parametrize("written", TEXTS)
def test_what_json_takes_for_no_number_stays_the_text_that_it_is(written):
    assert yaml_text.load(f"x: {written}") == {"x": written}
    assert yaml_text.load(f"{written}: x") == {written: "x"}


def test_the_words_of_json_have_their_values():
    assert yaml_text.load("[true, False, null, ~]") == [True, False, None, None]
    # Refused later, with their place.
    assert yaml_text.load("[.inf, -.INF]") == [math.inf, -math.inf]
    assert math.isnan(yaml_text.load(".nan"))


@pytest.mark.parametrize("text", [*NUMBERS, *TEXTS, "true", "null", ".inf", "1e3"])
def test_a_text_that_is_written_stays_one_by_either_version_of_yaml(text):
    written = yaml_text.dump({"x": text, "y": [1e22, 1.5, 10**20]})
    assert yaml_text.load(written) == {"x": text, "y": [1e22, 1.5, 10**20]}
    assert yaml.safe_load(written)["x"] == text


def test_a_tag_still_says_what_a_value_is():
    assert yaml_text.load("!!timestamp 2026-01-31") == dt.date(2026, 1, 31)
    assert yaml_text.load("!!str 17") == "17"
