"""A script that is run again from its record: what it is told, and whether it does the same."""
