"""Scripts in JavaScript: Node runs them, by our modules in JavaScript; this package's Python stands between it and the host."""
