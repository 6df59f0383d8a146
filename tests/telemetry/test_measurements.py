"""What is told to observers, and how much of it can become labels."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from servers.specs import faulty

from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.server.http.metrics import Events
from mcp_bridge.telemetry import measurements
from mcp_bridge.telemetry.measurements import MAX_PRINCIPALS, OTHER, BoundedNames
from mcp_bridge.telemetry.observed_runs import observed_run


@pytest.fixture
def counted():
    """The text of the metrics, from what is measured meanwhile."""
    registry = CollectorRegistry()
    observer = Events(registry)
    measurements.add(observer)
    yield lambda: generate_latest(registry).decode().splitlines()
    measurements.remove(observer)


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
    observer = Events(CollectorRegistry())
    measurements.add(observer)
    measurements.remove(observer)
    assert counted() == before
    assert [line for line in before if line.startswith("mcp_bridge_runs_total")] == []


IN_SCRIPTS = {
    "python": """
from mcp import programs
await programs.run({"steps": [{"id": "a", "type": "tool", "tool": "faulty.echo", "args": {"text": "1"}}]})
await programs.run({"steps": [{"id": "a", "type": "approval", "message": "Go?"}]})
""",
    "javascript": """
import { programs } from "mcp";
await programs.run({steps: [{id: "a", type: "tool", tool: "faulty.echo", args: {text: "1"}}]});
await programs.run({steps: [{id: "a", type: "approval", message: "Go?"}]});
""",
}


@pytest.mark.timeout(120)
async def test_programs_that_a_script_runs_are_counted(counted, bilingual):
    record = await bilingual.run(IN_SCRIPTS, faulty())
    assert record.status == "success", record
    for status in ("success", "suspended"):
        assert f'mcp_bridge_runs_total{{kind="program",principal="local",status="{status}"}} 1.0' in counted()
    assert 'mcp_bridge_run_seconds_count{kind="program"} 2.0' in counted()


@pytest.mark.timeout(120)
async def test_the_log_says_what_became_of_a_call_and_not_that_one_has_failed_that_waits(sandboxes, tmp_path, caplog):
    caplog.set_level("INFO", "mcp_bridge.host.request_handlers")
    rules = {"policy": {"rules": [{"tools": ["faulty.echo"], "effect": "approve"}]}}
    governance = load_governance(rules, None, tmp_path, sandboxes.settings.state_dir)
    async with sandboxes.open(faulty(), governance=governance) as bridge:
        await bridge.run("from mcp.servers import faulty\nawait faulty.pid()\nawait faulty.echo('x')", key="k")
    said = [" ".join(record.getMessage().split()[:2]) for record in caplog.records if " ms" in record.getMessage()]
    assert said == ["'faulty'.'pid' answered", "'faulty'.'echo' waits"]
