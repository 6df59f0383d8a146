"""Backups of a state directory: written, encrypted, restored."""
