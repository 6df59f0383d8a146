"""Metrics by the semantic conventions of OpenTelemetry for MCP and GenAI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.telemetry.measurements import MAX_PRINCIPALS, OK, OTHER, BoundedNames

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, Meter

MAX_TOOLS = 1000
"""Tools that are told apart; servers decide how many there are. Later ones are counted together."""

_OPERATION_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
_MODEL_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKEN_BUCKETS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
"""What the conventions want."""

_COMMIT_BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1)


class OtelMetrics:
    """An `Observer` that records histograms.

    Args:
        meter: Makes the instruments.
    """

    def __init__(self, meter: Meter) -> None:
        def seconds(name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
            return meter.create_histogram(name, "s", what, explicit_bucket_boundaries_advisory=buckets)

        self._requests = seconds("mcp.server.operation.duration", "Requests of clients", _OPERATION_BUCKETS)
        self._calls = seconds("mcp.client.operation.duration", "Calls to tools", _OPERATION_BUCKETS)
        self._models = seconds("gen_ai.client.operation.duration", "Questions to models", _MODEL_BUCKETS)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Tokens of questions and answers",
            explicit_bucket_boundaries_advisory=_TOKEN_BUCKETS,
        )
        self._runs = seconds("mcp_bridge.run.duration", "Runs of executions", _OPERATION_BUCKETS)
        self._commits = seconds("mcp_bridge.ledger.commit.duration", "Commits of the ledger", _COMMIT_BUCKETS)
        self._tool, self._principal = BoundedNames(MAX_TOOLS), BoundedNames(MAX_PRINCIPALS)

    def request_ended(self, method: str, tool: str | None, result: str, seconds: float) -> None:
        """As `Observer.request_ended`."""
        attributes = {"mcp.method.name": method} | _failure(result)
        if tool is not None:
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        self._requests.record(seconds, attributes)

    def run_ended(self, kind: str, principal: str, status: str, seconds: float) -> None:
        """As `Observer.run_ended`."""
        attributes = {"mcp_bridge.kind": kind, "mcp_bridge.principal": self._principal(principal)}
        self._runs.record(seconds, attributes | {"mcp_bridge.status": status})

    def call_ended(self, server: str, tool: str, result: str, seconds: float | None) -> None:
        """As `Observer.call_ended`. What was never made is no operation of a client's."""
        if seconds is None:
            return
        attributes = {
            "mcp.method.name": "tools/call",
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": OTHER if self._tool(f"{server}.{tool}") == OTHER else tool,
            "mcp_bridge.server": server,
        }
        self._calls.record(seconds, attributes | _failure(result))

    def model_answered(
        self, provider: str, model: str, result: str, seconds: float, tokens: tuple[int, int] | None
    ) -> None:
        """As `Observer.model_answered`."""
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
        }
        self._models.record(seconds, attributes | _failure(result))
        for kind, count in zip(("input", "output"), tokens or (), strict=False):
            self._tokens.record(count, attributes | {"gen_ai.token.type": kind})

    def committed(self, seconds: float) -> None:
        """As `Observer.committed`."""
        self._commits.record(seconds)


def _failure(result: str) -> dict[str, str]:
    return {} if result == OK else {"error.type": result}
