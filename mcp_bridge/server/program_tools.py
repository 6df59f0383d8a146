"""Programs as MCP tools, for clients that use programs without Python: `serve --tools programs`.

Names and schemas are those of nano-vm-mcp 0.4.6, with additions. Each tool answers with a JSON object as text and as
structured content; `isError` is set if it has an `error`. A client may show both to its model: together they are within
`max_output_chars`. If they don't fit, there is only the text, shortened if necessary, and still valid JSON.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import mcp_types as types
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcp_bridge.errors import BridgeError, RunInterruptedError
from mcp_bridge.executions.programs.record import unmentioned_failures
from mcp_bridge.executions.trace_record import to_record
from mcp_bridge.kernel.events import Resume
from mcp_bridge.kernel.json_parsing import MAX_PARSED_CHARS, NotJSONError, parsed
from mcp_bridge.server.answers.cut_output import cut
from mcp_bridge.server.messages.argument_faults import argument_faults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp_bridge.host.bridge import Bridge
    from mcp_bridge.server.questions import Questions
    from mcp_bridge.settings import Settings

LEAST_SHARE = 50
PART_CHARS = 20
LEAST_FIELDS = 30
"""Bounds of shortening: an object's fields stay named as long as possible."""

_MAX_FAILURES, _MAX_FAILURE_CHARS = 3, 300
"""Bounds of the failures that are told with an error; `get_trace` has them all."""

_ProgramId = Annotated[str, Field(description="Its name, as list_programs has it")]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class RunProgram(_Arguments):
    """Arguments of `run_program`."""

    program: Annotated[dict[str, Any] | str, Field(description="The program, or the name of a saved one")]
    context: Annotated[dict[str, Any] | str, Field(description="Values of its $references")] = {}
    save_as: Annotated[str, Field(description="Keep the program under this name; empty: don't")] = ""
    idempotency_key: Annotated[str, Field(description="With a key the program runs once")] = ""


class ResumeProgram(_Arguments):
    """Arguments of `resume_program`."""

    trace_id: str
    payload: Annotated[Any, Field(description="Readable as $__webhook__")] = None


class GetTrace(_Arguments):
    """Arguments of `get_trace`."""

    trace_id: Annotated[str, Field(description="As run_program gave it")]


class ListPrograms(_Arguments):
    """Arguments of `list_programs`: none."""


class GetProgram(_Arguments):
    """Arguments of `get_program`."""

    program_id: _ProgramId


class DeleteProgram(_Arguments):
    """Arguments of `delete_program`."""

    program_id: _ProgramId


async def _run_program(bridge: Bridge, arguments: RunProgram, questions: Questions) -> dict[str, Any]:
    asked = arguments.program
    name = arguments.save_as
    context = _context(arguments.context)
    if isinstance(asked, str) and await bridge.programs.library.has(asked, bridge.principal.name):
        name = asked
    if arguments.save_as:
        await bridge.programs.library.save(arguments.save_as, arguments.program, bridge.principal.name)
    record = await bridge.run_program(
        arguments.program,
        context,
        arguments.idempotency_key or None,
        asker=questions,
        sampler=questions.sample,
        on_begun=questions.begun,
    )
    return _summary(record, name)


def _context(given: dict[str, Any] | str) -> dict[str, Any]:
    """The context; as for programs, models also give a text of JSON.

    Raises:
        BridgeError: `bad_context`.
    """
    if isinstance(given, dict):
        return given
    try:
        context = parsed(given)
    except NotJSONError:
        context = None
    if not isinstance(context, dict):
        message = f"The context can't be taken: this text is no JSON object of at most {MAX_PARSED_CHARS} characters."
        raise BridgeError("bad_context", message, hint="Pass an object of names and values.")
    return context


async def _resume_program(bridge: Bridge, arguments: ResumeProgram, questions: Questions) -> dict[str, Any]:
    record = await bridge.resume_execution(
        arguments.trace_id,
        Resume(arguments.payload),
        asker=questions,
        sampler=questions.sample,
        on_begun=questions.begun,
    )
    return _summary(record, "")


async def _get_trace(bridge: Bridge, arguments: GetTrace, _: Questions) -> dict[str, Any]:
    return to_record(await bridge.lifecycle.stored(arguments.trace_id, bridge.principal.name))


async def _list_programs(bridge: Bridge, _: ListPrograms, __: Questions) -> dict[str, Any]:
    rows = await bridge.programs.library.listed(bridge.principal.name)
    return {"programs": [{"id": row["name"], **row} for row in rows]}


async def _get_program(bridge: Bridge, arguments: GetProgram, _: Questions) -> dict[str, Any]:
    return (await bridge.programs.library.find(arguments.program_id, bridge.principal.name)).program.data


async def _delete_program(bridge: Bridge, arguments: DeleteProgram, _: Questions) -> dict[str, Any]:
    if not await bridge.programs.library.delete(arguments.program_id, bridge.principal.name):
        raise BridgeError("unknown_program", f"There is no program {arguments.program_id[:100]!r}.")
    return {"deleted": True, "program_id": arguments.program_id}


