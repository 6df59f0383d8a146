"""TOML of the operator: read, decoded strictly, and named by its lines in errors."""
