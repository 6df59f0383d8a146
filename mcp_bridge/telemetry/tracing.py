"""Spans of OpenTelemetry: one trace from a client's call to the servers that are called for it.

Nothing is traced, and the SDK of OpenTelemetry isn't imported, until `enable` is called. Names and attributes are those
of the semantic conventions for MCP and GenAI, and `mcp_bridge.*` where these have none. No attribute has a value of a
call: no argument, result, output, prompt or answer, and no message of an error, which may quote them.

The MCP SDK makes the span of a client's request by itself, under the trace context in the request's `_meta` (SEP-414).
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal

from mcp_bridge.telemetry.execution_context import current
from mcp_bridge.telemetry.measurements import error_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span, Tracer

    Attribute = str | int | float | bool

Kind = Literal["internal", "client"]

_tracer: Tracer | None = None

_NO_SPAN: AbstractContextManager[None] = nullcontext()


def enable(tracer: Tracer | None) -> None:
    """Make spans with a tracer from now on, in the whole process; with None, make none."""
    global _tracer  # noqa: PLW0603 - a process has one tracer, as it has one log
    _tracer = tracer


def is_enabled() -> bool:
    """Whether spans are made."""
    return _tracer is not None


def span(
    name: str, kind: Kind = "internal", attributes: Mapping[str, Attribute] | None = None
) -> AbstractContextManager[Span | None]:
    """A span as a context manager, which is the current one meanwhile; it gives None if nothing is traced.

    An exception that passes marks the span as failed, with `error.type` as `error_type` has it.

    Args:
        name: Its name, of which there are few.
        kind: What it is of the trace: work of this process, or a request to another.
        attributes: Attributes, without values of calls.
    """
    return _NO_SPAN if _tracer is None else _span(_tracer, name, kind, attributes or {})


@contextmanager
def _span(tracer: Tracer, name: str, kind: Kind, attributes: Mapping[str, Attribute]) -> Iterator[Span]:
    from opentelemetry.trace import SpanKind  # noqa: PLC0415

    kinds = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}
    with tracer.start_as_current_span(
        name,
        kind=kinds[kind],
        attributes={**_execution_attributes(), **attributes},
        # An exception's message may quote values.
        record_exception=False,
        set_status_on_exception=False,
    ) as started:
        try:
            yield started
        except BaseException as exc:
            failed(started, error_type(exc))
            raise


def begin(name: str) -> Span | None:
    """Begin a span of work that several tasks do, each `within` it; None if nothing is traced. `Span.end` ends it."""
    return None if _tracer is None else _tracer.start_span(name, attributes=_execution_attributes())


def within(span: Span | None) -> AbstractContextManager[object]:
    """Make a span that was begun the current one meanwhile. It isn't ended."""
    if span is None:
        return _NO_SPAN
    from opentelemetry.trace import use_span  # noqa: PLC0415

    return use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False)


def _execution_attributes() -> dict[str, str]:
    if (context := current.get()) is None:
        return {}
    return {"mcp_bridge.execution": context.execution, "mcp_bridge.principal": context.principal}


def detach() -> None:
    """Detach the current task from the execution and the span that it was started in: it works for others, too."""
    current.set(None)
    if _tracer is not None:
        from opentelemetry.context import Context, attach  # noqa: PLC0415

        attach(Context())


def note_request_id(number: int) -> None:
    """Note the JSON-RPC id of the request that the current span is of."""
    if _tracer is not None:
        from opentelemetry.trace import get_current_span  # noqa: PLC0415

        get_current_span().set_attribute("jsonrpc.request.id", str(number))


def failed(span: Span, kind: str) -> None:
    """Mark a span as failed, once: the first cause counts.

    Args:
        span: The span.
        kind: A name of few, such as an error code, for `error.type`.
    """
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

    if "error.type" not in (getattr(span, "attributes", None) or ()):
        span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))


def carrier() -> dict[str, str]:
    """The current trace context (W3C Trace Context) for a request's `_meta` or HTTP headers.

    Returns:
        `traceparent` and perhaps `tracestate`; nothing if nothing is traced.
    """
    if _tracer is None:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    found: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(found)
    return found


@contextmanager
def continued(headers: Mapping[str, str]) -> Iterator[None]:
    """Continue the trace that an HTTP request's headers name, meanwhile.

    Args:
        headers: The request's headers; those of W3C Trace Context are used, others are not looked at.
    """
    if _tracer is None or "traceparent" not in headers:
        yield
        return
    from opentelemetry import context as contexts  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    named = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
    token = contexts.attach(TraceContextTextMapPropagator().extract(named))
    try:
        yield
    finally:
        contexts.detach(token)


def current_ids() -> dict[str, str]:
    """`trace_id` and `span_id` of the current span, in hexadecimal; empty if there is none."""
    if _tracer is None:
        return {}
    from opentelemetry.trace import format_span_id, format_trace_id, get_current_span  # noqa: PLC0415

    context = get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}
