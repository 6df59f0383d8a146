"""Idempotency: one execution for each key, however often it is requested."""
