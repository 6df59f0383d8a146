"""Scripts that are run again: what they had looked up and called, and whether they fail as they did."""
