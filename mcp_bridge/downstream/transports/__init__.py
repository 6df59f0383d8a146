"""How bytes go to an MCP server and back: a child process, streamable HTTP, server-sent events."""
