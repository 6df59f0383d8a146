"""Fixtures that the test modules share: real servers and real containers."""

import gc
import signal

import forked_commands
import pytest
from _pytest.nodeid import NodeId
from hypothesis import HealthCheck, settings
from ledger_looks import verify_ledgers

# A shell has its background jobs ignore SIGINT, and `nohup` SIGHUP; what a process ignores, its children ignore: those
# that tests interrupt.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# How long an example takes, and to make it, says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("any machine")

forked_commands.install()

pytest_plugins = [
    "server_fixtures",
    "sandbox_fixtures",
    "package_index",
    "cli_fixtures",
    "bridge_fixtures",
    "execution_fixtures",
    "arena_fixtures",
    "ui_fixtures",
    "crash_fixtures",
    "peer_fixtures",
    "program_tools",
    "mcp_clients",
]


@pytest.hookimpl(wrapper=True)
def pytest_collection_finish(session):
    """A group of tests runs in one worker (`--dist loadgroup`): what is told to the scheduler has the group behind an @.

    pytest-xdist 3.8 writes it to `_nodeid`, which pytest 9.2 has replaced by `_id`: each test would be a group of its own.
    Nothing else is to see it, or `--last-failed` wouldn't find a test of a group.
    """
    # All tests and their modules are there until the end: no garbage collection has to look at them again.
    gc.collect()
    gc.freeze()
    names = {}
    if hasattr(session.config, "workerinput"):
        for item in session.items:
            if (group := item.get_closest_marker("xdist_group")) is not None:
                names[item] = item._id
                item._id = NodeId.parse(f"{item.nodeid}@{group.args[0]}")
    try:
        return (yield)
    finally:
        for item, name in names.items():
            item._id = name


@pytest.fixture
def whole_ledgers(tmp_path):
    """Whatever a test has a bridge do, its ledger verifies afterwards, and each entry is read as what was written.

    For the modules that work with whole bridges.
    """
    yield
    verify_ledgers(tmp_path)
