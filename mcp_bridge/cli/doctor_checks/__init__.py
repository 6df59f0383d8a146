"""What `mcp-bridge doctor` looks at besides containers and servers."""
