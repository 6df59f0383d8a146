"""The MCP surface: one tool, `run_python`, on standard input and output."""
