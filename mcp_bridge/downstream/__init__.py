"""The servers behind the bridge: found in configuration, supervised, listed, searched, described.

Light to import: the MCP SDK, which costs more than a second, is loaded when the first server is started.
"""
