"""Fixtures that the test modules share: real servers and real containers."""

import fcntl
import json
import os
import signal

import pytest
from hypothesis import HealthCheck, settings
from ledger_looks import look

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.keys.master_key_sources import FILE_NAME as MASTER_FILE
from mcp_bridge.ledger.keys.signing_key_files import KEY_FILE
from mcp_bridge.ledger.log.payloads import Damaged, Unknown, decoded
from mcp_bridge.ledger.storage.schema import FILE_NAME

# A shell has its background jobs ignore SIGINT, and what a process ignores, its children ignore: those that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes, and to make it, says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("any machine")

pytest_plugins = [
    "server_fixtures",
    "sandbox_fixtures",
    "package_index",
    "bridge_fixtures",
    "execution_fixtures",
    "arena_fixtures",
    "cli_fixtures",
    "ui_fixtures",
    "crash_fixtures",
    "peer_fixtures",
    "program_tools",
    "mcp_clients",
]


@pytest.fixture(autouse=True)
def one_builder_at_a_time(request, tmp_path_factory):
    """Tests of the group `images` run one after the other, whichever worker has them: a build looks at every image.

    pytest-xdist 3.8 means to keep a group in one worker, and with pytest 9.2 it doesn't.
    """
    marker = request.node.get_closest_marker("xdist_group")
    if marker is None or marker.args != ("images",):
        yield
        return
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def whole_ledgers(tmp_path):
    """Whatever a test has a bridge do, its ledger verifies afterwards, and each entry is read as what was written.

    For the modules that work with whole bridges.
    """
    yield
    for file in tmp_path.rglob(FILE_NAME):
        if (file.parent / KEY_FILE).exists() and (file.parent / MASTER_FILE).exists():
            try:
                for row in look(file.parent).rows:
                    said = decoded(row.entry)
                    assert not isinstance(said, Damaged | Unknown), f"nobody knows what {row} says"
                    assert json.dumps(said.encode()) == json.dumps(row.entry.payload), f"{row} is read as {said}"
            except (BridgeError, AssertionError, ValueError) as exc:
                pytest.fail(f"{file} doesn't verify: {exc}", pytrace=False)
