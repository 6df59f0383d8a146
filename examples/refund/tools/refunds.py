"""The shop's tools. What they have done is in refunds.jsonl, in the folder that SHOP_DIR names."""

import json
import os
from pathlib import Path

import mcp_bridge


def _note(**done: object) -> None:
    with Path(os.environ.get("SHOP_DIR", "."), "refunds.jsonl").open("a") as file:
        file.write(json.dumps(done) + "\n")


@mcp_bridge.tool(capabilities=["money.refund"])
def issue_refund(order: str, amount: float) -> str:
    """Pay a customer's money back."""
    _note(refunded=order, amount=amount)
    return f"refunded {amount:g}"


@mcp_bridge.tool(capabilities=["mail.send"])
def send_rejection(order: str) -> str:
    """Tell a customer that there is no refund."""
    _note(rejected=order)
    return "rejected"
