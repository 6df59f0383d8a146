"""The trace viewer: what happened, with its proofs, and what waits for a person, in a browser on the same machine."""
