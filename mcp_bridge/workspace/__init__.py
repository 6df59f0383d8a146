"""Folders that the bridge is started in: what comes with them, and whether the user has trusted it."""
