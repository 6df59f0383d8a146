"""The list of artifacts: clients ask for it again and again, and each hash is computed once."""

import hashlib

import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import artifacts
from mcp_bridge.executions.artifacts import ArtifactWriter, Files

ONE, OTHER = "0" * 16, "1" * 16


@pytest.fixture
def hashed(monkeypatch):
    """The names of the files that were hashed."""
    names, digest = [], Files._digest

    def noted(files, execution, name):
        names.append(name)
        return digest(files, execution, name)

    monkeypatch.setattr(Files, "_digest", noted)
    return names


def listed(files, *executions):
    """A page of what executions have."""
    found, _ = files.newest([(float("inf"), one) for one in executions], None, [])
    return files.hashed(found)


def keep(files, name, data, execution=ONE):
    ArtifactWriter(files, execution, 1 << 20).write(name, data, first=True, last=True)


def test_an_artifact_is_hashed_once_and_again_when_it_is_replaced(tmp_path, hashed):
    files = Files(tmp_path)
    keep(files, "a", b"first")
    keep(files, "a", b"other", OTHER)
    for _ in range(3):
        found = {row.uri: row.sha256 for row in listed(files, ONE, OTHER)}
        assert sorted(found.values()) == sorted(hashlib.sha256(each).hexdigest() for each in (b"first", b"other"))
    assert len(hashed) == 2
    keep(files, "a", b"again")
    assert {row.sha256 for row in listed(files, ONE)} == {hashlib.sha256(b"again").hexdigest()}
    assert len(hashed) == 3


def test_large_artifacts_are_hashed_by_and_by_and_what_is_kept_is_bounded(tmp_path, hashed, monkeypatch):
    monkeypatch.setattr(artifacts, "MAX_HASHED_BYTES", 100)
    monkeypatch.setattr(artifacts, "MAX_DIGESTS", 3)
    files = Files(tmp_path)
    for number in range(4):
        keep(files, f"{number}", bytes(60))
    assert [sum(row.sha256 is not None for row in listed(files, ONE)) for _ in range(3)] == [1, 2, 3]
    assert len(files._digests) <= 3
    assert len(hashed) == 3


@pytest.mark.parametrize("char", ["\n", "\x85", "\u061c", "\u200e", "\u2028", "\u2029", "\u202e", "\u2066", "\ud800"])
def test_no_name_breaks_a_line_or_changes_its_direction(tmp_path, char):
    files = Files(tmp_path)
    with pytest.raises(BridgeError) as caught:
        keep(files, f"report{char}.txt", b"data")
    assert caught.value.code == "bad_artifact_name"
    assert listed(files, ONE) == []
