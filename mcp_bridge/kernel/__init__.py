"""Programs and the machine that runs them: a pure function from state and event to state and effects.

Runs inside the container, where it drives, and again on the host, where it decides. Standard library only; no I/O, no
clock, no randomness: time, ids and outcomes come in as data.

`language` makes steps (`step_types`) of untrusted data; `machine` has the tables of all transitions, `step_execution`
and `step_groups` what they do to programs and steps (`program_flow`) and effects (`awaited_effects`) under way;
`state` writes all of it as bytes.
"""
