"""What another process is told of a bridge's pool."""

import json
import os
from dataclasses import replace

import anyio
import pytest
from execution_fixtures import printed, until

from mcp_bridge.host.pool_report import PoolReport, pool_reports, remove_report, write_report
from mcp_bridge.sandbox.ownership import owner_label

REPORT = PoolReport(owner_label(), 1, 0, 2, 4, 10, 3, 1, 0, 2, 1.5)


@pytest.fixture
def state(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path


def test_a_report_is_read_as_it_was_written_until_it_is_removed(state):
    write_report(state, REPORT)
    assert pool_reports(state) == [REPORT]
    assert f"process {os.getpid()} has 1 containers ready" in str(REPORT)
    remove_report(state)
    assert pool_reports(state) == []
    remove_report(state)


def test_without_a_state_directory_there_are_no_reports_and_writing_one_costs_nothing(tmp_path):
    assert pool_reports(tmp_path / "none") == []
    write_report(tmp_path / "none", REPORT)


def test_the_report_of_a_process_that_has_died_is_removed(state):
    host, _, start = owner_label().split(":")
    write_report(state, replace(REPORT, owner=f"{host}:4194305:{start}"))
    assert pool_reports(state) == []
    assert list((state / "run").iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"owner": 1}', json.dumps({"owner": "x"} | {"ready": 1})])
def test_a_file_that_is_no_report_is_passed_over(state, text):
    (state / "run" / "pool-1.json").write_text(text)
    assert pool_reports(state) == []


async def test_a_bridge_reports_its_pool_while_it_serves(sandboxes):
    async with sandboxes.open(pooled=True) as bridge:
        await until(lambda: bridge.sandboxes.pool.ready)
        assert printed(await bridge.run("print('well')")) == "well\n"
        directory = sandboxes.settings.state_dir

        def found():
            return [report for report in pool_reports(directory) if report.hits + report.waits == 1 and report.ready]

        with anyio.fail_after(60):
            await until(found)
    assert pool_reports(directory) == []
