"""MCP over streamable HTTP: the application, its sessions, and what bounds its clients."""
