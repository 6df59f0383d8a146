"""Tools of which one needs an approval."""

TOOLS = """
import mcp_bridge

@mcp_bridge.tool
def delete(name: str) -> str:
    return f"deleted {name}"

@mcp_bridge.tool
def look(name: str) -> str:
    return f"saw {name}"
"""

RULES = {"rules": [{"tools": ["local.delete"], "effect": "approve", "reason": "deletions are final"}]}
