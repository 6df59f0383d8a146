"""Waits of a script: for a time, and for an event. Imported by the first of them."""
