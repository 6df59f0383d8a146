"""Operations of a document as tools. Runs in the compiler's process.

What is used of an operation is decoded by `openapi-pydantic`, a model for each version; its schemas go to `schemas`,
and the rest (examples, links, callbacks) isn't looked at. An operation that can't be called as it is described is left
out, with a notice that says why; the others are there.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl

from mcp_bridge.downstream.openapi.bodies import Body
from mcp_bridge.downstream.openapi.compiled_service import OperationPlan, is_json, is_text
from mcp_bridge.downstream.openapi.document_parts import MEDIA_TYPE
from mcp_bridge.downstream.openapi.document_references import Node
from mcp_bridge.downstream.openapi.document_text import DocumentError
from mcp_bridge.downstream.openapi.parameters import TEMPLATE, arguments_of, is_credential
from mcp_bridge.downstream.openapi.schemas import SchemaSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mcp_bridge.downstream.openapi.document_parts import Document, Json

_MAX_DESCRIPTION = 1500


_MAX_ALTERNATIVES = 100
"""Of an operation's security, which each call looks at."""

_OPERATION_FIELDS = frozenset({"summary", "description", "deprecated", "security"})


class Limits(NamedTuple):
    """Characters of the schemas of one tool, about."""

    arguments: int
    result: int


class Tool(NamedTuple):
    """An operation as a tool with wire names, and how it is called."""

    tool: Json
    plan: OperationPlan


def compile_operation(
    document: Document, method: str, path: str, item: Node, operation: Node, name: str, limits: Limits
) -> Tool:
    """An operation as a tool.

    Args:
        document: The document.
        method: In lower case.
        path: The template.
        item: The path item.
        operation: The operation.
        name: The tool's name.
        limits: The size of its schemas.

    Raises:
        DocumentError: It can't be called as it is described. The message follows the operation's name.
    """
    template, mark, query = path.partition("?")
    _check_path(template)
    in_query = _checked_query(document, query) if mark else frozenset()
    described = document.decoded("Operation", operation.value, _OPERATION_FIELDS, unused="responses")
    schemas = SchemaSet(document.schemas, "request", limits.arguments)
    arguments = arguments_of(document, template, item, operation, schemas)
    if set_twice := in_query.intersection(each.plan.name for each in arguments if each.plan.location == "query"):
        raise DocumentError(f"has the parameter {min(set_twice)!r} in the query of its path, too")
    properties: Json = {each.plan.argument: each.schema for each in arguments}
    required = [each.plan.argument for each in arguments if each.required]
    body = None
    if "requestBody" in operation.value:
        described_body = Node(operation.value["requestBody"], operation.uri)
        body = Body(document, schemas, described_body, properties, required).plan()
    schema: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    schema |= {"required": required} if required else {}
    if definitions := schemas.definitions():
        schema["$defs"] = definitions
    output, accept = _output(document, operation, limits.result)
    tool: Json = {
        "name": name,
        "description": _description(described, method, path),
        "inputSchema": schema,
        "annotations": _hints(method),
    }
    if described.summary:
        tool["title"] = str(described.summary)[:200]
    if output is not None:
        tool["outputSchema"] = output
    plan = OperationPlan(
        method=method.upper(),
        path=template,
        query=query,
        parameters=tuple(each.plan for each in arguments),
        body=body,
        security=_security(document, described, operation),
        accept=accept,
    )
    return Tool(tool, plan)


def _check_path(path: str) -> None:
    plain = TEMPLATE.sub("x", path)
    if not path.startswith("/") or any(letter in plain for letter in "#\\") or not plain.isprintable():
        raise DocumentError("has an invalid path: a path starts with / and contains no # or \\")
    if any(part in {".", ".."} for part in plain.lower().replace("%2e", ".").replace("%2f", "/").split("/")):
        raise DocumentError("has a path that leads out of the service's address")
    if "{" in plain or "}" in plain or " " in plain:
        raise DocumentError("has a path with a brace or a space where none may be")


_QUERY = re.compile(r"(?:[A-Za-z0-9._~/:@,&=-]|%[0-9A-Fa-f]{2}){1,500}")


def _checked_query(document: Document, query: str) -> frozenset[str]:
    """The names in a query that is a part of a path, and the same for every call: `/messages?beta=true`."""
    if not _QUERY.fullmatch(query):
        raise DocumentError("has a path with a query that isn't the same for every call")
    names = frozenset(name for name, _ in parse_qsl(query, keep_blank_values=True))
    if any(is_credential(document, name, "query") for name in names):
        raise DocumentError("has a path with a query that only the configuration may set")
    return names


