"""Fixtures that the test modules share: real servers and real containers."""

pytest_plugins = [
    "server_fixtures",
    "sandbox_fixtures",
    "bridge_fixtures",
    "execution_fixtures",
    "cli_fixtures",
    "ui_fixtures",
    "crash_fixtures",
]
