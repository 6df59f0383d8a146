"""What is told to observers, and how much of it can become labels."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mcp_bridge.errors import BridgeError
from mcp_bridge.server.http.metrics import Events
from mcp_bridge.telemetry import measurements
from mcp_bridge.telemetry.measurements import MAX_PRINCIPALS, OTHER, BoundedNames
from mcp_bridge.telemetry.observed_runs import observed_run


@pytest.fixture
def counted():
    """The text of the metrics, from what is measured meanwhile."""
    registry = CollectorRegistry()
    with measurements.observed_by(Events(registry)):
        yield lambda: generate_latest(registry).decode().splitlines()


def test_names_beyond_a_bound_are_told_together():
    bounded = BoundedNames(2)
    assert [bounded(name) for name in ("a", "b", "c", "a", "d", "b")] == ["a", "b", OTHER, "a", OTHER, "b"]


def test_principals_beyond_the_bound_are_counted_together(counted):
    for number in range(MAX_PRINCIPALS + 50):
        with observed_run("script", "ab12", f"p{number}") as run:
            run.status = "success"
    lines = [line for line in counted() if line.startswith("mcp_bridge_runs_total{")]
    assert len(lines) == MAX_PRINCIPALS + 1
    assert f'mcp_bridge_runs_total{{kind="script",principal="{OTHER}",status="success"}} 50.0' in lines


def test_a_run_that_is_cut_short_counts_as_interrupted(counted):
    with pytest.raises(RuntimeError), observed_run("program", "ab12", "alice"):
        raise RuntimeError
    assert 'mcp_bridge_runs_total{kind="program",principal="alice",status="interrupted"} 1.0' in counted()


def test_calls_count_by_their_result_and_refused_ones_take_no_time(counted):
    with measurements.call("files", "read"):
        pass
    with pytest.raises(BridgeError), measurements.call("files", "read"):
        raise BridgeError("tool_timeout", "It took too long.")
    measurements.call_refused("files", "write", BridgeError("denied", "No."))
    lines = counted()
    for result in ("ok", "tool_timeout", "denied"):
        assert f'mcp_bridge_calls_total{{result="{result}",server="files"}} 1.0' in lines
    assert 'mcp_bridge_call_seconds_count{server="files"} 2.0' in lines


def test_what_is_measured_without_an_observer_is_told_to_nobody(counted):
    before = counted()
    with measurements.observed_by(Events(CollectorRegistry())):
        pass
    assert counted() == before
    assert [line for line in before if line.startswith("mcp_bridge_runs_total")] == []
