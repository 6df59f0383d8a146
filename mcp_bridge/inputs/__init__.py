"""The operator's files that scripts are given to read: configured, listed, hashed, read."""
