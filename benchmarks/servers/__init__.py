"""Servers that the benchmarks talk to, each run as `python -m benchmarks.servers.NAME` on stdio."""
