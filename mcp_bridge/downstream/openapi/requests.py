"""A call's arguments as an HTTP request (OpenAPI 3.1, sections 4.8.12 and 4.8.14; RFC 6570).

An argument can fill its own place and no other: what would end a path's segment, a parameter, a header or a cookie is
percent-encoded or refused, and so is a path that a server, or a proxy before it, could take for one outside of the
service's address. Pure: nothing is sent here.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import httpx2

from mcp_bridge.downstream.configuration.remote_entries import value_problem
from mcp_bridge.downstream.openapi.compiled_service import FieldPlan

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from mcp_bridge.downstream.openapi.compiled_service import (
        BodyPlan,
        OperationPlan,
        ParameterPlan,
        SecurityScheme,
        Style,
    )

MAX_TARGET_CHARS = 32 << 10
"""Characters of a request's address. Servers take 8 to 64 KiB."""

MAX_FILENAME_CHARS = 255
"""Characters of the name of a file that is sent. Most file systems take no longer ones."""

_MAX_DEPTH = 50
"""Levels of an object or array that is written as `name[a][b]`. Servers read 5 to 64."""

_DECODINGS = 3
"""How often a path's value is decoded to see what it could lead to: proxies and servers each may."""

_EXACT = 2**53
"""Below it, a whole number of a float is that very integer."""

_RESERVED_KEPT = ":/?[]@!$'()*,"
"""Reserved characters that `allowReserved` keeps. The others would end the parameter: `#`, `&`, `=`, `+`, `;`."""

_SEPARATORS = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}
"""What separates items in a query; by default a comma."""

_MEDIA_TYPE = re.compile(
    r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}(; ?[A-Za-z0-9-]{1,40}=[\w.-]{1,60})?"
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of one service. `repr` shows none.

    Attributes:
        schemes: The security schemes, by name.
        values: The credentials, by the scheme's name.
    """

    schemes: Mapping[str, SecurityScheme] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    def of(self, security: tuple[tuple[str, ...], ...]) -> Iterator[tuple[SecurityScheme, str]]:
        """What is sent with an operation: the first of its alternatives that can be satisfied as a whole."""
        for alternative in security:
            if alternative and all(name in self.values for name in alternative):
                for name in alternative:
                    yield self.schemes[name], self.values[name]
                return


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `repr` shows neither its address nor its headers, which may have credentials.

    Attributes:
        method: In upper case.
        url: The whole address.
        headers: Beside those that every request of the service has.
        content: The body, or None.
    """

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    content: bytes | None = field(default=None, repr=False)


def build(plan: OperationPlan, base_url: str, arguments: Mapping[str, Any], credentials: Credentials) -> Request:
    """The request of a call.

    Args:
        plan: The operation.
        base_url: The service's address, without a query.
        arguments: They fit the tool's schema.
        credentials: What may be sent beside them.

    Raises:
        ValueError: An argument can't be sent as the operation wants it. The message names it.
    """
    query = [plan.query] if plan.query else []
    headers: dict[str, str] = {"accept": plan.accept}
    cookies: list[str] = []
    segments: dict[str, str] = {}
    taken = {scheme.name for scheme in credentials.schemes.values() if scheme.place == "query"}
    taken |= {parameter.name for parameter in plan.parameters if parameter.location == "query"}
    taken |= {name for name, _ in parse_qsl(plan.query, keep_blank_values=True)}
    for parameter in plan.parameters:
        if parameter.argument not in arguments:
            continue
        value = arguments[parameter.argument]
        if parameter.location == "path":
            segments[parameter.name] = _path_value(parameter, value)
        elif value is None:
            continue
        elif parameter.location == "query":
            query += _query(parameter.name, value, parameter.style, parameter, taken)
        elif parameter.location == "header":
            headers[parameter.name.lower()] = _header(parameter, value)
        else:
            cookies += _cookies(parameter, value)
    _add_credentials(credentials.of(plan.security), query, headers, cookies)
    if cookies:
        headers["cookie"] = "; ".join(cookies)
    content = None
    if plan.body is not None:
        content, kind = _body(plan.body, arguments)
        headers |= {"content-type": kind} if content is not None else {}
    path = "".join(
        segments.get(part, "") if is_name else _encoded(part, "/:@!$&'()*+,;=~%")
        for is_name, part in _template_parts(plan.path)
    )
    if segments:
        # Dots of the template, of a style and of several values come together only here.
        _check_segment("path", path)
    url = f"{base_url.rstrip('/')}{path}{'?' if query else ''}{'&'.join(query)}"
    _check_target(url, base_url)
    return Request(plan.method, url, headers, content)


