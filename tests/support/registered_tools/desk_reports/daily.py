from desk_payments import Currency

import mcp_bridge


@mcp_bridge.tool(thread=False)
def takings(currency: Currency) -> float:
    """What came in today."""
    return {Currency.EUR: 10.0, Currency.USD: 5.0}[currency]
