"""Rules of the operator's policy: read, checked, explained, and decided by."""
