"""An operator's tools with outcomes to refer to, which note each call."""

import asyncio
import hashlib
import json
import os
from pathlib import Path

import mcp_bridge


def _note(tool, **arguments):
    with Path(os.environ["SHOP_CALLS"]).open("a") as file:
        file.write(json.dumps([tool, arguments], sort_keys=True) + "\n")


def _number(text):
    return int(hashlib.sha256(text.encode()).hexdigest()[:6], 16) + 100


@mcp_bridge.tool
async def find_order(number: int) -> dict:
    _note("find_order", number=number)
    name = f"Customer{_number(f'c{number}')}"
    items = [{"code": f"code-{_number(f'{number}.{at}')}", "count": at + 1} for at in range(number % 3 + 2)]
    return {
        "number": number,
        "customer": {"name": name, "id": _number(name)},
        "total": _number(str(number)),
        "items": items,
    }


@mcp_bridge.tool
async def stock(code: str) -> dict:
    _note("stock", code=code)
    return {"code": code, "left": _number(code)}


@mcp_bridge.tool
async def history(customer_id: int) -> str:
    _note("history", customer_id=customer_id)
    return json.dumps({"orders": [customer_id + 1, customer_id + 2], "note": f"since-{customer_id}"})


@mcp_bridge.tool
async def send(to: str, text: str, about: dict | None = None) -> str:
    _note("send", to=to, text=text, about=about)
    return f"sent-{_number(to + text)}"


@mcp_bridge.tool
async def weigh(code: str) -> int:
    _note("weigh", code=code)
    if code.endswith(("1", "2", "3")):
        raise ValueError(f"{code} is not on the scales")
    return _number(code)


_met = []
_all_met = asyncio.Event()


@mcp_bridge.tool
async def meet(name: str, of: int) -> str:
    """Returns when as many calls are under way."""
    _met.append(name)
    if len(_met) == of:
        _all_met.set()
    await _all_met.wait()
    return f"{name} has met the others"
