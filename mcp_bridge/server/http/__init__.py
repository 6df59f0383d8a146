"""MCP over streamable HTTP: who a request is from, and what it is answered."""
