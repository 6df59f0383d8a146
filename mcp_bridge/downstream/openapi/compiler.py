"""Compiles an OpenAPI document into tools: a process of its own, which ends after one document.

A document is an author's who may be a stranger, and large: 20 MB, thousands of operations, YAML's aliases of aliases.
So it is compiled where memory and processor time are limited, and where nothing else waits for the interpreter. The
process reads no file and sends nothing: it is given all texts on its standard input, and says which it lacks.
"""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from pydantic import TypeAdapter

from mcp_bridge.downstream.catalog.listing_limits import MAX_LISTING_BYTES, MAX_TOOL_BYTES, MAX_TOOLS, size_of
from mcp_bridge.downstream.configuration.remote_entries import RESERVED_HEADERS, is_header_name
from mcp_bridge.downstream.openapi.compiled_service import Order, Outcome, SecurityScheme, Service
from mcp_bridge.downstream.openapi.document_parts import Document
from mcp_bridge.downstream.openapi.document_references import Node, References
from mcp_bridge.downstream.openapi.document_text import DocumentError, parse
from mcp_bridge.downstream.openapi.operations import Limits, compile_operation
from mcp_bridge.downstream.openapi.schema_references import SchemaReferences
from mcp_bridge.downstream.openapi.selection import METHODS, Names, Selection
from mcp_bridge.escaping import escape_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.downstream.openapi.operations import Tool

MEMORY_BYTES = 2 << 30
"""Address space of the process."""

CPU_SECONDS = 60
"""Processor time of the process."""

_LIMITS = (Limits(48_000, 12_000), Limits(12_000, 3_000), Limits(4_000, 600), Limits(1_500, 0), Limits(500, 0))
"""Sizes of the schemas of a tool, each for documents whose tools are too large together with the one before."""

_MAX_OPERATIONS = 50_000
_NAMED = 8
"""How many of the operations that are left out are named with the reason."""

_MAX_PROBLEM = 500
"""Characters of what is said of a document that can't be used."""

_MAX_VARIABLES = 20

_MAX_MISSING = 1000
"""Other documents that one may refer to. Each is looked at outside of this process."""

_MAX_SCHEMES, _MAX_SCHEME_CHARS = 200, 200
"""Security schemes, which each call looks at, and the characters of a name of one."""

_order: TypeAdapter[Order] = TypeAdapter(Order)
_outcome: TypeAdapter[Outcome] = TypeAdapter(Outcome)


def main() -> None:
    """Compile the order on standard input, and write the outcome to standard output, both as JSON."""
    with suppress(ValueError, OSError):
        # Not every system has this limit: macOS doesn't.
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    order = _order.validate_json(sys.stdin.buffer.read())
    sys.stdout.buffer.write(_outcome.dump_json(compile_document(order), exclude_defaults=True))


def compile_document(order: Order) -> Outcome:
    """Compile a document.

    Args:
        order: The texts, and what is wanted of them.

    Returns:
        The service; or what is missing, or wrong. Nothing is raised but `MemoryError` and `RecursionError`.
    """
    documents: dict[str, Any] = {}
    refused = dict(order.refused)
    for uri, text in order.documents.items():
        try:
            documents[uri] = parse(text)
        except DocumentError as error:
            if uri == order.main:
                return _unusable(error)
            refused[uri] = str(error)
    try:
        version = _version(documents[order.main])
        references = References(documents, refused)
        missing = references.missing()
        if len(missing) > _MAX_MISSING:
            return Outcome(problem=f"refers to more than {_MAX_MISSING} other documents")
        if missing:
            return Outcome(missing=tuple(missing))
        return Outcome(service=_service(order, documents[order.main], version, references))
    except DocumentError as error:
        return _unusable(error)


def _unusable(error: DocumentError) -> Outcome:
    # The document's own words are in it.
    return Outcome(problem=escape_line(str(error)[:_MAX_PROBLEM]))


def _version(document: Any) -> str:
    if not isinstance(document, dict):
        raise DocumentError("is no OpenAPI document: it is no mapping")
    if "swagger" in document:
        raise DocumentError(
            f"is of Swagger {str(document['swagger'])[:10]}: convert it to OpenAPI 3 (https://converter.swagger.io)"
        )
    version = document.get("openapi")
    if not isinstance(version, str):
        raise DocumentError("is no OpenAPI document: it has no openapi, such as openapi: 3.1.0")
    if not version.startswith(("3.0", "3.1", "3.2")):
        raise DocumentError(f"is of OpenAPI {version[:20]!r}; 3.0, 3.1 and 3.2 are supported")
    if not isinstance(document.get("paths"), dict):
        raise DocumentError("has no paths, so it has no operations")
    return version


