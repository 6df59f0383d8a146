"""A till. Its program passes no arguments: the till knows which order is before it.

What it has done is in payments.jsonl, in the folder that SHOP_DIR names.
"""

import json
import os
from pathlib import Path

import mcp_bridge

ORDER = {"order": "abc-123", "amount": 42.0, "currency": "EUR"}
MOST = 500


def _done() -> Path:
    return Path(os.environ.get("SHOP_DIR", "."), "payments.jsonl")


def _note(what: str) -> None:
    with _done().open("a") as file:
        file.write(json.dumps({"did": what} | ORDER) + "\n")


@mcp_bridge.tool(read_only=True)
def validate_amount() -> dict[str, object]:
    """Whether the order's amount can be paid."""
    if not 0 < ORDER["amount"] <= MOST:
        raise ValueError(f"{ORDER['amount']} can't be paid here")
    return ORDER


@mcp_bridge.tool(capabilities=["money.reserve"])
def reserve_funds() -> str:
    """Reserve the order's amount."""
    _note("reserve")
    return "reserved"


@mcp_bridge.tool(capabilities=["money.capture"])
def capture_payment() -> str:
    """Take the reserved amount."""
    _note("capture")
    return "captured"


@mcp_bridge.tool(capabilities=["mail.send"])
def send_receipt() -> str:
    """Send the customer a receipt."""
    _note("receipt")
    return f"receipt for {ORDER['amount']:.2f} {ORDER['currency']} sent"


@mcp_bridge.tool(read_only=True)
def list_payments() -> list[str]:
    """What the till has done so far."""
    return [json.loads(line)["did"] for line in _done().read_text().splitlines()] if _done().exists() else []
