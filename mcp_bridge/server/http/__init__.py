"""MCP over streamable HTTP: the application, its sessions, what bounds clients; metrics."""
