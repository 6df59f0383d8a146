"""Which Node comes into an image."""

import pytest

from mcp_bridge.sandbox.image import node


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    real = tmp_path / "versions" / "node"
    real.parent.mkdir()
    real.write_bytes(b"\x7fELF")

    def put(told):
        shim = tmp_path / "bin" / "node"
        shim.parent.mkdir(exist_ok=True)
        shim.write_text(f"#!/bin/sh\necho '{told.format(real=real)}'\n")
        shim.chmod(0o755)
        monkeypatch.setenv("PATH", f"{shim.parent}:/usr/bin:/bin")
        node._behind.cache_clear()
        return real

    yield put
    node._behind.cache_clear()


def test_it_is_the_executable_behind_a_version_managers_script(on_path):
    real = on_path("v24.1.0{real}")
    assert node._own_node() == real
    assert node.node_identity()[0] == str(real)
    real.unlink()
    assert node._own_node() is None


@pytest.mark.parametrize("told", ["v22.14.9{real}", "v24.1.0/nowhere/node", "no version is set", "", "24.1.0{real}"])
def test_one_that_is_too_old_or_says_nothing_of_use_is_none(on_path, told):
    on_path(told)
    assert node._own_node() is None
