"""Durable executions of scripts and programs: how they begin, are kept, suspended, resumed, settled and replayed."""
