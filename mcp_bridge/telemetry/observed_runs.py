"""A run of an execution, as logs, traces and metrics see it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from mcp_bridge.telemetry import measurements, tracing
from mcp_bridge.telemetry.execution_context import execution_scope

if TYPE_CHECKING:
    from collections.abc import Iterator


class ObservedRun:
    """A run under way.

    Attributes:
        status: How it has ended; `interrupted` until that is known.
        is_counted: Whether it is measured.
    """

    def __init__(self) -> None:
        self.status = "interrupted"
        self.is_counted = True


@contextmanager
def observed_run(kind: Literal["script", "program"], execution: str, principal: str) -> Iterator[ObservedRun]:
    """Log, trace and measure a run meanwhile. Its status is set by the caller before the end.

    Args:
        kind: What is run.
        execution: The execution's id.
        principal: Whose it is.
    """
    run, began = ObservedRun(), time.monotonic()
    with execution_scope(execution, principal):
        try:
            with tracing.span(f"run {kind}") as span:
                try:
                    yield run
                finally:
                    if span is not None:
                        span.set_attribute("mcp_bridge.status", run.status)
        finally:
            if run.is_counted:
                measurements.run_ended(kind, principal, run.status, time.monotonic() - began)


class ObservedProgram:
    """A program that a sandbox drives, in requests of its own: `meanwhile` is each of them, and `end` comes once.

    Args:
        execution: The execution's id.
        principal: Whose it is.
    """

    def __init__(self, execution: str, principal: str) -> None:
        self._execution, self._principal = execution, principal
        self._began = time.monotonic()
        with execution_scope(execution, principal):
            self._span = tracing.begin("run program")

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        """Log and trace what is done for the program meanwhile."""
        with execution_scope(self._execution, self._principal), tracing.within(self._span):
            yield

    def end(self, status: str) -> None:
        """Measure the run, which has ended or is suspended.

        Args:
            status: As the record has it; `interrupted` if there is none.
        """
        if self._span is not None:
            self._span.set_attribute("mcp_bridge.status", status)
            self._span.end()
        measurements.run_ended("program", self._principal, status, time.monotonic() - self._began)
