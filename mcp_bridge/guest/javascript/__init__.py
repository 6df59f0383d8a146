"""Scripts in JavaScript: Node runs them, by modules of ours; the Python here is between it and the host."""
