"""Waits of scripts: for a time and for an event; sending events, and resuming when the time has come."""
