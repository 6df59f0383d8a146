"""The answer of an execution for an MCP client: its text, what it displays, and its record."""
