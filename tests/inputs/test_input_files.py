"""What of the operator's folders is read: what is named, and never anything else, whatever others do meanwhile."""

import hashlib
import os
import shutil
import socket
import threading

import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.inputs import input_snapshot as snapshots
from mcp_bridge.inputs.config import inputs_from_toml
from mcp_bridge.inputs.input_snapshot import PART_BYTES, opened
from mcp_bridge.inputs.listing import listed
from mcp_bridge.inputs.open_without_links import RefusedError

SECRET = b"the secret that nobody named"


@pytest.fixture
def source(tmp_path):
    """Makes an input of a path or table: `source(PATH)`."""

    def make(entry, name="data"):
        return inputs_from_toml({name: entry}, None, tmp_path, tmp_path / "state")[name]

    return make


@pytest.fixture
def secret(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(SECRET)
    return outside / "secret"


def content(snapshot):
    parts = -(-snapshot.size // PART_BYTES)
    return b"".join(snapshot.read(number) for number in range(parts))


def refusal(work, *args):
    with pytest.raises(RefusedError) as caught:
        work(*args)
    return caught.value.code


def test_a_file_is_given_with_its_hash_and_time(tmp_path, source):
    data = os.urandom(3 * PART_BYTES + 17)
    (tmp_path / "a.bin").write_bytes(data)
    snapshot = opened(source("a.bin"), "")
    [file] = snapshot.files
    assert (file.path, file.size, file.sha256) == ("", len(data), hashlib.sha256(data).hexdigest())
    assert file.modified_ns == (tmp_path / "a.bin").stat().st_mtime_ns
    assert content(snapshot) == data


def test_the_files_of_a_folder_follow_one_another_in_the_parts(tmp_path, source):
    folder = tmp_path / "many" / "deep"
    folder.mkdir(parents=True)
    sizes = [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 0, 5, 2 * PART_BYTES, 0]
    for number, size in enumerate(sizes):
        (folder / f"{number}").write_bytes(bytes([number]) * size)
    snapshot = opened(source("many"), "")
    assert [file.path for file in snapshot.files] == [f"deep/{number}" for number in range(len(sizes))]
    assert content(snapshot) == b"".join(bytes([number]) * size for number, size in enumerate(sizes))
    assert content(opened(source("many"), "deep/4")) == bytes([4]) * (PART_BYTES + 1)
    assert [file.path for file in opened(source("many"), "deep").files] == [str(number) for number in range(len(sizes))]


def test_nothing_but_regular_files_is_handed_in_and_what_is_left_out_is_told(tmp_path, source, secret):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "plain").write_bytes(b"x")
    (folder / "link").symlink_to(secret)
    (folder / "folder-link").symlink_to(secret.parent)
    os.mkfifo(folder / "fifo")
    os.link(secret, folder / "hard")
    (folder / "bad\nname").write_bytes(b"x")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket"))
        listing = listed(source("folder"))
        assert [file.path for file in listing.files] == ["plain"]
        told = "\n".join(listing.left_out)
        for name in ("link is a symbolic", "folder-link is a symbolic", "fifo is a FIFO", "socket is a socket"):
            assert name in told
        assert "hard has another name" in told
        assert "bad\\nname" in told
        for name in ("link", "fifo", "socket", "hard"):
            assert refusal(opened, source("folder"), name) == "input_refused"
            assert refusal(opened, source(f"folder/{name}"), "") == "input_refused"
        for name in ("folder-link/secret", "plain/x"):
            assert refusal(opened, source("folder"), name) in {"input_refused", "input_unavailable"}
    if os.geteuid() == 0:
        os.mknod(folder / "device", 0o600 | 0o020000, os.makedev(1, 5))
        assert refusal(opened, source("folder"), "device") == "input_refused"


@pytest.mark.parametrize(
    "path", ["..", "../outside/secret", "a/../../outside/secret", "/etc/passwd", "./a", "a//b", ".", "a\0b"]
)
def test_no_path_leads_out_of_an_input(tmp_path, source, secret, path):
    (tmp_path / "folder" / "a").mkdir(parents=True)
    assert refusal(opened, source("folder"), path) == "input_refused"


def test_a_folder_that_becomes_a_link_after_the_configuration_was_read_is_refused(tmp_path, source, secret):
    for place in ("folder", "folder/below"):
        path = tmp_path / place
        path.mkdir(parents=True)
        (path / "secret").write_bytes(b"meant")
    inputs = [source("folder"), source("folder/below"), source("folder/below/secret")]
    assert content(opened(inputs[2], "")) == b"meant"
    (tmp_path / "folder").rename(tmp_path / "moved")
    (tmp_path / "folder").symlink_to(secret.parent)
    (secret.parent / "below").mkdir()
    (secret.parent / "below" / "secret").write_bytes(SECRET)
    for each in inputs:
        assert refusal(opened, each, "") in {"input_refused", "input_unavailable"}


@pytest.mark.parametrize("what", [".", "in", "in/secret", "secret"])
def test_whoever_swaps_files_and_folders_for_links_gets_nothing_else_read(tmp_path, source, secret, monkeypatch, what):
    """At each step of opening, the swap happens: the meant content or an error, and never the other."""
    monkeypatch.setattr("mcp_bridge.inputs.open_without_links._is_link", lambda *_: False)
    folder, away = tmp_path / "folder", tmp_path / "away"
    swapped = folder / what
    steps = 0
    plain = os.open

    def swapping(at):
        def open_(path, flags, *args, **kwargs):
            nonlocal steps
            steps += 1
            if steps == at:
                swapped.rename(away)
                swapped.symlink_to(secret if swapped.name == "secret" else secret.parent)
            return plain(path, flags, *args, **kwargs)

        return open_

    given = refused = at = 0
    meant = hashlib.sha256(bytes(len(SECRET))).hexdigest()
    while steps >= at:
        at, steps = at + 1, 0
        (folder / "in").mkdir(parents=True)
        for name in ("in/secret", "secret"):
            # As long as the other: its size doesn't tell it.
            (folder / name).write_bytes(bytes(len(SECRET)))
        inputs = source("folder")
        monkeypatch.setattr(os, "open", swapping(at))
        try:
            snapshot = opened(inputs, "")
            # Nor is the hash of anything else told.
            assert {file.sha256 for file in snapshot.files} <= {meant}
            assert set(content(snapshot)) <= {0}
            given += 1
        except RefusedError:
            refused += 1
        finally:
            monkeypatch.setattr(os, "open", plain)
        if swapped.is_symlink():
            swapped.unlink()
            away.rename(swapped)
        shutil.rmtree(folder)
    assert given
    assert refused


def test_a_swap_in_a_loop_never_yields_what_was_not_named(tmp_path, source, secret):
    folder = tmp_path / "folder"
    folder.mkdir()
    target = folder / "secret"
    over = threading.Event()

    def swap():
        while not over.is_set():
            for make in (
                lambda: (tmp_path / "new").write_bytes(b"meant"),
                lambda: (tmp_path / "new").symlink_to(secret),
            ):
                make()
                (tmp_path / "new").replace(target)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        given = 0
        for _ in range(2000):
            try:
                assert content(opened(source("folder"), "secret")) == b"meant"
                given += 1
            except RefusedError:
                pass
        assert given
    finally:
        over.set()
        swapper.join()


def test_a_file_that_changes_after_it_was_opened_is_an_error_and_no_mixture(tmp_path, source):
    path = tmp_path / "a"
    path.write_bytes(bytes(2 * PART_BYTES))
    snapshot = opened(source("a"), "")
    assert snapshot.read(0) == bytes(PART_BYTES)
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(PART_BYTES + 5)
        file.write(b"x")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert refusal(snapshot.read, 1) == "file_changed"
    assert refusal(snapshot.read, 0) == "file_changed"


@pytest.mark.parametrize("what", ["replaced", "removed", "shorter", "link"])
def test_a_file_that_is_another_one_by_now_is_an_error(tmp_path, source, secret, what):
    path = tmp_path / "a"
    path.write_bytes(SECRET)
    snapshot = opened(source("a"), "")
    match what:
        case "replaced":
            (tmp_path / "b").write_bytes(SECRET)
            (tmp_path / "b").replace(path)
        case "removed":
            path.unlink()
        case "shorter":
            os.truncate(path, 3)
        case "link":
            path.unlink()
            path.symlink_to(secret)
    assert refusal(snapshot.read, 0) == "file_changed"


def test_content_alone_is_enough_to_tell_a_change(tmp_path, source, monkeypatch):
    """Who writes by a mapping, or sets the clock back, isn't told by times."""
    path = tmp_path / "a"
    path.write_bytes(b"before")
    snapshot = opened(source("a"), "")
    path.write_bytes(b"after!")
    monkeypatch.setattr(snapshots.Identity, "of", classmethod(lambda cls, status: snapshot.files[0].identity))
    assert refusal(snapshot.read, 0) == "file_changed"


def test_a_file_that_is_written_to_while_it_is_hashed_is_an_error(tmp_path, source, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(bytes(10))
    plain = os.pread

    def growing(fd, count, offset):
        data = plain(fd, count, offset)
        with path.open("ab") as file:
            file.write(b"more")
        return data

    monkeypatch.setattr(os, "pread", growing)
    assert refusal(opened, source("a"), "") == "file_changed"


def test_a_sparse_file_counts_by_its_size(tmp_path, source):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert refusal(opened, source("sparse"), "") == "input_too_large"
    assert refusal(listed, source("sparse")) == "input_too_large"


def test_files_of_the_kernel_that_have_no_size_are_an_error(source):
    assert refusal(opened, source("/proc/self/status"), "") == "file_changed"


def test_limits_on_files_and_bytes_hold_for_a_whole_input(tmp_path, source):
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(5):
        (folder / str(number)).write_bytes(bytes(10))
    assert len(opened(source({"path": "folder", "max_files": 5, "max_size": 50}), "").files) == 5
    assert refusal(opened, source({"path": "folder", "max_files": 4}), "") == "input_too_large"
    assert refusal(opened, source({"path": "folder", "max_size": 49}), "") == "input_too_large"
    assert content(opened(source({"path": "folder", "max_files": 4}), "2")) == bytes(10)
    assert refusal(opened, source({"path": "folder", "max_size": 9}), "2") == "input_too_large"


def test_a_pattern_chooses_files_and_nothing_else_of_the_folder_is_read(tmp_path, source):
    for name in ("a.csv", "b.txt", "x/c.csv", "x/y/d.csv", ".hidden/e.csv", "x/.f.csv"):
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(name.encode())

    def names(entry):
        return [file.path for file in opened(source(entry), "").files]

    assert names("folder/*.csv") == ["a.csv"]
    assert names("folder/**/*.csv") == ["a.csv", "x/c.csv", "x/y/d.csv"]
    assert names("folder/*/*.csv") == ["x/c.csv"]
    assert names("folder/**") == names("folder") == ["a.csv", "b.txt", "x/c.csv", "x/y/d.csv"]
    assert names("folder/x/.*") == [".f.csv"]
    assert names({"path": "folder", "dot_files": True}) == sorted(
        ["a.csv", "b.txt", "x/c.csv", "x/y/d.csv", ".hidden/e.csv", "x/.f.csv"]
    )
    assert names({"path": "folder", "glob": "**/[ab].*"}) == ["a.csv", "b.txt"]
    for hidden in ("b.txt", ".hidden/e.csv"):
        assert refusal(opened, source("folder/**/*.csv"), hidden) == "input_unavailable"
    assert refusal(opened, source("folder"), ".hidden/e.csv") == "input_unavailable"


def test_the_bridges_own_state_is_never_handed_in(tmp_path, source):
    state = tmp_path / "state"
    state.mkdir()
    (state / "master.key").write_bytes(SECRET)
    (tmp_path / "plain").write_bytes(b"x")
    for entry in ("state", "state/master.key", "state/*"):
        with pytest.raises(BridgeError, match="state directory"):
            source(entry)
    everything = inputs_from_toml({"all": {"path": str(tmp_path)}}, None, tmp_path, state)["all"]
    assert [file.path for file in listed(everything).files] == ["plain"]
    assert refusal(opened, everything, "state/master.key") == "input_refused"


BAD = {
    "no table": ([], "is a table"),
    "no name": ({"../x": "a"}, "is no name for an input"),
    "a name with a slash": ({"a/b": "a"}, "is no name for an input"),
    "two spellings": ({"a": "x", "A": "y"}, "another spelling"),
    "a number": ({"a": 5}, "is a table"),
    "an unknown key": ({"a": {"path": "x", "globs": "*"}}, "is no key that there is"),
    "no path": ({"a": {"glob": "*"}}, "path"),
    "the root": ({"a": "/"}, "whole file system"),
    "a way up": ({"a": {"path": "x", "glob": "../*"}}, "no pattern"),
    "too many files": ({"a": {"path": "x", "max_files": 1_000_000}}, "max_files"),
    "no character of a path": ({"a": "x\0y"}, "a character"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_mistake_in_the_table_is_told_with_its_key(tmp_path, what):
    table, told = BAD[what]
    with pytest.raises(BridgeError, match=told) as caught:
        inputs_from_toml(table, None, tmp_path, tmp_path / "state")
    assert caught.value.code == "bad_config"
    assert caught.value.details["key"].startswith("files")


def test_a_folders_configuration_hands_in_only_what_is_in_the_folder(tmp_path, secret):
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "a").write_bytes(b"x")
    (folder / "way-out").symlink_to(secret.parent)
    own = inputs_from_toml({"a": "a"}, None, folder, tmp_path / "state", within=folder)
    assert own["a"].path == folder / "a"
    for path in ("../outside/secret", str(secret), "way-out/secret", "~/x"):
        with pytest.raises(BridgeError, match="leads out of the folder"):
            inputs_from_toml({"a": path}, None, folder, tmp_path / "state", within=folder)


@pytest.mark.parametrize("char", ["\n", "\u061c", "\u2028", "\u202e"])
def test_a_name_that_breaks_a_line_or_changes_its_direction_is_left_out(tmp_path, source, char):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / f"a{char}b").write_bytes(b"x")
    found = listed(source("folder"))
    assert (found.files, len(found.left_out)) == ((), 1)
    assert refusal(opened, source("folder"), f"a{char}b") == "input_refused"
