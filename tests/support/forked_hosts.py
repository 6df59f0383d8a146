"""What hosts have in common that are forks of one process."""

import asyncio
import functools
import gc
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcp_bridge.governance.governance import load_governance
from mcp_bridge.host import guest_bundle
from mcp_bridge.registered import registry

USED_FIRST = (
    *("anyio._backends._asyncio", "anyio.streams.memory", "encodings.ascii", "pwd"),
    *(
        "mcp_bridge.gate.gate",
        "mcp_bridge.gate.allowed_tools",
        "mcp_bridge.gate.execution_values",
        "mcp_bridge.executions.scripts.lifecycle",
    ),
    *("mcp_bridge.policy.redaction.json_texts", "mcp_bridge.policy.redaction.projection"),
    *("mcp_bridge.registered.current_call", "mcp_bridge.host.request_handlers"),
    *("mcp_bridge.sandbox.open_driver", "mcp_bridge.sandbox.image.image", "mcp_bridge.sandbox.engine_choice"),
    *("mcp_bridge.sandbox.isolation_probe", "mcp_bridge.sandbox.oci.detection", "mcp_bridge.sandbox.oci.engine"),
)
"""Modules that a bridge imports when it first needs them."""


def load_everything(tables: Mapping[str, Any]) -> None:
    """Load and compute what each fork would by itself: most of what a host takes, if it lives for one script.

    Args:
        tables: The configuration of the hosts, whose tools are compiled here.
    """
    for name in USED_FIRST:
        importlib.import_module(name)
    for javascript in (False, True):
        guest_bundle.bundle(guest_bundle.HOST_MAGIC, javascript=javascript)
    registry.RegisteredTool = functools.cache(registry.RegisteredTool)
    load_governance(tables, None, Path.cwd(), Path.cwd())
    asyncio.run(asyncio.sleep(0))
    # The collector would write to every object that is shared with the forks.
    gc.collect()
    gc.freeze()
