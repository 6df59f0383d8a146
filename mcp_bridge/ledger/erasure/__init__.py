"""Erasure in a ledger's file: which executions may be erased, and what is destroyed of them or of a single value."""
