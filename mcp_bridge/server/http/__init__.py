"""MCP over streamable HTTP: the application, its sessions, who a request is from, what bounds clients; metrics."""
