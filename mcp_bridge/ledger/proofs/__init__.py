"""What proves that something is in the log: the tree, signed notes, proofs, exports."""
