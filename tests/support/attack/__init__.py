"""Attacks on the gate by the ten thousand, judged by what reached the servers.

    python -m tests.support.attack --cases 50000 --seed 7

- `arguments`: what callers pass, with references of every kind in it.
- `generator`: cases: listings, a policy, and attacks by every path that a call can take.
- `recording_server`, `registered/`: the tools, which write down what reaches them.
- `harness`: a bridge, its servers, its ledger and a person, for as many cases as are wanted.
- `reference`: what the policy says of a call: independent of the code that it judges, slow and obvious.
- `judge`: what reached the tools, what the person was shown and what is in the ledger, against the reference.
- `removed`: each mending, taken out: the suite has to find it.

A case is data that follows from a seed and a number, so `--seed S --only N` does it again.
"""
