"""Container engines, and the images that they run: nothing here knows what runs inside."""
