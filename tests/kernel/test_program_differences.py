"""Each difference from llm-nano-vm 0.8.9, on both sides; and the table that `docs/program-language.md` has of them."""

import re

import pytest
from pages import text_of
from program_differences import DIFFERENCES, compared, ours_of


@pytest.mark.parametrize("name", DIFFERENCES)
def test_each_difference_shows_on_both_sides(nano_vm, name):
    difference = DIFFERENCES[name]
    theirs, ours = nano_vm.ask(difference.job), ours_of(difference.job)
    theirs["recursed"] = "recursion depth" in str(theirs.get("error")) or theirs.get("crash") == "RecursionError"
    assert theirs | difference.theirs == theirs
    assert ours | difference.ours == ours
    assert difference.theirs != difference.ours


@pytest.mark.parametrize("name", [name for name, difference in DIFFERENCES.items() if difference.level])
def test_what_makes_up_for_a_difference_does(nano_vm, name):
    difference = DIFFERENCES[name]
    theirs, ours = difference.level(difference.job, nano_vm.ask(difference.job), ours_of(difference.job))
    assert compared(theirs) == compared(ours)


def test_the_table_for_readers_has_each_difference_and_no_other():
    section = text_of("docs/program-language.md").split("## Differences from llm-nano-vm", 1)[1]
    rows = [re.split(r" *(?<!\\)\| *", line.strip())[1:-1] for line in section.splitlines() if line.startswith("|")]
    assert rows[0] == ["difference", "llm-nano-vm 0.8.9", "here", "why"]
    told = {name: (row.there, row.here, row.why) for name, row in DIFFERENCES.items()}
    assert {name: tuple(rest) for name, *rest in rows[2:]} == told
    assert [row[0] for row in rows[2:]] == list(DIFFERENCES)
