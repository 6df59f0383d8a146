"""MCP over streamable HTTP: the application, its sessions, who a request is from, and what bounds its clients."""
