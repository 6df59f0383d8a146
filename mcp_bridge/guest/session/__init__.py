"""Inside the container of a session: its cells, and its randomness."""
