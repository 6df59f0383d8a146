"""What people see of executions: timelines, listings, graphs. No presentation, no I/O."""
