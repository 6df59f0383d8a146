"""Ask for a lathe. Nobody is there to agree, so the program is suspended, and the script ends.

SHOP_DIR=/tmp mcp-bridge --config examples/approval/mcp-bridge.toml run examples/approval/request.py
"""

from mcp import programs

trace = await programs.run("purchase", {"item": "lathe", "count": 1})
print(trace.status, "at", ", ".join(row["step"] for row in trace.waiting))
print(trace.trace_id)
