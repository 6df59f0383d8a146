"""One execution from request to response; the only place that knows of the sandbox, the channel and the servers."""