def _add_credentials(
    chosen: Iterator[tuple[SecurityScheme, str]], query: list[str], headers: dict[str, str], cookies: list[str]
) -> None:
    for scheme, credential in chosen:
        match scheme.place:
            case "query":
                query.append(f"{_encoded(scheme.name)}={_encoded(credential)}")
            case "cookie":
                cookies.append(f"{scheme.name}={credential}")
            case "header":
                headers[scheme.name.lower()] = credential
            case "basic":
                headers["authorization"] = f"Basic {base64.b64encode(credential.encode()).decode()}"
            case "bearer":
                headers["authorization"] = f"Bearer {credential}"


def _template_parts(template: str) -> Iterator[tuple[bool, str]]:
    """The parts of a path's template: whether each is a parameter's name, and its text."""
    for number, part in enumerate(re.split(r"\{([^{}]*)\}", template)):
        yield number % 2 == 1, part


def _check_target(url: str, base_url: str) -> None:
    """Check that a request stays where the service is, as the library that sends it reads the address.

    Raises:
        ValueError: It doesn't.
    """
    if len(url) > MAX_TARGET_CHARS:
        raise ValueError(f"the arguments make an address of more than {MAX_TARGET_CHARS} characters")
    try:
        read, base = httpx2.URL(url), httpx2.URL(base_url)
    except httpx2.InvalidURL:
        raise ValueError("the arguments make no valid address") from None
    root = base.raw_path.rstrip(b"/") + b"/"
    same = (read.scheme, read.netloc, read.userinfo) == (base.scheme, base.netloc, base.userinfo)
    if not same or not read.raw_path.startswith(root) or read.fragment or str(read) != _as_read(url):
        raise ValueError("the arguments lead out of the service's address")


def _as_read(url: str) -> str:
    """An address as the library writes it: with the scheme and the host in lower case, and without a default port."""
    parts = urlsplit(url)
    origin = str(httpx2.URL(f"{parts.scheme}://{parts.netloc}"))
    return f"{origin.rstrip('/')}{url[len(parts.scheme) + 3 + len(parts.netloc) :]}"


# --- values ---


def _text(name: str, value: Any) -> str:
    """A single value as text: as JSON has it, and strings as they are. What ends a header's line is the header's."""
    if isinstance(value, str):
        if "\x00" in value or not _is_encodable(value):
            raise ValueError(
                f"{name}: contains a character that can't be sent there (U+0000, or half a surrogate pair)"
            )
        return value
    return "" if value is None else _json(value)


def _json(value: Any) -> str:
    """A value as JSON, with whole numbers as integers: many services take `5` for one, but not `5.0`."""
    try:
        text = _dumped(value)
        # Most values have none, and a copy costs more than all else.
        return _dumped(_with_integers(value)) if ".0" in text else text
    except RecursionError:
        raise ValueError("the arguments are nested too deeply") from None


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _with_integers(value: Any) -> Any:
    """A value in which whole numbers are integers, however they were computed."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, dict):
        return {name: _with_integers(each) for name, each in value.items()}
    return [_with_integers(each) for each in value] if isinstance(value, list) else value


def _field_json(value: Any, field_plan: FieldPlan) -> str:
    """A field of a form as JSON."""
    if field_plan.may_be_json_text and isinstance(value, str) and _is_json_text(value):
        return value
    return _json(value)


def _is_json_text(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return False
    return True


def _no_json(text: str) -> None:
    """What Python's own reader takes for JSON, such as NaN."""
    raise ValueError(text)


def _is_encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encoded(text: str, safe: str = "") -> str:
    return quote(text, safe=safe)


def _members(name: str, value: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(_member(name, key), _text(name, each)) for key, each in value.items() if each is not None]


def _member(name: str, key: str) -> str:
    """A member's name. Some servers leave out what can't be seen of one, and then read another."""
    if any(letter < " " or letter == "\x7f" for letter in key):
        raise ValueError(f"{name}: the name of a member contains a control character")
    return _text(name, key)


