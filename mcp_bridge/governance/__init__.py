"""What the operator has laid down: policy, tools, programs, names, the environment of servers."""
