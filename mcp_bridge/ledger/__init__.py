"""What happened, and what goes on later: entries in the order of events, programs kept, executions suspended."""
