"""The dashboard for Grafana: each member is one that Grafana knows, and each query one that Prometheus can answer."""

import json
import re
from pathlib import Path

import promql_parser
import pytest
from bridge_fixtures import until
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from http_bridge import serving

FILE = Path(__file__).resolve().parents[2] / "examples" / "observability" / "grafana-dashboard.json"
DASHBOARD = json.loads(FILE.read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]

pytest_plugins = ["bridge_fixtures"]


def lost(before, after, path=""):
    """Where the second value lacks, or has changed, what the first has."""
    if isinstance(before, dict):
        for name, value in before.items():
            if name not in after:
                yield f"{path}.{name}"
            else:
                yield from lost(value, after[name], f"{path}.{name}")
    elif isinstance(before, list):
        if len(before) != len(after):
            yield path
        for number, value in enumerate(before[: len(after)]):
            yield from lost(value, after[number], f"{path}[{number}]")
    elif before != after:
        yield path


def test_grafanas_own_types_load_all_of_it():
    plugins.register_default_plugins()
    loaded = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))
    assert list(lost(DASHBOARD, loaded)) == []
    # What Grafana doesn't know is lost, or this would say nothing.
    odd = json.loads(json.dumps(DASHBOARD))
    odd["panels"][1]["fieldConfig"]["defaults"]["unitt"] = "s"
    reloaded = json.loads(JSONEncoder().encode(Dashboard.from_json(odd)))
    assert list(lost(odd, reloaded)) == [".panels[1].fieldConfig.defaults.unitt"]


def test_panels_do_not_overlap_and_have_ids_of_their_own():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells


def selectors(node):
    """The vector selectors of a parsed query."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "vs"):
        if (inner := getattr(node, name, None)) is not None:
            yield from selectors(inner)
    for inner in getattr(node, "args", None) or ():
        yield from selectors(inner)


@pytest.fixture
async def families(configure):
    """The types of the metrics that a bridge gives, by name."""
    setup = configure(**{"telemetry.over_http": True, "pool_max": 1})
    async with serving(setup) as bridge, bridge.client() as client, bridge.http() as http:

        async def text():
            got = (await http.get("/metrics")).text
            return got if "mcp_bridge_pool_containers{" in got else None

        await client.call_tool("run_python", {"code": "print(1)"})
        return dict(re.findall(r"^# TYPE (\S+) (\S+)$", await until(text), re.MULTILINE))


@pytest.mark.timeout(180)
async def test_each_query_parses_and_asks_for_a_metric_that_there_is(families):
    there = set()
    for name, kind in families.items():
        there |= {f"{name}_{part}" for part in ("bucket", "count", "sum")} if kind == "histogram" else {name}
    asked = set()
    for query in QUERIES:
        parsed = promql_parser.parse(query.replace("$__rate_interval", "5m"))
        found = list(selectors(parsed))
        assert found, query
        for selector in found:
            assert selector.name in there, query
            asked.add(re.sub("_(bucket|count|sum)$", "", selector.name))
    # Every metric of ours is on it but for the version.
    ours = {name for name in families if name.startswith("mcp_bridge_")}
    assert ours - asked == {"mcp_bridge_info"}
