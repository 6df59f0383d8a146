"""The runtime inside the container: standard library only, sent there as the first bytes on its standard input.

Nothing here is trusted by the host. What it is slow to import costs every start of a sandbox, so the heavy modules
(`asyncio`, `inspect`, `traceback`) are imported where they are first needed.
"""
