"""The downstream MCP servers: discovery in configuration files, supervision, tool listings, search, descriptions.

This package is light to import: the MCP SDK takes more than a second, so it is loaded when the first server starts.
"""
