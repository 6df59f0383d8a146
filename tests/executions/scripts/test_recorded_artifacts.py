"""The ledger has the hash of each artifact: what was changed since its execution ended is found, and isn't given."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time

import anyio.to_thread
import pytest
from cli_fixtures import run_in_thread
from execution_fixtures import lines

from mcp_bridge.cli import exit_statuses
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import artifacts
from mcp_bridge.executions.artifacts import ArtifactWriter, Files
from mcp_bridge.ledger.keys.signing_key_files import known_vkey, own_signer
from mcp_bridge.ledger.log.payloads import ScriptEnd, decoded
from mcp_bridge.ledger.proofs.notes import Checkpoint, sign_checkpoint
from mcp_bridge.views.timeline import timeline

SCRIPT = "open('/tmp/r', 'w').write('paid: 5')\nprint(artifact('/tmp/r', 'r.txt'))"
CONTENT = b"paid: 5"
HASH = hashlib.sha256(CONTENT).hexdigest()
EXECUTION = "0" * 16


@contextlib.asynccontextmanager
async def kept(sandboxes, tmp_path):
    """A bridge whose execution has ended and kept an artifact: the bridge, the URI, and the file."""
    async with sandboxes.open(state_dir=tmp_path) as bridge:
        record = await bridge.run(SCRIPT)
        (uri,) = lines(record)
        yield bridge, uri, tmp_path / "files" / record.execution / "r.txt"


def verified(state_dir, *arguments):
    return run_in_thread(None, "audit", "verify", *arguments, env={"MCP_BRIDGE_STATE_DIR": str(state_dir)})


async def test_the_end_of_an_execution_records_its_artifacts(sandboxes, tmp_path):
    async with kept(sandboxes, tmp_path) as (bridge, uri, file):
        entries = await bridge.programs.recorder.read(file.parent.name)
        end = decoded(entries[-1].entry)
        assert isinstance(end, ScriptEnd)
        assert end.artifacts == ({"name": "r.txt", "size": len(CONTENT), "sha256": HASH},)
        assert timeline(entries)[-1].value == {"artifacts": list(end.artifacts)}
        read = await bridge.own_files.read(uri)
        assert (read.data, read.sha256, read.is_recorded) == (CONTENT, HASH, True)
        (listed,) = (await bridge.own_files.artifacts()).rows
        assert listed.sha256 == HASH


async def test_a_stored_answer_has_the_path_of_an_artifact_in_the_state_directory_of_now(sandboxes, tmp_path):
    before, now = tmp_path / "before", tmp_path / "now"
    async with sandboxes.open(state_dir=before) as bridge:
        ran = await bridge.run(SCRIPT, key="once")
    # As a restored backup, too.
    before.rename(now)
    async with sandboxes.open(state_dir=now) as bridge:
        record = await bridge.run(SCRIPT, key="once")
    assert record.is_previous_result
    assert record.artifacts == [ran.artifacts[0] | {"path": str(now / "files" / ran.execution / "r.txt")}]


async def test_a_changed_artifact_is_not_given_and_its_recorded_hash_is_listed(sandboxes, tmp_path):
    async with kept(sandboxes, tmp_path) as (bridge, uri, file):
        file.write_bytes(b"paid: 9")
        with pytest.raises(BridgeError, match=uri) as refused:
            await bridge.own_files.read(uri)
        assert refused.value.code == "artifact_changed"
        (listed,) = (await bridge.own_files.artifacts()).rows
        assert listed.sha256 == HASH


async def test_verification_of_the_ledger_compares_the_artifacts_that_are_there(sandboxes, tmp_path):
    async with kept(sandboxes, tmp_path) as (bridge, uri, file):
        told = await anyio.to_thread.run_sync(verified, bridge.settings.state_dir)
        assert (told.code, "1 artifacts are as they were" in told.out + told.err) == (exit_statuses.OK, True), told
        assert (await anyio.to_thread.run_sync(verified, bridge.settings.state_dir, "--json")).json["artifacts"] == 1
        file.write_bytes(b"paid: 9")
        told = await anyio.to_thread.run_sync(verified, bridge.settings.state_dir)
        assert told.code == exit_statuses.FAILED
        assert "artifact_changed" in told.err
        assert uri in told.err
        # A link to the very same content isn't the file that was kept.
        shutil.copy(file, file.parents[2] / "elsewhere")
        (file.parents[2] / "elsewhere").write_bytes(CONTENT)
        file.unlink()
        file.symlink_to(file.parents[2] / "elsewhere")
        assert "artifact_changed" in (await anyio.to_thread.run_sync(verified, bridge.settings.state_dir)).err
        # What is gone was removed by age, or by a person.
        file.unlink()
        told = await anyio.to_thread.run_sync(verified, bridge.settings.state_dir, "--json")
        assert (told.code, told.json["artifacts"]) == (exit_statuses.OK, 0)


async def test_what_no_end_has_recorded_is_given_and_said_to_be_unrecorded(sandboxes, tmp_path):
    async with kept(sandboxes, tmp_path) as (bridge, _, file):
        ArtifactWriter(bridge.files, file.parent.name, 100).write("later.txt", b"x", first=True, last=True)
        read = await bridge.own_files.read(f"artifact://{file.parent.name}/later.txt")
        assert (read.data, read.is_recorded) == (b"x", False)
        # An execution that hasn't ended, or that no ledger knows.
        ArtifactWriter(bridge.files, EXECUTION, 100).write("a", b"x", first=True, last=True)
        assert not (await bridge.own_files.read(f"artifact://{EXECUTION}/a")).is_recorded


@pytest.mark.parametrize("odd", ["link", "fifo", "folder", "linked folder"])
def test_what_is_no_regular_file_is_no_artifact_and_nobody_waits_for_it(tmp_path, odd):
    files = Files(tmp_path)
    for folder in (files.directory(EXECUTION), tmp_path / "outputs" / EXECUTION):
        folder.mkdir(parents=True, exist_ok=True)
        (secret := tmp_path / "secret").write_bytes(b"secret")
        for name in ("a", "stdout.txt"):
            match odd:
                case "link":
                    (folder / name).symlink_to(secret)
                case "fifo":
                    os.mkfifo(folder / name)
                case "folder":
                    (folder / name).mkdir()
                case _:
                    (folder / name).write_bytes(b"secret")
        if odd == "linked folder":
            folder.rename(tmp_path / f"{folder.parent.name} elsewhere")
            folder.symlink_to(tmp_path / f"{folder.parent.name} elsewhere")
    with pytest.raises(BridgeError, match="no artifact"):
        files.read(f"artifact://{EXECUTION}/a")
    with pytest.raises(BridgeError, match="no stored output"):
        files.read_output(EXECUTION, "stdout", 0, 10)
    found, _ = files.newest([(float("inf"), EXECUTION)], None, [])
    assert found == []
    files.recount()


@pytest.mark.parametrize("odd", ["link", "fifo"])
def test_nobody_waits_for_what_was_put_in_the_place_of_a_written_artifact(tmp_path, odd):
    writer = ArtifactWriter(Files(tmp_path), EXECUTION, 100)
    writer.write("a", b"x", first=True, last=True)
    path = tmp_path / "files" / EXECUTION / "a"
    path.unlink()
    if odd == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BridgeError, match="can't be written"):
        writer.sync()


@pytest.mark.parametrize("way", ["remove", "sweep"])
@pytest.mark.parametrize("odd", ["link", "file"])
def test_what_is_in_the_place_of_a_folder_is_removed_and_nothing_behind_it(tmp_path, way, odd):
    files = Files(tmp_path, 1 << 20)
    other = "1" * 16
    ArtifactWriter(files, other, 100).write("a", b"x", first=True, last=True)
    (behind := tmp_path / "behind").mkdir()
    for name in ("a", ".part"):
        (behind / name).write_bytes(b"somebody's")
        os.utime(behind / name, (0, 0))
    for root in ("files", "outputs"):
        (tmp_path / root).mkdir(exist_ok=True)
        place = tmp_path / root / EXECUTION
        place.symlink_to(behind) if odd == "link" else place.write_bytes(b"x")
    used = files.used()
    if way == "remove":
        files.remove(EXECUTION)
    else:
        files.sweep(time.time() + 1, wanted=[other])
    assert not any(os.path.lexists(tmp_path / root / EXECUTION) for root in ("files", "outputs"))
    assert sorted(path.name for path in behind.iterdir()) == [".part", "a"]
    assert files.used() == used


async def test_a_conflict_of_the_log_is_told_before_a_changed_artifact(sandboxes, tmp_path):
    async with kept(sandboxes, tmp_path) as (bridge, _, file):
        file.write_bytes(b"paid: 9")
        notes, config = tmp_path / "notes.txt", tmp_path / "config.toml"
        config.write_text(f"[[ledger.publish]]\nfile = {json.dumps(str(notes))}\n")
        vkey = known_vkey(bridge.settings.state_dir / "ledger.sqlite")
        signer = own_signer(bridge.settings.state_dir, vkey.partition("+")[0], vkey)
        # A checkpoint of the log's own key, of more entries than there are.
        notes.write_text(sign_checkpoint(Checkpoint(signer.name, 1000, bytes(32)), signer))

        def verify():
            env = {"MCP_BRIDGE_STATE_DIR": str(bridge.settings.state_dir)}
            return run_in_thread(config, "audit", "verify", env=env)

        told = await anyio.to_thread.run_sync(verify)
        assert (told.code, "publish_conflict" in told.err, "artifact_changed" in told.err) == (1, True, False), told
        notes.write_bytes(b"")
        told = await anyio.to_thread.run_sync(verify)
        assert (told.code, "artifact_changed" in told.err) == (exit_statuses.FAILED, True), told


def test_what_cannot_be_read_is_told_from_what_was_changed(tmp_path, monkeypatch):
    files = Files(tmp_path)
    for name in ("a", "b"):
        ArtifactWriter(files, EXECUTION, 100).write(name, CONTENT, first=True, last=True)
    recorded = {EXECUTION: {"a": HASH, "b": HASH, "gone": HASH}}
    assert files.compared(recorded) == (2, [], {})
    opened = artifacts.opened_regular

    # Root may read what nobody else may, and a disk fails seldom.
    def failing(name, folder):
        if name == "b":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(name, folder)

    monkeypatch.setattr(artifacts, "opened_regular", failing)
    compared = files.compared(recorded)
    assert compared == (1, [], {f"artifact://{EXECUTION}/b": "Input/output error"})
    with pytest.raises(BridgeError, match="Input/output error") as refused:
        compared.require_same()
    assert refused.value.code == "artifact_unreadable"
    (tmp_path / "files" / EXECUTION / "a").write_bytes(b"paid: 9")
    with pytest.raises(BridgeError, match="/a") as refused:
        files.compared(recorded).require_same()
    assert refused.value.code == "artifact_changed"