def _service(order: Order, main: Any, version: str, references: References) -> Service:
    root = Node(main, order.main)
    schemes = _schemes(root, references)
    is_30 = version.startswith("3.0")
    schemas = SchemaReferences(references, is_30=is_30)
    document = Document(references, schemas, is_30, schemes, main.get("security", []), order.own_headers)
    servers = _servers(main.get("servers"), document, order.main)
    base = order.base_url or (servers[0] if servers else None)
    notices: list[str] = []
    selection = Selection(order.operations)
    chosen = _chosen(root, document, selection, _Addresses(base, servers, order.main), notices)
    notices += [f"server {order.server!r}: {each}" for each in selection.notices()]
    tools = _compiled(document, chosen, order.server, notices)
    return Service(
        version=version,
        servers=tuple(servers),
        schemes=schemes,
        tools=[each.tool for each in tools],
        operations={each.tool["name"]: each.plan for each in tools},
        notices=tuple(notices),
    )


class _Addresses(NamedTuple):
    """Where a service is: the address that it is called at, those that its document names, and the document's own."""

    base: str | None
    servers: list[str]
    document: str


class _Chosen:
    """An operation that becomes a tool."""

    __slots__ = ("item", "method", "name", "operation", "path")

    def __init__(self, method: str, path: str, item: Node, operation: Node, name: str) -> None:
        self.method = method
        self.path = path
        self.item = item
        self.operation = operation
        self.name = name

    @property
    def place(self) -> str:
        """As an error names it."""
        return f"{self.method.upper()} {self.path[:200]}"


def _chosen(
    root: Node, document: Document, selection: Selection, addresses: _Addresses, notices: list[str]
) -> list[_Chosen]:
    """The operations that become tools, named."""
    names = Names()
    found: list[_Chosen] = []
    seen: set[str] = set()
    problems: list[str] = []
    for path, item, methods in _path_items(root, document, problems):
        for method, operation in methods:
            operation_id = operation.value.get("operationId")
            operation_id = operation_id if isinstance(operation_id, str) and operation_id else None
            if not selection.has(method, path, operation_id):
                continue
            if len(found) >= _MAX_OPERATIONS:
                raise DocumentError(f"has more than {_MAX_OPERATIONS} operations: name those that are wanted")
            if operation_id is not None and operation_id in seen:
                problems.append(
                    f"{method.upper()} {path[:200]}: another operation has the operationId {operation_id[:200]!r}"
                )
            elif operation_id is not None:
                seen.add(operation_id)
            elsewhere = _elsewhere(operation, item, document, addresses)
            if elsewhere:
                problems.append(f"{method.upper()} {path[:200]} is left out: it is at another address ({elsewhere})")
                continue
            found.append(_Chosen(method, path, item, operation, names.name(operation_id, method, path)))
    notices += _told(problems)
    return found


def _path_items(
    root: Node, document: Document, problems: list[str]
) -> Iterator[tuple[str, Node, list[tuple[str, Node]]]]:
    for path, each in root.value["paths"].items():
        if not isinstance(path, str) or path.startswith("x-"):
            continue
        try:
            item = _path_item(Node(each, root.uri), document)
        except DocumentError as error:
            problems.append(f"{path[:200]} is left out: it {error}")
            continue
        methods = [
            (method, Node(item.value[method], item.uri))
            for method in METHODS
            if isinstance(item.value.get(method), dict)
        ]
        if unknown := [key for key in ("additionalOperations", "trace") if key in item.value]:
            problems.append(f"{path[:200]}: its {', '.join(unknown)} is left out")
        yield path, item, methods


def _path_item(node: Node, document: Document) -> Node:
    """A path item with the one that it refers to put in (its own members count)."""
    value = node.value
    if not isinstance(value, dict):
        raise DocumentError("is no mapping")
    if not isinstance(value.get("$ref"), str):
        return node
    target = document.references.resolved(node)
    if not isinstance(target.value, dict):
        raise DocumentError("refers to what is no mapping")
    return target


