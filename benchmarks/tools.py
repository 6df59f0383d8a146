"""The tools of the programs, registered as an operator's: `modules = ["benchmarks.tools"]`."""

from __future__ import annotations

from typing import Any

import mcp_bridge
from benchmarks.workers import work


@mcp_bridge.tool(thread=False)
def check(amount: float) -> bool:
    return work.check(amount)


@mcp_bridge.tool(thread=False)
def refund(amount: float) -> dict[str, Any]:
    return work.refund(amount)


@mcp_bridge.tool(thread=False)
def notify() -> str:
    return work.notify()


@mcp_bridge.tool(thread=False)
def audit(step: str) -> dict[str, Any]:
    return work.audit(step)


@mcp_bridge.tool
def audit_on_thread(step: str) -> dict[str, Any]:
    return work.audit(step)


TABLES = {"tools": {"modules": ["benchmarks.tools"], "entry_points": False}}
"""The configuration that registers them."""
