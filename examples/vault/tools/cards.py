"""A payment provider that talks too much. What it was given is in charges.jsonl, in the folder that SHOP_DIR names."""

import base64
import hashlib
import json
import os
from pathlib import Path

import mcp_bridge


def _folder() -> Path:
    return Path(os.environ.get("SHOP_DIR", "."))


@mcp_bridge.tool(capabilities=["money.capture"])
def charge_card(card: str, amount: float, shop: str) -> dict[str, str]:
    """Charge a card."""
    with (_folder() / "charges.jsonl").open("a") as file:
        file.write(json.dumps({"card": hashlib.sha256(card.encode()).hexdigest(), "amount": amount}) + "\n")
    # As providers do: the number comes back, as it is and inside of a token.
    token = base64.b64encode(json.dumps({"pan": card}).encode()).decode()
    return {"message": f"{amount:g} for {shop}, by card {card}", "token": token}


@mcp_bridge.tool
def write_note(text: str) -> str:
    """Keep a note."""
    with (_folder() / "notes.txt").open("a") as file:
        file.write(text + "\n")
    return text
