"""Run one program for each of a thousand orders, all at once, and print four lines about it.

SHOP_DIR=/tmp mcp-bridge --config examples/thousand/mcp-bridge.toml run examples/thousand/ship.py
"""

import asyncio
from collections import Counter

from mcp import programs

traces = await asyncio.gather(*(programs.run("parcel", {"order": order}) for order in range(1, 1001)))

for outcome, count in Counter(trace.output if trace.ok else trace.status for trace in traces).most_common():
    print(f"{count:5} {outcome}")
print("  why:", "; ".join(sorted({trace.error for trace in traces if trace.error})))
