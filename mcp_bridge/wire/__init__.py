"""The channel between host and guest: JSON-RPC 2.0, one message a line (sans-IO, both sides).

Rule 1: nothing here reads, writes, waits or tells the time; bytes come in and typed messages go out.
Rule 2: nothing here imports outside the standard library, nor anything slow: it is on the guest's start path
(records are `NamedTuple`s because `dataclasses` costs as much to import as the rest of the guest together).
Rule 3: every method of the channel, with its parameters, is listed in `messages`, and nowhere else.
"""