def _description(described: Any, method: str, path: str) -> str:
    parts = [text.strip() for text in (described.summary, described.description) if text and text.strip()]
    if len(parts) > 1 and parts[1].startswith(parts[0]):
        del parts[0]
    text = "\n\n".join(parts)
    if len(text) > _MAX_DESCRIPTION:
        text = f"{text[:_MAX_DESCRIPTION].rstrip()}…"
    if described.deprecated:
        text = f"Deprecated. {text}"
    return f"{text}\n\n{method.upper()} {path}".strip()


def _hints(method: str) -> Json:
    """What the method says (RFC 9110, section 9.2): a policy counts it only where it trusts the server's hints."""
    hints: Json = {"openWorldHint": True}
    if method in {"get", "head", "query", "options"}:
        return hints | {"readOnlyHint": True, "idempotentHint": True, "destructiveHint": False}
    hints["readOnlyHint"] = False
    if method in {"put", "delete"}:
        hints |= {"idempotentHint": True, "destructiveHint": True}
    return hints


def _security(document: Document, described: Any, operation: Node) -> tuple[tuple[str, ...], ...]:
    wanted = operation.value.get("security", document.security)
    if "security" in operation.value and described.security is None:
        return ()
    if not isinstance(wanted, list):
        return ()
    # Of those with another scheme, none can be satisfied.
    usable = (tuple(each) for each in wanted if isinstance(each, dict) and document.schemes.keys() >= each.keys())
    return tuple(itertools.islice(usable, _MAX_ALTERNATIVES))


_ANY = "application/json, */*;q=0.5"


def _output(document: Document, operation: Node, limit: int) -> tuple[Json | None, str]:
    """The schema of the answers, or None if they are texts and files, and the header `Accept`."""
    responses = operation.value.get("responses")
    schemas = SchemaSet(document.schemas, "response", limit)
    found: list[Any] = []
    accepted: dict[str, None] = {}
    for status, each in responses.items() if isinstance(responses, dict) else ():
        if re.fullmatch(r"2\d\d|2XX", str(status), re.IGNORECASE):
            for media, schema in _answers(document, schemas, Node(each, operation.uri)):
                accepted[media] = None
                if schema is not None and schema not in found:
                    found.append(schema)
    json_first = sorted(accepted, key=lambda media: not is_json(media))[:10]
    accept = ", ".join([*json_first, "*/*;q=0.5"]) if json_first else _ANY
    if accepted and not any(is_json(media) or "*" in media for media in accepted):
        return None, accept
    if found:
        found += [schema for schema in _other_results(accepted) if schema not in found]
    output: Any = found[0] if len(found) == 1 else {"anyOf": found}
    if not found or limit <= 0 or not isinstance(output, dict) or not output:
        # It may be anything, JSON included: without a schema, a tool is taken for one that returns texts and files.
        return {}, accept
    return _finished(output, schemas), accept


def _other_results(accepted: Iterable[str]) -> Iterator[Json]:
    """The schemas of what comes of answers that aren't JSON: a text, or a list with a file."""
    for media in accepted:
        if not is_json(media):
            yield {"type": "string"} if is_text(media.partition(";")[0].strip().lower()) else {"type": "array"}


def _answers(document: Document, schemas: SchemaSet, node: Node) -> list[tuple[str, Any]]:
    """The media types of a response, each with its schema if it is JSON's."""
    found: list[tuple[str, Any]] = []
    try:
        node = document.references.resolved(node)
        content = node.value.get("content") if isinstance(node.value, dict) else None
        for media, entry in content.items() if isinstance(content, dict) else ():
            if MEDIA_TYPE.fullmatch(str(media)):
                has_schema = is_json(str(media)) and isinstance(entry, dict) and "schema" in entry
                found.append((str(media), schemas.add(Node(entry["schema"], node.uri)) if has_schema else None))
    except DocumentError:
        # What comes back isn't what decides whether an operation can be called.
        return found
    return found


def _finished(output: Json, schemas: SchemaSet) -> Json:
    definitions = schemas.definitions()
    if set(output) == {"$ref"}:
        # As what it refers to: clients look at the type first.
        target = definitions.get(output["$ref"].removeprefix("#/$defs/"))
        output = dict(target) if isinstance(target, dict) and target else output
    if definitions:
        output = output | {"$defs": definitions}
    if output.get("required") == ["result"]:
        # By these words, SDKs say that they have wrapped a result.
        output = {key: value for key, value in output.items() if key != "required"}
    return output
