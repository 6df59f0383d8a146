"""A witness for other logs (C2SP tlog-witness)."""
