"""What happened, and what is to be resumed: entries in the order of events, saved programs, suspended executions."""
