"""The SQLite file: its tables, its connections, its keys, and what is kept in it beside the log."""