def _joined(name: str, items: Iterable[str], separator: str, shown: str | None = None) -> str:
    """Items in one text.

    Args:
        name: The argument's name.
        items: As they are written.
        separator: What is written between them.
        shown: What the separator stands for, if it is encoded.

    Raises:
        ValueError: One contains the separator: the service would read more items than there are.
    """
    items = list(items)
    if any(separator in item for item in items):
        raise ValueError(f"{name}: an item contains {shown or separator!r}, which separates items there")
    return separator.join(items)


def _path_value(parameter: ParameterPlan, value: Any) -> str:
    name = parameter.argument
    if parameter.as_json:
        value = _json(value)
    if isinstance(value, list):
        texts = [_text(name, each) for each in value]
    elif isinstance(value, dict):
        texts = [text for pair in _members(name, value) for text in pair]
    else:
        texts = [_text(name, value)]
    for text in texts:
        _check_segment(name, text)
    if not any(texts):
        # `/pets/{id}` without an id is another operation.
        raise ValueError(f"{name}: is empty, and is a part of the path")
    written = [_encoded(text) for text in texts]
    pairs = isinstance(value, dict) and parameter.explode
    items = [f"{key}={each}" for key, each in zip(written[::2], written[1::2], strict=True)] if pairs else written
    key = _encoded(parameter.name)
    match parameter.style:
        case "label":
            if not isinstance(value, (list, dict)):
                return f".{items[0]}"
            return "." + _joined(name, items, "." if parameter.explode else ",")
        case "matrix":
            if parameter.explode and isinstance(value, list):
                return "".join(f";{key}={item}" for item in items)
            return "".join(f";{item}" for item in items) if pairs else f";{key}={','.join(items)}"
        case _:
            return ",".join(items)


def _check_segment(name: str, text: str) -> None:
    """Check that a value can't lead to another path, even where the slashes in it are decoded on the way.

    Raises:
        ValueError: It could.
    """
    for _ in range(_DECODINGS):
        segments = re.split(r"[/\\]", text)
        if any(segment.partition(";")[0].strip() in {".", ".."} for segment in segments):
            raise ValueError(f"{name}: leads to another path ('.' or '..')")
        if any(letter < " " or letter == "\x7f" for letter in text):
            raise ValueError(f"{name}: contains a control character")
        text = unquote(text)


def _query(
    name: str, value: Any, style: Style, options: ParameterPlan | FieldPlan, taken: Collection[str]
) -> list[str]:
    """The parts of a query, or of a form, that a value becomes.

    Args:
        name: The parameter's name.
        value: Its value.
        style: How arrays and objects are written.
        options: Whether they are exploded.
        taken: The names of all parameters. No member of an object may have another one's place: what a rule, or a
            person, has seen there would not be what the service reads.

    Raises:
        ValueError: A member has the place of another parameter, or can't be sent.
    """
    safe = _RESERVED_KEPT if getattr(options, "allow_reserved", False) else ""
    key = _encoded(name)
    if getattr(options, "as_json", False):
        return [f"{key}={_encoded(_json(value))}"]
    if style == "deepObject" and isinstance(value, (dict, list)):
        # In a query, the items of an object's array are told by its name alone.
        numbered = isinstance(value, list) or isinstance(options, FieldPlan)
        pairs = _deep(name, value, _places(taken) - _places([name]), numbered=numbered)
        return [f"{_encoded(place, '[]')}={_encoded(text, safe)}" for place, text in pairs]
    if isinstance(value, list):
        items = [_encoded(_text(name, each), safe) for each in value]
        if options.explode or not items:
            return [f"{key}={item}" for item in items]
        return [f"{key}={_in_query(name, items, style)}"]
    if isinstance(value, dict):
        others = _places(taken) - _places([name])
        members = [(_encoded(each), _encoded(text, safe)) for each, text in _members(name, value)]
        if options.explode:
            for each in value:
                _check_member(name, each, others)
            return [f"{each}={text}" for each, text in members]
        return [f"{key}={_in_query(name, itertools.chain(*members), style)}"] if members else []
    return [f"{key}={_encoded(_text(name, value), safe)}"]


