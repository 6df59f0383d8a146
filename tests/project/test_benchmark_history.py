"""What the benchmarks keep of each run, and what is made of it: medians with their spread, and plots."""

import json
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from benchmarks import history, plots
from benchmarks.bridge import REPOSITORY
from benchmarks.measure import Row


def run_of(*rows, quick=False):
    return history.record([row.record() | {"benchmark": "noop"} for row in rows], ["noop: idle"], quick=quick)


def noop(ours, peer=2.0, *, met=None, goal=""):
    return Row("a call", ours, peer, "ms", "its peer", goal, met)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "kept" / "history.jsonl"


def printed(file, *arguments):
    argv = [sys.executable, "-m", "benchmarks.history", "--history", str(file), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, cwd=REPOSITORY)


def test_the_last_runs_of_a_row_are_shown_as_median_least_and_most(file):
    for ours in (100.0, 3.0, 1.0, 2.0):
        history.keep(run_of(noop(ours, goal="≤ 1", met=ours <= 2)), file)
    (row,) = history.summaries(history.runs(file))
    assert row.ours == history.Spread(2.0, 1.0, 3.0)
    assert row.ratio == history.Spread(1.0, 0.5, 1.5)
    assert (row.times, row.met) == (3, 2)
    (row,) = history.summaries(history.runs(file), last=1)
    assert row.ours == history.Spread(2.0, 2.0, 2.0)
    assert "2.00 ms (1.00 to 3.00)" in printed(file).stdout
    assert "2 of 3" in printed(file).stdout


def test_a_row_that_a_run_lacks_has_the_last_runs_that_have_it(file):
    history.keep(run_of(noop(1.0)), file)
    history.keep(run_of(Row("another", 5.0, None, "ms")), file)
    first, other = history.summaries(history.runs(file), last=1)
    assert first.ours is not None
    assert first.ours.median == 1.0
    assert other.peer is None


def test_rows_that_say_the_same_are_told_apart_by_their_order(file):
    history.keep(run_of(noop(1.0), noop(7.0)), file)
    found = history.summaries(history.runs(file))
    assert [row.ours.median for row in found] == [1.0, 7.0]


def test_a_benchmark_that_failed_is_no_row_of_the_summary(file):
    history.keep(run_of(noop(1.0), Row("noop", None, None, "", failed=True)), file)
    assert [row.identity.what for row in history.summaries(history.runs(file))] == ["a call"]


def test_quick_runs_are_not_mixed_with_the_others(file):
    history.keep(run_of(noop(1.0)), file)
    history.keep(run_of(noop(50.0), quick=True), file)
    assert [row.ours.median for row in history.summaries(history.runs(file))] == [1.0]
    assert [row.ours.median for row in history.summaries(history.runs(file, quick=True))] == [50.0]


def test_a_history_that_has_nothing_or_is_broken_is_an_error_with_its_reason(file):
    done = printed(file)
    assert done.returncode == 1
    assert "make bench" in done.stderr
    file.parent.mkdir()
    file.write_text('{"rows": 1}\n')
    done = printed(file)
    assert done.returncode == 1
    assert "no run of the benchmarks" in done.stderr
    assert "Traceback" not in done.stderr


def test_json_of_the_history_has_every_figure(file):
    history.keep(run_of(noop(1.0)), file)
    (row,) = json.loads(printed(file, "--json").stdout)
    assert row["ratio"] == {"median": 0.5, "least": 0.5, "most": 0.5}
    assert row["benchmark"] == "noop"


def point(at, ours, peer):
    return Row(f"a step of {at}", ours, peer, "µs", "its peer", curve="steps", at=at)


def test_a_curve_is_drawn_with_each_of_its_points_and_its_peers(tmp_path):
    runs = [run_of(point(1, 2.0, 5.0), point(100, 3.0, None)), run_of(point(1, 4.0, 6.0))]
    curve = plots.curves(runs)["steps"]
    assert curve.ours == {1: 4.0, 100: 3.0}
    (path,) = plots.write({"steps": curve, "of something else": curve}, tmp_path)
    drawn = ET.fromstring(path.read_text())  # noqa: S314 - it was just written
    assert len(drawn.findall(".//{*}circle")) == 3
    assert {"mcp-code-bridge", "its peer"} <= {text.text.removeprefix("● ") for text in drawn.findall(".//{*}text")}


@pytest.mark.parametrize("curve", [plots.Curve(), plots.Curve({1: 0.0})])
def test_a_curve_that_a_logarithmic_plot_cannot_have_is_refused(curve):
    with pytest.raises(ValueError, match="positive points"):
        plots.svg("title", "x", "y", curve)


def test_every_curve_that_has_a_title_has_a_file():
    assert plots.TITLES.keys() == plots.FILE_NAMES.keys()
