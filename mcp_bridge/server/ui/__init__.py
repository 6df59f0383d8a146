"""The trace viewer: executions with their proofs, and open approvals, in a browser on the same machine."""
