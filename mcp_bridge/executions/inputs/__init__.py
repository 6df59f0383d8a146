"""What executions are given of the operator's files."""