def _in_query(name: str, items: Iterable[str], style: Style) -> str:
    separator = _SEPARATORS.get(style, ",")
    return _joined(name, items, separator, unquote(separator))


def _deep(
    name: str, value: Mapping[str, Any] | list[Any], others: frozenset[str], *, numbered: bool, depth: int = 1
) -> Iterator[tuple[str, str]]:
    """`filter[a][b]=c`: nested values as what most servers take them for; OpenAPI leaves them open.

    Args:
        name: Where the value is.
        value: An object or an array.
        others: The places of other parameters.
        numbered: Whether the items of an array have their numbers (`items[0]=c`), whatever they are.
        depth: Its level.

    Raises:
        ValueError: It is nested too deeply, or a member has another parameter's place.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"{name.partition('[')[0]}: has more than {_MAX_DEPTH} levels")
    if isinstance(value, list) and not numbered and not _is_nested(value):
        yield from ((name, _text(name, item)) for item in value)
        return
    pairs = enumerate(value) if isinstance(value, list) else value.items()
    for each, inner in pairs:
        key = f"{name}[{_member(name, str(each))}]"
        _check_member(name, key, others)
        if isinstance(inner, (dict, list)):
            yield from _deep(key, inner, others, numbered=numbered, depth=depth + 1)
        elif inner is not None:
            yield key, _text(name, inner)


def _places(names: Iterable[str]) -> frozenset[str]:
    """Names of parameters as the least strict servers compare them: without case."""
    return frozenset(name.casefold() for name in names)


def _check_member(name: str, member: str, others: frozenset[str]) -> None:
    """Check that a member isn't read as another parameter, nor as a part of it (`amount[]`).

    Raises:
        ValueError: It is.
    """
    whole = member.casefold()
    if whole in others or whole.partition("[")[0].strip() in others:
        raise ValueError(f"{name}: may not have a member {member[:100]!r}: another parameter is called so")


def _header(parameter: ParameterPlan, value: Any) -> str:
    name = parameter.argument
    if parameter.as_json:
        text = _json(value)
    elif isinstance(value, list):
        text = _joined(name, (_text(name, each) for each in value), ",")
    elif isinstance(value, dict):
        members = _members(name, value)
        if parameter.explode:
            # A value may hold what ends a name: the first does.
            members = [(_joined(name, [key, ""], "="), each) for key, each in members]
        pairs = (f"{key}{each}" for key, each in members) if parameter.explode else itertools.chain(*members)
        text = _joined(name, pairs, ",")
    else:
        text = _text(name, value)
    if wrong := value_problem(text):
        raise ValueError(f"{name}: {wrong.rstrip('.')}")
    return text


def _cookies(parameter: ParameterPlan, value: Any) -> list[str]:
    name = parameter.argument
    if parameter.as_json:
        return [f"{parameter.name}={_encoded(_json(value))}"]
    if isinstance(value, list):
        texts = [_encoded(_text(name, each)) for each in value]
        return [f"{parameter.name}={','.join(texts)}"]
    if isinstance(value, dict):
        parts = [_encoded(part) for pair in _members(name, value) for part in pair]
        return [f"{parameter.name}={','.join(parts)}"]
    return [f"{parameter.name}={_encoded(_text(name, value))}"]


# --- bodies ---


def _body(plan: BodyPlan, arguments: Mapping[str, Any]) -> tuple[bytes | None, str]:
    """The body and its content type; None for no body.

    Raises:
        ValueError: It can't be sent.
    """
    value: Any
    if plan.argument is not None:
        if plan.argument not in arguments:
            return None, plan.media_type
        value = arguments[plan.argument]
    else:
        value = {name: arguments[name] for name in plan.properties if name in arguments}
        if not value and not plan.required:
            return None, plan.media_type
    match plan.kind:
        case "json":
            return _json(value).encode(), _media_type(plan, arguments)
        case "form":
            return _form(plan, value).encode(), plan.media_type
        case "multipart":
            return _multipart(plan, value)
        case "text":
            return str(value).encode(), plan.media_type
        case _:
            return _decoded(plan.argument or "body", value), plan.media_type


def _media_type(plan: BodyPlan, arguments: Mapping[str, Any]) -> str:
    name = plan.media_type_argument
    if name is None or name not in arguments:
        return plan.media_type
    if (chosen := arguments[name]) not in plan.media_types:
        raise ValueError(f"{name}: is none of {', '.join(plan.media_types)}")
    return str(chosen)


def _form(plan: BodyPlan, value: Mapping[str, Any]) -> str:
    _check_other_fields(plan, value)
    parts: list[str] = []
    taken = {*value, *plan.fields, *plan.properties}
    for name, each in value.items():
        if each is None:
            continue
        field_plan = plan.fields.get(name, plan.other_fields)
        if field_plan.as_json or (field_plan.style != "deepObject" and _is_nested(each)):
            # What a form has no way to write, as JSON (section 4.8.14.4).
            parts.append(f"{_encoded(name)}={_encoded(_field_json(each, field_plan))}")
        else:
            parts += _query(name, each, field_plan.style, field_plan, taken)
    return "&".join(parts)


def _is_nested(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(isinstance(each, (dict, list)) for each in inner)


def _check_other_fields(plan: BodyPlan, value: Mapping[str, Any]) -> None:
    """Check that no field that the document doesn't name is read as one that it names.

    Raises:
        ValueError: One is.
    """
    described = {*plan.fields, *plan.properties}
    if others := [name for name in value if name not in described]:
        places = _places(described)
        for name in others:
            _check_member("body", name, places)


def _multipart(plan: BodyPlan, value: Mapping[str, Any]) -> tuple[bytes, str]:
    _check_other_fields(plan, value)
    files: list[tuple[str, tuple[str | None, bytes, str | None]]] = []
    taken = _places({*value, *plan.fields, *plan.properties})
    for name, each in value.items():
        if each is None:
            continue
        field_plan = plan.fields.get(name, plan.other_fields)
        if field_plan.style == "deepObject" and isinstance(each, (dict, list)) and not field_plan.is_file:
            pairs = _deep(name, each, taken - _places([name]), numbered=True)
            files += [(place, (None, text.encode(), None)) for place, text in pairs]
            continue
        items = each if field_plan.is_array and isinstance(each, list) else [each]
        files += [(name, _part(name, item, field_plan)) for item in items]
    if not files:
        # The library writes no multipart body without a part.
        files.append(("", (None, b"", None)))
    request = httpx2.Request("POST", "http://localhost/", files=files)
    return request.read(), request.headers["content-type"]


def _part(name: str, value: Any, field_plan: FieldPlan) -> tuple[str | None, bytes, str | None]:
    if _is_file(value, field_plan):
        return _file(name, value, field_plan)
    # What else a file's field may be has none of the types that its files have.
    media = None if field_plan.is_file else field_plan.media_type
    if isinstance(value, str) and not field_plan.as_json:
        return None, value.encode(), media
    kind = media or ("application/json" if isinstance(value, (dict, list)) else None)
    text = _field_json(value, field_plan) if field_plan.as_json else _json(value)
    return None, text.encode(), kind


def _is_file(value: Any, field_plan: FieldPlan) -> bool:
    """Whether a value of a field that may be a file is one."""
    if not field_plan.is_file:
        return False
    if isinstance(value, dict) and field_plan.may_be_object:
        return value.keys() <= {"data", "filename", "mime_type"} and isinstance(value.get("data"), str)
    return isinstance(value, dict) or (isinstance(value, str) and not field_plan.may_be_text)


def _file(name: str, value: Any, field_plan: FieldPlan) -> tuple[str | None, bytes, str | None]:
    described = value if isinstance(value, dict) else {"data": value}
    filename = str(described.get("filename") or name)
    if wrong := next((letter for letter in filename if not letter.isprintable()), None):
        raise ValueError(f"{name}: its filename contains {wrong!r}, which no filename may have there")
    if len(filename) > MAX_FILENAME_CHARS:
        raise ValueError(f"{name}: its filename has more than {MAX_FILENAME_CHARS} characters")
    kind = described.get("mime_type") or field_plan.media_type or "application/octet-stream"
    if not isinstance(kind, str) or not _MEDIA_TYPE.fullmatch(kind):
        raise ValueError(f"{name}: its mime_type is not a media type, such as image/png")
    return filename, _decoded(name, described.get("data")), kind


def _decoded(name: str, value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise ValueError(f"{name}: has to be base64, as of base64.b64encode(data).decode()") from None
