"""Pay an order, and ask for the same again: it is paid once.

SHOP_DIR=/tmp mcp-bridge --config examples/payment/mcp-bridge.toml run examples/payment/pay.py
"""

from mcp import programs

trace = await programs.run("payment_pipeline", idempotency_key="order-abc-123")
print(trace.status, [step.id for step in trace.steps])

again = await programs.run("payment_pipeline", idempotency_key="order-abc-123")
print("paid once" if again.trace_id == trace.trace_id else "paid twice")
again.output
