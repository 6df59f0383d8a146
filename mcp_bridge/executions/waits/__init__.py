"""Waits of scripts: for a time and for an event; who sends events, and who goes on when the time has come."""
