"""The MCP server: the tool `run_python` on standard input and output; and the HTTP servers of viewer and witness."""
