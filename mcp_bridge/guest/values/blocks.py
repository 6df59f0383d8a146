"""Non-text content of a tool's result (images, audio, files), which prints in a short form and keeps all its data."""

from mcp_bridge.wire.annotations import Any, Iterator

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Types of images that can be displayed."""

MAX_DEPTH = 8
MAX_VALUES = 20_000
"""Bounds on the search for blocks in a value."""

SCALARS_PER_VALUE = 10
"""In the search for images so many scalars, which cost little, count as one value."""


_BASE64 = dict.fromkeys(map(ord, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"))


class Block(dict[str, Any]):
    """A dict with base64 data that prints as a short description."""

    def __repr__(self) -> str:
        if not is_block(self):
            # The script has modified it.
            return dict.__repr__(self)
        what = f"{mime(self)} {self['uri']}" if isinstance(self.get("uri"), str) else mime(self)
        shown = "display(it) shows it, " if mime(self) in IMAGE_TYPES else ""
        return f"<{what}, {size(body(self))} bytes; {shown}[{'data' if self.get('data') else 'blob'!r}] is its base64>"

    __str__ = __repr__

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        # In another process the copy is a plain dict.
        return dict, (dict(self),)


Block.__module__ = "mcp"


def mime(block: dict[str, Any]) -> Any:
    """A block's MIME type, whether it has the names of `.raw` or not."""
    return block.get("mime_type") or block.get("mimeType")


def body(block: dict[str, Any]) -> Any:
    """A block's data in base64."""
    return block.get("data") or block.get("blob")


def base64_of(data: bytes | bytearray) -> str:
    """Bytes in base64."""
    import binascii

    return binascii.b2a_base64(data, newline=False).decode("ascii")


def size(text: str) -> int:
    """The decoded size of base64 text in bytes."""
    return len(text) * 3 // 4 - text[-2:].count("=")


def short(value: Any) -> Any:
    """A JSON value in which dicts with binary data are replaced by `Block`s."""
    if is_block(value):
        return Block(value)
    if not isinstance(value, (dict, list)):
        return value
    left = MAX_VALUES
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        following = []
        for parent in level:
            left -= len(parent)
            if left < 0:
                return value
            for place, inner in _places(parent):
                if isinstance(inner, (dict, list)):
                    if is_block(inner):
                        parent[place] = Block(inner)
                    else:
                        following.append(inner)
        level = following
    return value


def _places(parent: Any) -> Iterator[tuple[Any, Any]]:
    return iter(list(parent.items())) if isinstance(parent, dict) else enumerate(parent)


def is_block(value: Any) -> bool:
    """Whether a value is an object with data that isn't text, in base64."""
    if not isinstance(value, dict) or not isinstance(kind := mime(value), str) or kind.startswith("text/"):
        return False
    text = body(value)
    # In other structured data, `data` may be anything.
    return isinstance(text, str) and len(text) % 4 == 0 and not text.rstrip("=").translate(_BASE64)
