"""Ranked search for tools: words and their forms, typing errors, other people's words for the same, and meaning."""
