"""The state directory is one user's: what is open to others is closed, and what isn't ours is left alone."""

import errno
import os
import stat

import pytest

from mcp_bridge.atomic_files import write_new
from mcp_bridge.downstream.catalog.listing_cache import ListingStore
from mcp_bridge.downstream.search.index_cache import IndexStore
from mcp_bridge.errors import BridgeError
from mcp_bridge.host.pool_report import pool_reports
from mcp_bridge.ledger.keys.signing_key_files import foreign_public_key
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.witness.witness import open_witness
from mcp_bridge.private_files import private_directory, private_file, private_key, state_directory
from mcp_bridge.sandbox.probe_report import load_report

NOBODY = 65534


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def opened(tmp_path):
    """A state directory that others can enter."""
    path = tmp_path / "state"
    path.mkdir()
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("before", [0o755, 0o750, 0o777, 0o701, 0o710])
def test_one_that_others_can_enter_is_closed_and_that_is_said(opened, before, caplog):
    opened.chmod(before)
    assert state_directory(opened) == opened
    assert mode(opened) == 0o700
    assert f"mode {before:04o}" in caplog.text
    caplog.clear()
    state_directory(opened)
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["ledger.sqlite", "references.key", "probe-1234.json", "lost+found"])
def test_one_that_holds_what_is_ours_or_nobodys_is_closed(opened, name):
    (opened / name).touch()
    (opened / "files").mkdir()
    if name == "lost+found":
        (opened / "files").rmdir()
    state_directory(opened)
    assert mode(opened) == 0o700


@pytest.mark.parametrize("name", ["Documents", ".bashrc", "pyproject.toml"])
def test_a_folder_of_other_things_is_refused_and_left_as_it_is(opened, name):
    (opened / name).touch()
    with pytest.raises(BridgeError, match="holds what isn't this program's") as caught:
        state_directory(opened)
    assert (caught.value.code, mode(opened)) == ("state_unsafe", 0o755)
    assert f"chmod 700 {opened}" in caught.value.hint
    opened.chmod(0o700)
    state_directory(opened)


def test_a_folder_for_everybodys_files_is_refused_whatever_it_holds(opened):
    opened.chmod(0o1777)
    (opened / "ledger.sqlite").touch()
    with pytest.raises(BridgeError) as caught:
        state_directory(opened)
    assert (caught.value.code, mode(opened)) == ("state_unsafe", 0o1777)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes what is another's")
def test_what_somebody_else_has_made_is_refused(opened, tmp_path):
    for before in (0o700, 0o777):
        opened.chmod(before)
        os.chown(opened, NOBODY, NOBODY)
        with pytest.raises(BridgeError, match=f"belongs to the user id {NOBODY}") as caught:
            state_directory(opened)
        assert (caught.value.code, mode(opened)) == ("state_unsafe", before)
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(own)
    assert state_directory(link) == link
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(BridgeError, match=f"is a link of the user id {NOBODY}"):
        state_directory(link)


async def test_a_ledger_that_others_can_read_is_closed_with_what_sqlite_keeps_beside_it(opened, caplog):
    path = opened / "ledger.sqlite"
    async with Database(path):
        pass
    opened.chmod(0o700)
    # As a copy leaves it, with a careless umask.
    (opened / "ledger.sqlite-wal").touch()
    for name in ("ledger.sqlite", "ledger.sqlite-wal"):
        (opened / name).chmod(0o644)
    async with Database(path):
        assert {mode(file) for file in opened.glob("ledger.sqlite*")} == {0o600}
    assert "ledger.sqlite could be read or written by others (mode 0644)" in caplog.text


async def test_a_master_key_that_others_can_read_is_refused(opened):
    async with Database(opened / "ledger.sqlite"):
        pass
    (opened / "master.key").chmod(0o644)
    with pytest.raises(BridgeError, match="somebody may have read it") as caught:
        async with Database(opened / "ledger.sqlite"):
            pass
    assert caught.value.code == "key_unusable"


