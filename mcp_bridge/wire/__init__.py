"""The channel between host and guest: JSON-RPC 2.0, one message a line (sans-IO, used by both sides).

Rule 1: nothing here reads, writes, waits or asks for the time; bytes come in and typed messages go out.
Rule 2: nothing here imports outside the standard library, nor anything slow: it is on the guest's start path
(records are `annotations.NamedTuple`s: `dataclasses` takes as long to import as the rest of the guest, and `typing` a
fifth of it).
Rule 3: every method of the channel is defined in `messages` with its parameters, and nowhere else.
"""
