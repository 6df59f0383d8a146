"""What happens in this process, reported to those that count it: the metrics of Prometheus, and those of OpenTelemetry.

Everything told comes from small sets: statuses and error codes, names from the configuration. No argument, result or
name that a client or script has chosen is told. An observer is called on the event loop and on the ledger's writing
thread, and must be quick.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

OK = "ok"
"""The result of what hasn't failed; else it is what `error_type` gives."""


class Observer(Protocol):
    """Counts and measures. All times are in seconds."""

    def request_ended(self, method: str, tool: str | None, result: str, seconds: float) -> None:
        """A client's MCP request was answered; `tool` is the called tool, if it is one of the bridge's."""

    def run_ended(self, kind: str, principal: str, status: str, seconds: float) -> None:
        """A run of an execution ended or was suspended; `kind` is `script` or `program`."""

    def call_ended(self, server: str, tool: str, result: str, seconds: float | None) -> None:
        """A call ended; `seconds` is None for one that the gate has refused, which was never made."""

    def model_answered(
        self, provider: str, model: str, result: str, seconds: float, tokens: tuple[int, int] | None
    ) -> None:
        """A model has answered or failed; `tokens` are those of its input and output, if they are known."""

    def committed(self, seconds: float) -> None:
        """A transaction of the ledger is on disk."""


OTHER = "_OTHER"
"""Stands for names beyond a bound, as in the conventions of OpenTelemetry."""


class BoundedNames:
    """The first names that come, so that metrics don't grow with what others decide.

    Args:
        limit: How many are told apart.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._names: set[str] = set()

    def __call__(self, name: str) -> str:
        """The name, or `OTHER` for one that came too late."""
        if name not in self._names:
            if len(self._names) >= self._limit:
                return OTHER
            self._names.add(name)
        return name


MAX_PRINCIPALS = 200
"""Principals that metrics tell apart."""

_observers: tuple[Observer, ...] = ()

_NOTHING: AbstractContextManager[None] = nullcontext()


def add(observer: Observer) -> None:
    """Tell an observer from now on."""
    global _observers  # noqa: PLW0603 - of the process, as its log is
    _observers = (*_observers, observer)


def remove(observer: Observer) -> None:
    """Tell an observer no more."""
    global _observers  # noqa: PLW0603
    _observers = tuple(each for each in _observers if each is not observer)


def error_type(error: BaseException) -> str:
    """A name of an error's kind, of few: the code of one of ours, `cancelled`, else its class."""
    if isinstance(error, BridgeError):
        return error.code
    kind = type(error).__name__
    return "cancelled" if kind in {"CancelledError", "Cancelled"} else kind


def call(server: str, tool: str) -> AbstractContextManager[None]:
    """Measure a call to a tool as a context manager."""
    return _call(server, tool) if _observers else _NOTHING


@contextmanager
def _call(server: str, tool: str) -> Iterator[None]:
    began, result = time.monotonic(), OK
    try:
        yield
    except BaseException as exc:
        result = error_type(exc)
        raise
    finally:
        seconds = time.monotonic() - began
        for observer in _observers:
            observer.call_ended(server, tool, result, seconds)


def call_refused(server: str, tool: str, error: BaseException) -> None:
    """Count a call that the gate has refused."""
    for observer in _observers:
        observer.call_ended(server, tool, error_type(error), None)


def request_ended(method: str, tool: str | None, result: str, seconds: float) -> None:
    """As `Observer.request_ended`."""
    for observer in _observers:
        observer.request_ended(method, tool, result, seconds)


def run_ended(kind: str, principal: str, status: str, seconds: float) -> None:
    """As `Observer.run_ended`."""
    for observer in _observers:
        observer.run_ended(kind, principal, status, seconds)


def model_answered(provider: str, model: str, result: str, seconds: float, tokens: tuple[int, int] | None) -> None:
    """As `Observer.model_answered`."""
    for observer in _observers:
        observer.model_answered(provider, model, result, seconds, tokens)


def committed(seconds: float) -> None:
    """As `Observer.committed`."""
    for observer in _observers:
        observer.committed(seconds)
