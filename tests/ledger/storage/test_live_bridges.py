"""Which processes are there: told by their locks, whatever becomes of them."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from tampered_fixtures import Writer

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.status import effective_status
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.live_bridges import FOLDER, Presence, http_ports, is_present
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.sandbox.ownership import owner_label

HOLDER = """
import sys
from pathlib import Path
from mcp_bridge.ledger.storage.live_bridges import Presence
Presence(Path(sys.argv[1]), sys.argv[2])
print("here", flush=True)
sys.stdin.read()
"""

ELSEWHERE = "0123456789abcdef:7:b.1"
"""A process in another pid namespace."""


def test_nobody_waits_for_a_fifo_among_the_files_of_processes(tmp_path):
    (tmp_path / FOLDER).mkdir()
    fifo = tmp_path / FOLDER / ("0" * 32)
    os.mkfifo(fifo)
    assert http_ports(tmp_path) == ()
    Presence(tmp_path, ELSEWHERE).leave()
    assert not fifo.exists()


@pytest.fixture
def holder(tmp_path):
    """A process of its own that uses the store."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), ELSEWHERE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"here\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_who_is_killed_is_no_longer_there(tmp_path, holder):
    assert is_present(tmp_path, ELSEWHERE)
    assert not is_present(tmp_path, "another")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert not is_present(tmp_path, ELSEWHERE)
    assert not list((tmp_path / FOLDER).iterdir())


def test_two_of_one_process_are_there_until_both_have_left(tmp_path):
    one, two = Presence(tmp_path, "me"), Presence(tmp_path, "me")
    assert is_present(tmp_path, "me")
    one.leave()
    assert is_present(tmp_path, "me")
    two.leave()
    assert not is_present(tmp_path, "me")
    assert not list((tmp_path / FOLDER).iterdir())


def test_what_the_killed_have_left_is_removed_by_the_next(tmp_path, holder):
    other = Presence(tmp_path, "other")
    holder.kill()
    holder.wait()
    assert len(list((tmp_path / FOLDER).iterdir())) == 2
    Presence(tmp_path, "me").leave()
    assert len(list((tmp_path / FOLDER).iterdir())) == 1
    assert is_present(tmp_path, "other")
    other.leave()


def test_many_that_come_look_and_go_at_once_never_miss_who_is_there(tmp_path):
    script = (
        HOLDER.rpartition("print")[0].replace("Presence(Path(sys.argv[1]), sys.argv[2])", "")
        + """
from mcp_bridge.ledger.storage.live_bridges import is_present
for _ in range(300):
    mine = Presence(Path(sys.argv[1]), sys.argv[2])
    assert is_present(Path(sys.argv[1]), sys.argv[2])
    is_present(Path(sys.argv[1]), sys.argv[3])
    mine.leave()
"""
    )
    others = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(number % 2), str((number + 1) % 2)])
        for number in range(4)
    ]
    assert [process.wait(60) for process in others] == [0] * 4


def test_the_port_of_a_bridge_is_known_while_it_is_there(tmp_path):
    assert http_ports(tmp_path) == ()
    other, one, two = Presence(tmp_path, "other"), Presence(tmp_path, "me"), Presence(tmp_path, "me")
    one.serve_at(8353)
    assert http_ports(tmp_path) == (8353,)
    two.leave()
    assert http_ports(tmp_path) == (8353,)
    one.leave()
    assert http_ports(tmp_path) == ()
    other.leave()


def test_the_port_of_a_bridge_that_was_killed_is_nobodys(tmp_path, holder):
    (left,) = (tmp_path / FOLDER).iterdir()
    left.write_text("8353")
    assert http_ports(tmp_path) == (8353,)
    holder.kill()
    holder.wait()
    assert http_ports(tmp_path) == ()
    assert left.read_text() == "8353", "to ask for the ports removes nothing"


@pytest.mark.parametrize("text", ["", "0", "65536", "99999", "008353", "-1", "8353\n", "²", "9" * 5000])
def test_what_is_no_port_is_nobodys(tmp_path, holder, text):
    (file,) = (tmp_path / FOLDER).iterdir()
    file.write_text(text)
    assert http_ports(tmp_path) == ()


def test_a_folder_that_can_t_be_used_is_said(tmp_path):
    (tmp_path / FOLDER).write_text("")
    with pytest.raises(BridgeError) as caught:
        Presence(tmp_path, "me")
    assert caught.value.code == "state_unusable"


def dead():
    """The id of a process that was."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


async def test_an_execution_of_another_namespace_goes_on_when_its_process_is_gone(tmp_path, holder):
    async with Database(tmp_path / FILE_NAME, owner="me") as database:
        store = Writer(database).store
        await Writer(database).start("a" * 32, owner=ELSEWHERE, kind="script", key="k")
        assert effective_status(await store.execution("a" * 32)) == "running"
        holder.kill()
        holder.wait()
        assert effective_status(await store.execution("a" * 32)) == "interrupted"


async def test_an_execution_of_this_namespace_is_told_by_its_process(tmp_path):
    async with Database(tmp_path / FILE_NAME) as database:
        store = Writer(database).store
        await Writer(database).start("a" * 32, owner=owner_label())
        known = await store.execution("a" * 32)
        assert not known.is_held
        assert effective_status(known) == "running"
        here = owner_label().replace(f":{os.getpid()}:", f":{dead()}:")
        assert effective_status(replace(known, owner=here, is_held=True)) == "interrupted"
