"""What operators watch a bridge by: logs, traces and metrics."""
