"""The log itself: entries, their encoding, who appends and who reads."""
