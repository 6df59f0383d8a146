"""Specs of the faulty server; its modes are in `faulty.py`."""

import sys
from pathlib import Path

from mcp_bridge.downstream.configuration.spec import ServerSpec

FAULTY = Path(__file__).resolve().parent / "faulty.py"


def faulty(mode="plain", value="", *, name="faulty", **settings):
    """The spec of the faulty server in one of its modes."""
    return ServerSpec(name=name, command=sys.executable, args=(str(FAULTY), mode, str(value)), **settings)
