"""Files that come into the sandbox and go out of it: the operator's inputs, and what is left in /workspace/out."""
