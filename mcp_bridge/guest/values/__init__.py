"""How values go between a script and the channel: arguments, results, JSON."""
