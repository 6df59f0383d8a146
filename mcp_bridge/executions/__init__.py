"""Durable executions of scripts and programs: how they start, are stored, suspended, resumed, settled and replayed."""
