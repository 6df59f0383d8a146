"""A file that claims to be a ledger is a stranger's until it is verified: reading it ends, whatever is in it."""

import sqlite3
import struct
import subprocess
from contextlib import closing

import pytest
from cli_fixtures import COMMAND

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.reading import open_ledger
from mcp_bridge.ledger.storage.schema import FILE_NAME, MIGRATIONS

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {} FROM n WHERE i < 0"
VIEWS = {
    "head": "i AS size, '' AS note, '' AS vkey",
    "meta": "'' AS name, '' AS value",
    "checkpoints": "i AS size, '' AS note",
}

PAGE = 4096
LEAF, INTERIOR = 13, 5
"""Kinds of the pages of a table (sqlite.org/fileformat.html, section 1.6)."""

FAN_OUT, LEVELS = 400, 8

DEADLINE_SECONDS = 100
"""For a command that ends in a few, or never."""


def made(path, view=None):
    """The tables of a ledger in which nothing is yet, a view that never ends in the place of one."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in MIGRATIONS[0]:
            connection.execute(statement)
        if view is not None:
            connection.execute(f"DROP TABLE {view}")
            connection.execute(f"CREATE VIEW {view} AS {ENDLESS.format(VIEWS[view])}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    return path


def said(*arguments, cwd):
    """What the command says on standard error; it must fail, and end."""
    command = [COMMAND, "audit", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=DEADLINE_SECONDS)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("view", "command"),
    [("head", ("verify",)), ("meta", ("verify",)), ("checkpoints", ("prove", "0")), ("head", ("prove", "0"))],
)
def test_a_view_in_the_place_of_a_table_is_never_asked(tmp_path, view, command):
    made(tmp_path / FILE_NAME, view)
    assert f"{FILE_NAME}: The record of executions is damaged: the table {view} is missing" in said(
        *command, FILE_NAME, cwd=tmp_path
    )


def test_a_file_that_nobody_has_begun_is_not_damaged(tmp_path):
    (tmp_path / FILE_NAME).touch()
    with pytest.raises(BridgeError) as caught, open_ledger(tmp_path / FILE_NAME):
        pass
    assert caught.value.code == "database_unusable"


@pytest.mark.parametrize("command", [("verify",), ("prove", "0")])
def test_pages_that_name_each_other_without_end_are_not_followed_for_ever(tmp_path, command):
    with_endless_schema(made(tmp_path / FILE_NAME))
    assert "database_unusable" in (told := said(*command, FILE_NAME, cwd=tmp_path))
    assert "takes longer than any ledger of its size" in told


def with_endless_schema(path):
    """SQLite's own table of what there is, with one row again and again: more often than anyone can wait for."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema").fetchall()
    data = bytearray(path.read_bytes())
    following = len(data) // PAGE + 1
    again = next(row for row in rows if row[4] is None)
    pages = [leaf([row], number) for number, row in enumerate([*rows, again])]
    top = [interior_cell(following + number, number) for number in range(len(rows))]
    for _ in range(LEVELS):
        below = following + len(pages) - 1
        pages.append(page(INTERIOR, [interior_cell(below, len(rows))] * FAN_OUT, below))
    first = page(INTERIOR, top, following + len(pages) - 1, start=100)
    data[100:PAGE] = first[100:]
    data += b"".join(pages)
    data[28:32] = struct.pack(">I", len(data) // PAGE)
    path.write_bytes(data)


def page(kind, cells, right=None, start=0):
    """A page of a table; `right`: the one that follows its last cell. The first page of a file starts with its header."""
    content, pointers, end = bytearray(PAGE), b"", PAGE
    for cell in cells:
        end -= len(cell)
        content[end : end + len(cell)] = cell
        pointers += struct.pack(">H", end)
    head = struct.pack(">BHHHB", kind, 0, len(cells), end, 0) + (b"" if right is None else struct.pack(">I", right))
    content[start : start + len(head + pointers)] = head + pointers
    return content


def leaf(rows, key):
    records = [record(row) for row in rows]
    return page(LEAF, [varint(len(data)) + varint(key) + data for data in records])


def interior_cell(below, key):
    return struct.pack(">I", below) + varint(key)


def record(values):
    kinds, data = b"", b""
    for value in values:
        text = b"" if value is None else struct.pack(">i", value) if isinstance(value, int) else value.encode()
        kinds += b"\0" if value is None else b"\4" if isinstance(value, int) else varint(13 + 2 * len(text))
        data += text
    return varint(len(kinds) + 1) + kinds + data


def varint(number):
    out = [number & 0x7F]
    while number := number >> 7:
        out.insert(0, number & 0x7F | 0x80)
    return bytes(out)
