"""Checkpoints sent elsewhere, so that others can see that the log only grows."""
