"""A tool's text result that is a JSON document."""

from mcp_bridge.wire.annotations import Any

MAX_DOCUMENT_CHARS = 16 << 20
"""Longer texts are not decoded."""

METHODS = frozenset({"get", "keys", "values", "items"})

_UNREAD = object()


class JsonText(str):  # noqa: SLOT000  (the decoded document is cached)
    """Text, in every way; asked for a key, as a dict would be, it answers from the JSON object that it holds.

    Servers send JSON as text, and who reads a tool's result takes it for what it says. Positions stay characters.
    """

    def __init__(self, _: str) -> None:
        self._read = _UNREAD

    def document(self) -> Any:
        """The object or array that the text encodes, decoded once; None if it is neither."""
        if self._read is _UNREAD:
            import json

            try:
                read = json.loads(self) if len(self) <= MAX_DOCUMENT_CHARS else None
            except (ValueError, RecursionError):
                read = None
            self._read = read if isinstance(read, (dict, list)) else None
        return self._read

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            document = self.document()
            if isinstance(document, dict):
                return document[key]
            if isinstance(document, list):
                raise TypeError(
                    "string indices must be integers, not 'str': this text holds a JSON array; "
                    f"write json.loads(text)[0][{key!r}], with import json"
                )
        return super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        if name in METHODS and isinstance(document := self.document(), dict):
            return getattr(document, name)
        raise AttributeError(f"'str' object has no attribute {name!r}")

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        # In another process the copy is plain text.
        return str, (str.__str__(self),)


JsonText.__module__ = "mcp"


def of(value: Any) -> Any:
    """A value, in which text that may be a JSON object or array becomes a `JsonText`."""
    if type(value) is str:
        ends = value[:1], value[-1:]
        if ends in {("{", "}"), ("[", "]")}:
            return JsonText(value)
        if value[:1].isspace() or value[-1:].isspace():
            trimmed = value.strip()
            if (trimmed[:1], trimmed[-1:]) in {("{", "}"), ("[", "]")}:
                return JsonText(value)
    return value
