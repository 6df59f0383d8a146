"""A warehouse. What has left it is in shipped.txt, in the folder that SHOP_DIR names."""

import os
from pathlib import Path

import mcp_bridge


@mcp_bridge.tool(read_only=True, thread=False)
def weigh(order: int) -> int:
    """An order's weight in grams."""
    if order % 250 == 0:
        raise LookupError(f"there is no order {order}")
    return order * 7919 % 25_000


@mcp_bridge.tool
def ship(order: int) -> str:
    """Send an order off."""
    with Path(os.environ.get("SHOP_DIR", "."), "shipped.txt").open("a") as file:
        file.write(f"{order}\n")
    return "shipped"


@mcp_bridge.tool(thread=False)
def hold(order: int, why: str) -> str:
    """Set an order aside."""
    del order, why
    return "held"
