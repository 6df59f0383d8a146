"""What holds a ledger against itself, and what is counted in it."""
