"""Pay with a card whose number stays on the host.

COMPANY_CARD=3566002020360505 SHOP_DIR=/tmp mcp-bridge --config examples/vault/mcp-bridge.toml run examples/vault/pay.py
"""

from mcp import ToolError, programs
from mcp.servers import local

trace = await programs.run("card_payment", {"amount": 120, "shop": "Dovetail & Sons"})
print(trace.status)
print(trace.step("charge").output)

try:
    await local.write_note(text="vault://secret/company-card")
except ToolError as exc:
    print(exc.code, "-", exc)
