"""What to write instead, after a script has failed."""
