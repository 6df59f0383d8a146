"""Changes of configuration files, the clients' and our own: shown first, backed up, written whole, and taken back."""
