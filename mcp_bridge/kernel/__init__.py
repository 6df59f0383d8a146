"""Programs and the machine that runs them: a pure function from state and event to state and effects.

Runs inside the container, where it drives, and again on the host, where it decides. Standard library only; no I/O, no
clock, no randomness: time, ids and outcomes come in as data.

`program` makes steps (`steps`) of untrusted data (`format`); `machine` has the tables of all transitions, `interpreter`
what they do to the programs and steps under way (`level`); `state` writes all of it as bytes.
"""
