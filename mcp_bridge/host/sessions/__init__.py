"""The containers of sessions."""
