"""A purchasing office. What it has done is in orders.jsonl, in the folder that SHOP_DIR names."""

import json
import os
from pathlib import Path

import mcp_bridge

PRICES = {"chair": 120.0, "lathe": 4800.0}


def _note(**done: object) -> None:
    with Path(os.environ.get("SHOP_DIR", "."), "orders.jsonl").open("a") as file:
        file.write(json.dumps(done) + "\n")


@mcp_bridge.tool(read_only=True)
def get_quote(item: str, count: int) -> dict[str, object]:
    """What something costs, and where."""
    return {"supplier": "Dovetail & Sons", "total": PRICES[item] * count}


@mcp_bridge.tool
def place_order(item: str, count: int, total: float) -> str:
    """Buy it."""
    _note(ordered=item, count=count, total=total)
    return f"ordered {count} {item}"


@mcp_bridge.tool
def decline_order(item: str) -> str:
    """Tell who asked that it isn't bought."""
    _note(declined=item)
    return f"no {item} this time"
