"""Whether an entry is of the bridge itself: by its command line, by its address, and once it is connected to."""
