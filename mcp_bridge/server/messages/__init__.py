"""Messages of clients: over standard input and output, and those that can't be read."""
