"""One supervised MCP client for each server."""
