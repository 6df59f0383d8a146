"""What a call may do: the operator's policy, budgets, secrets, and what is shown of values to whom."""