@pytest.mark.parametrize("odd", ["fifo", "folder", "larger than any"])
def test_nobody_waits_for_a_key_that_is_no_regular_file_and_no_more_is_read_of_it(tmp_path, odd):
    key = tmp_path / "master.key"
    if odd == "fifo":
        os.mkfifo(key, 0o600)
    elif odd == "folder":
        key.mkdir(0o700)
    else:
        key.touch(0o600)
        os.truncate(key, 1 << 40)
    with pytest.raises(BridgeError) as caught:
        private_key(key, "")
    assert caught.value.code == "key_unusable"


def test_a_key_may_be_a_link(tmp_path):
    key = private_key(tmp_path / "elsewhere", "")
    (tmp_path / "master.key").symlink_to("elsewhere")
    assert private_key(tmp_path / "master.key", "") == key


def test_nobody_waits_for_a_fifo_in_place_of_another_file(tmp_path):
    for name in ("checkpoint.pub", "probe-1.json"):
        os.mkfifo(tmp_path / name)
    assert foreign_public_key(tmp_path, "a+b+c") is None
    assert load_report(tmp_path / "probe-1.json") is None
    for folder, name in (("catalog", "a.json"), ("catalog", "index-a.bin"), ("run", "pool-1.json")):
        (tmp_path / folder).mkdir(exist_ok=True)
        os.mkfifo(tmp_path / folder / name)
    assert not ListingStore(tmp_path / "catalog").load("a", "a", "a")
    assert IndexStore(tmp_path / "catalog").load("a") is None
    assert pool_reports(tmp_path) == []


def test_a_witness_closes_its_file(opened):
    open_witness(opened, []).close()
    (opened / "witness.sqlite").chmod(0o664)
    open_witness(opened, []).close()
    assert mode(opened / "witness.sqlite") == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes what is another's")
def test_a_file_of_somebody_else_is_refused(tmp_path):
    file = tmp_path / "ledger.sqlite"
    file.touch(mode=0o600)
    os.chown(file, NOBODY, NOBODY)
    with pytest.raises(BridgeError) as caught:
        private_file(file)
    assert caught.value.code == "state_unsafe"


@pytest.mark.parametrize(
    "command",
    [
        ("program", "list"),
        ("approvals", "list"),
        ("execution", "list"),
        ("secret", "set", "token"),
    ],
    ids=" ".join,
)
def test_every_command_that_uses_it_closes_it(desk, command):
    desk.configure()
    desk.suspended()
    desk.state.chmod(0o755)
    (desk.state / "ledger.sqlite").chmod(0o644)
    desk.run(*command, stdin=b"correct-horse-battery")
    assert mode(desk.state) == 0o700
    if command[0] != "secret":
        assert mode(desk.state / "ledger.sqlite") == 0o600


def test_a_command_says_what_is_wrong_with_it_and_how_to_mend_it(desk):
    desk.configure()
    desk.state.mkdir()
    desk.state.chmod(0o755)
    (desk.state / "something").touch()
    desk.says("program", "run", "clean", code=1, words=["state_unsafe", "chmod 700", "MCP_BRIDGE_STATE_DIR"])
    assert [path.name for path in desk.state.iterdir()] == ["something"]


def test_what_is_made_above_and_in_it_is_closed_too(tmp_path):
    before = os.umask(0o022)
    try:
        state_directory(tmp_path / "a" / "state")
        private_directory(tmp_path / "a" / "state" / "files" / "one")
        ListingStore(tmp_path / "b" / "state" / "catalog").save("key", ())
    finally:
        os.umask(before)
    assert {mode(path) for path in tmp_path.rglob("*") if path.is_dir()} == {0o700}


def test_a_listing_is_kept_in_no_directory_of_others(opened, caplog):
    (opened / "Documents").touch()
    ListingStore(opened / "catalog").save("key", ())
    assert "cannot cache" in caplog.text
    assert [path.name for path in opened.iterdir()] == ["Documents"]


def test_a_new_file_is_whole_or_not_there_where_it_cannot_be_linked(tmp_path, monkeypatch):
    def link(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match="no links"):
        write_new(tmp_path / "key", b"k" * 32)
    assert not list(tmp_path.iterdir())
