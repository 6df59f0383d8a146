"""Tools of a payment desk, as an operator would write them."""

from __future__ import annotations

import datetime as dt
from enum import Enum
from typing import Annotated, Any, Literal

from _desk_rates import RATES
from pydantic import BaseModel, Field

import mcp_bridge


class Currency(Enum):
    EUR = "EUR"
    USD = "USD"


class Receipt(BaseModel):
    order: str
    amount: float
    currency: Currency
    at: dt.datetime


print("the payment desk is open")


@mcp_bridge.tool(capabilities=("payments.capture",), timeout=5)
async def capture_payment(
    order: Annotated[str, Field(description="The order's number")],
    amount: Annotated[float, Field(gt=0)],
    currency: Currency = Currency.EUR,
    *,
    at: dt.datetime = dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
) -> Receipt:
    """Capture a payment.

    In the currency of the desk.
    """
    return Receipt(order=order, amount=amount * RATES[currency.value], currency=currency, at=at)


@mcp_bridge.tool(read_only=True, idempotent=True)
def check_status(order: str, detail: Literal["short", "long"] = "short") -> dict[str, Any]:
    """Say how an order stands."""
    return {"order": order, "detail": detail, "paid": True}


@mcp_bridge.tool(name="await-clearing")
def await_clearing(order: str) -> Any:
    return mcp_bridge.PENDING
