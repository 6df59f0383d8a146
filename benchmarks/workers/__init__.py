"""Processes that the benchmarks measure in: a JSON object a line in, a JSON object a line out.

Each is run as `python -m benchmarks.workers.NAME`, some of them in a peer's environment: of what is ours those import
`work` alone, which is standard library only.
"""
