"""Programs as durable executions: their state machines on the host, and where they come from."""
