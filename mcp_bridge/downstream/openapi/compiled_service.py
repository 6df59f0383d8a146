"""What is known of a service once its document is compiled: its tools, and how each call becomes a request.

The compiler, a process of its own, writes it as JSON; the connection decodes it into these types.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Location = Literal["path", "query", "header", "cookie"]
Style = Literal["simple", "label", "matrix", "form", "spaceDelimited", "pipeDelimited", "deepObject"]
BodyKind = Literal["json", "form", "multipart", "text", "binary"]
CredentialPlace = Literal["header", "query", "cookie", "bearer", "basic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPlan:
    """How one argument is sent outside of the body (OpenAPI 3.1, section 4.8.12).

    Attributes:
        argument: The argument's name in the tool's schema.
        name: The parameter's name in the request.
        location: Where it is sent.
        style: How arrays and objects are written.
        explode: Whether each of their items is a parameter by itself.
        allow_reserved: Whether reserved characters stay as they are.
        as_json: Whether the value is written as JSON (a parameter with `content`).
    """

    argument: str
    name: str
    location: Location
    style: Style
    explode: bool
    allow_reserved: bool = False
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPlan:
    """How one property of a form is sent (OpenAPI 3.1, section 4.8.15).

    Attributes:
        style: As of a query parameter.
        explode: Likewise.
        media_type: The type of a part of a multipart body, or None.
        is_file: Whether the argument is a file in base64.
        may_be_text: Whether no text is a file, since it may be another text.
        may_be_object: Whether an object is a file only if it looks like one, since it may be another object.
        is_array: Whether the property may be an array, each item of which is a part by itself.
        as_json: Whether it is written as JSON, a text too.
        may_be_json_text: Whether a text that is JSON already stays as it is.
    """

    style: Style = "form"
    explode: bool = True
    media_type: str | None = None
    is_file: bool = False
    may_be_text: bool = False
    may_be_object: bool = False
    is_array: bool = False
    as_json: bool = False
    may_be_json_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyPlan:
    """How the body of a request is made.

    Attributes:
        media_type: Its content type.
        kind: How it is encoded.
        required: Whether there is always one.
        argument: The argument that is the whole body; None if its properties are arguments by themselves.
        properties: The names of these arguments.
        fields: How the properties of a form are sent, by their names.
        other_fields: How those are sent that aren't there.
        media_type_argument: The argument that names another content type, if there is a choice.
        media_types: What it may name.
    """

    media_type: str
    kind: BodyKind
    required: bool
    argument: str | None = None
    properties: tuple[str, ...] = ()
    fields: dict[str, FieldPlan] = field(default_factory=dict)
    other_fields: FieldPlan = FieldPlan(is_array=True)
    media_type_argument: str | None = None
    media_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationPlan:
    """How a call of one operation becomes a request.

    Attributes:
        method: In upper case.
        path: The template, which begins with a slash.
        query: What every request has in its query, as it is sent (`beta=true`).
        parameters: The arguments that are sent outside of the body.
        body: The body, or None.
        security: The alternatives of security schemes, each of which has to be satisfied as a whole; empty for none.
        accept: The header of this name.
    """

    method: str
    path: str
    query: str = ""
    parameters: tuple[ParameterPlan, ...] = ()
    body: BodyPlan | None = None
    security: tuple[tuple[str, ...], ...] = ()
    accept: str = "application/json, */*;q=0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityScheme:
    """Where a credential is sent (OpenAPI 3.1, section 4.8.27).

    Attributes:
        place: In a header, the query or a cookie; or as a bearer token or as user and password in `Authorization`.
        name: The name of the header, query parameter or cookie.
    """

    place: CredentialPlace
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service, as its document describes it.

    Attributes:
        version: The version of OpenAPI that the document is written in.
        servers: The addresses that the document names; relative ones are relative to the document's.
        schemes: The security schemes that can be satisfied with a credential, by name.
        tools: The operations as tools with wire names, as an MCP server lists them.
        operations: How each is called, by the tool's name.
        notices: What was left out, in plain language.
    """

    version: str
    servers: tuple[str, ...] = ()
    schemes: dict[str, SecurityScheme] = field(default_factory=dict)
    tools: list[dict[str, Any]] = field(default_factory=list)
    operations: dict[str, OperationPlan] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the compiler is asked for.

    Attributes:
        server: The server's name, for notices.
        main: The URI of the document.
        documents: The texts by URI: of the document, and of those that it refers to.
        refused: Why others aren't there, by URI.
        operations: The patterns of the operations that become tools; None for those that only read.
        own_headers: The names of headers that the configuration sets, in lower case.
        base_url: The address that the operations are called at, if the configuration has it.
    """

    server: str
    main: str
    documents: dict[str, str]
    refused: dict[str, str] = field(default_factory=dict)
    operations: tuple[str, ...] | None = None
    own_headers: frozenset[str] = frozenset()
    base_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the compiler says: a service, or documents that it needs first, or what is wrong.

    Attributes:
        service: The compiled service, or None.
        missing: URIs of documents that are referred to.
        problem: Why the document can't be used, and where; to follow its name.
    """

    service: Service | None = None
    missing: tuple[str, ...] = ()
    problem: str | None = None


def is_json(media: str) -> bool:
    """Whether a media type is JSON's."""
    kind = media.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def is_text(kind: str) -> bool:
    """Whether an answer of a media type, in lower case and without parameters, is a text."""
    if kind.startswith("text/") or kind.endswith(("+json", "+xml", "+yaml")):
        return True
    return kind in {
        "application/json",
        "application/xml",
        "application/yaml",
        "application/javascript",
        "application/x-ndjson",
        "application/jsonl",
        "application/x-www-form-urlencoded",
    }