def _summary(record: dict[str, Any], program_id: str) -> dict[str, Any]:
    usages = [row["usage"] for row in record["steps"] if row.get("usage")]
    return {
        "trace_id": record["trace_id"],
        "program_id": program_id,
        "status": record["status"],
        "steps": len(record["steps"]),
        "cost": sum(usage["cost_usd"] for usage in usages),
        "output": record["output"],
        "error": _error(record),
        "code": record["code"],
        "waiting": record["waiting"],
        **({"warnings": record["warnings"]} if record.get("warnings") else {}),
    }


def _error(record: dict[str, Any]) -> str | None:
    """The record's error, with the first failures that it only names: the steps aren't in the answer."""
    error: str | None = record["error"]
    failures = [] if error is None else unmentioned_failures(record)
    if not failures:
        return error
    told = [f"{step}: {cut(why, _MAX_FAILURE_CHARS)}" for step, why in failures[:_MAX_FAILURES]]
    more = len(failures) - len(told)
    return f"{error} ({'; '.join([*told, *([f'and {more} more'] if more else [])])})"


_TOOLS: dict[str, tuple[type[_Arguments], Callable[[Any, Any, Any], Awaitable[dict[str, Any]]], str]] = {
    "run_program": (RunProgram, _run_program, "Run a program; gives trace_id, status, number of steps, cost, output."),
    "resume_program": (ResumeProgram, _resume_program, "Go on with a suspended program."),
    "get_trace": (GetTrace, _get_trace, "The whole trace of a program's run."),
    "list_programs": (ListPrograms, _list_programs, "The programs that can be run by name."),
    "get_program": (GetProgram, _get_program, "A program by its id."),
    "delete_program": (DeleteProgram, _delete_program, "Delete a saved program; its traces stay."),
}

NAMES = tuple(_TOOLS)


def tools() -> list[types.Tool]:
    """The tools for the client's list."""
    return [
        types.Tool(name=name, description=description, input_schema=_schema(arguments))
        for name, (arguments, _, description) in _TOOLS.items()
    ]


def _schema(arguments: type[BaseModel]) -> dict[str, Any]:
    schema = arguments.model_json_schema()
    for part in (schema, *schema.get("properties", {}).values()):
        part.pop("title", None)
    schema.pop("description", None)
    return schema


async def call(bridge: Bridge, name: str, arguments: dict[str, Any], questions: Questions) -> types.CallToolResult:
    """Call one of the tools."""
    model, function, _ = _TOOLS[name]
    try:
        answer = await function(bridge, model.model_validate(arguments), questions)
        if questions.notices:
            answer["notices"] = questions.notices
    except ValidationError as exc:
        answer = {"error": f"{argument_faults(exc, model.model_fields)}.", "code": "bad_arguments"}
    except BridgeError as exc:
        return refused(exc, bridge.settings)
    return _answered(answer, bridge.settings)


def refused(error: BridgeError, settings: Settings) -> types.CallToolResult:
    """The answer to a call that was refused, or whose program was ended by an error of the bridge."""
    begun = {"trace_id": error.execution, "status": "interrupted"} if isinstance(error, RunInterruptedError) else {}
    return _answered({**begun, "error": str(error), "code": error.code, **error.details}, settings)


def _answered(answer: dict[str, Any], settings: Settings) -> types.CallToolResult:
    limit = settings.max_output_chars
    text = json.dumps(answer, ensure_ascii=False)
    result = types.CallToolResult(content=[], is_error=answer.get("error") is not None)
    if settings.structured == "always" or 2 * len(text) <= limit:
        result.structured_content = answer
    result.content.append(types.TextContent(text=text if len(text) <= limit else _shortened(answer, limit)))
    return result


def _shortened(answer: dict[str, Any], limit: int) -> str:
    """An answer as JSON of at most `limit` characters, with long texts, arrays and objects cut."""
    trace = answer.get("trace_id")
    where = f"run_python: from mcp import traces; await traces.get({trace!r})" if trace else "run_python: mcp.programs"
    share = limit // 2
    while share >= LEAST_SHARE:
        text = json.dumps({**_less(answer, share), "cut": f"All of it: {where}"}, ensure_ascii=False)
        if len(text) <= limit:
            return text
        share //= 2
    few = {name: answer[name] for name in ("trace_id", "program_id", "status", "code") if name in answer}
    return json.dumps(few | {"cut": f"All of it: {where}"}, ensure_ascii=False)


def _less(value: Any, share: int) -> Any:
    """A JSON value with texts cut to `share` characters, and arrays and objects to about as many elements."""
    if isinstance(value, str):
        return cut(value, share)
    parts = max(1, share // PART_CHARS)
    if isinstance(value, list):
        made = [_less(part, share // 2) for part in value[:parts]]
        return made if len(value) <= parts else [*made, f"… {len(value) - parts} more"]
    if isinstance(value, dict):
        few = dict(list(value.items())[: max(parts, LEAST_FIELDS)])
        shorter = {name: _less(part, share // 2) for name, part in few.items()}
        return shorter if len(few) == len(value) else shorter | {"…": f"{len(value) - len(few)} more"}
    return value
