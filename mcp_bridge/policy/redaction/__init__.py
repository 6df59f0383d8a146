"""What is sensitive in a value, and the value without it."""