def _elsewhere(operation: Node, item: Node, document: Document, addresses: _Addresses) -> str | None:
    """The address of an operation that isn't the service's, or None."""
    own, base = operation.value.get("servers", item.value.get("servers")), addresses.base
    if not own or base is None:
        return None
    try:
        named = _servers(own, document, addresses.document)
        servers = [urljoin(base, each) for each in named]
    except (DocumentError, ValueError):
        return "an invalid one"
    if addresses.servers and set(addresses.servers) <= set(named):
        # It repeats what the document says of all operations: where they are called, the configuration says.
        return None
    if any(each.rstrip("/") == base.rstrip("/") for each in servers):
        return None
    if not servers:
        return "an invalid one"
    parts = urlsplit(servers[0])
    return f"{parts.scheme}://{parts.netloc}"[:100]


def _compiled(document: Document, chosen: list[_Chosen], server: str, notices: list[str]) -> list[Tool]:
    for limits in _LIMITS:
        tools, problems, size = [], [], 0
        for each in chosen:
            try:
                tool = compile_operation(document, each.method, each.path, each.item, each.operation, each.name, limits)
            except DocumentError as error:
                problems.append(f"{each.place} is left out: it {error}")
                continue
            size += size_of(tool.tool, MAX_TOOL_BYTES)
            tools.append(tool)
            if size > MAX_LISTING_BYTES:
                break
        if size <= MAX_LISTING_BYTES:
            break
    if len(tools) > MAX_TOOLS:
        notices.append(
            f"server {server!r} has {len(tools)} operations, of which {MAX_TOOLS} are kept: name those that are wanted"
        )
    notices += _told(problems)
    return tools[:MAX_TOOLS]


def _told(problems: list[str]) -> list[str]:
    more = [f"and {len(problems) - _NAMED} more like these"] if len(problems) > _NAMED else []
    # The document's own words are in them.
    return [*map(escape_line, problems[:_NAMED]), *more]


def _servers(value: Any, document: Document, uri: str) -> list[str]:
    """The addresses of a list of servers, with the defaults of their variables put in."""
    if not isinstance(value, list):
        value = []
    found = []
    for each in value:
        server = document.decoded("Server", each, {"url", "variables"})
        url = server.url
        for name, variable in list((server.variables or {}).items())[:_MAX_VARIABLES]:
            url = url.replace(f"{{{name}}}", variable.default)
        try:
            found.append(urljoin(uri, url) if uri.startswith("http") else url)
        except ValueError:
            continue
    # A document without servers is served where it is (section 4.8.1).
    return found or ([urljoin(uri, "/")] if uri.startswith("http") else [])


def _schemes(root: Node, references: References) -> dict[str, SecurityScheme]:
    components = root.value.get("components")
    declared = components.get("securitySchemes") if isinstance(components, dict) else None
    found: dict[str, SecurityScheme] = {}
    for name, each in (declared if isinstance(declared, dict) else {}).items():
        try:
            scheme = references.resolved(Node(each, root.uri)).value
        except DocumentError:
            continue
        is_kept = len(found) < _MAX_SCHEMES and len(str(name)) <= _MAX_SCHEME_CHARS
        if is_kept and isinstance(scheme, dict) and (known := _scheme(scheme)) is not None:
            found[str(name)] = known
    return found


def _scheme(scheme: dict[str, Any]) -> SecurityScheme | None:
    """Where a scheme's credential is sent; None if it can't be."""
    # Each may be of any type. Of some, no set can be asked whether it has them.
    kind, name = scheme.get("type"), scheme.get("name")
    if kind == "apiKey":
        place = scheme.get("in")
        if not isinstance(name, str) or not name or place not in ("header", "query", "cookie"):
            return None
        # A document doesn't frame messages.
        frames = place != "query" and (not is_header_name(name) or name.lower() in RESERVED_HEADERS)
        return None if frames else SecurityScheme(place=place, name=name)
    if kind == "http":
        which = str(scheme.get("scheme")).lower()
        return SecurityScheme(place=which) if which in {"basic", "bearer"} else None  # type: ignore[arg-type]
    return SecurityScheme(place="bearer") if kind in ("oauth2", "openIdConnect") else None


if __name__ == "__main__":
    main()
