"""What a ledger holds, in numbers."""

import sqlite3

from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.sandbox.ownership import host_id, owner_label
from mcp_bridge.views.ledger_metrics import ledger_figures


async def test_an_execution_whose_process_has_died_is_counted_as_interrupted(tmp_path):
    async with Database(tmp_path / FILE_NAME):
        pass
    here, dead, elsewhere = owner_label(), f"{host_id()}:1:long-ago", "0123456789abcdef:7:then"
    rows = [
        ("running", here, "anna"),
        ("running", dead, "anna"),
        ("running", dead, "ben"),
        ("running", elsewhere, "ben"),
        ("suspended", dead, "ben"),
        ("interrupted", dead, "ben"),
        ("success", dead, "ben"),
    ]
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.executemany(
            "INSERT INTO executions (id, kind, status, owner, principal, request, program, origin, started, changed)"
            " VALUES (?, 'script', ?, ?, ?, '', '', 'agent', 0, 0)",
            [(str(number), *row) for number, row in enumerate(rows)],
        )
    connection.close()
    async with Database(tmp_path / FILE_NAME, owner=here) as database:
        unfinished = (await ledger_figures(database)).unfinished
    assert unfinished == {
        ("anna", "running"): 1,
        ("anna", "interrupted"): 1,
        ("ben", "interrupted"): 3,
        ("ben", "suspended"): 1,
    }
