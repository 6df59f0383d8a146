"""The runtime inside the container: standard library only, received as the first bytes on standard input.

The host trusts nothing here. Import time adds to every start of a sandbox, so the slow modules (`asyncio`, `inspect`,
`traceback`) are imported where they are first needed.
"""
