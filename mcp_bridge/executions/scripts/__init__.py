"""Scripts as durable executions: their call history, and each run of them."""
