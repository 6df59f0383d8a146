"""Displayed objects: validated before anyone receives them, because a guest's MIME types and base64 are untrusted.

Some clients get no image of a failed call.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_bridge.wire.messages import MAX_IMAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_IMAGES_BYTES = 16 << 20
"""Size limit of all images of one answer, decoded."""

MAX_MIME_CHARS = 80

SHOWS_NO_IMAGE_OF_ERRORS = ("claude-code", "gemini-cli", "opencode")
"""Clients that don't display images of failed calls: Claude Code and opencode drop them silently; Gemini CLI shows the
whole result as JSON, including the base64."""

_TEXT_TYPES = ("image/svg+xml", "application/json", "application/xml", "application/javascript")
_TEXT_ENDS = ("+json", "+xml")


def shows_images_of_errors(client: str | None) -> bool:
    """Whether this client may show images of a failed call to the model as images."""
    return client is None or not client.lower().startswith(SHOWS_NO_IMAGE_OF_ERRORS)


@dataclass(frozen=True, slots=True)
class Text:
    """A displayed text."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """A validated image in base64."""

    mime_type: str
    data: str
    size: int


@dataclass(frozen=True, slots=True)
class Omitted:
    """A displayed object that was left out, and why."""

    mime_type: str
    why: str

    def __str__(self) -> str:
        return f"[{self.mime_type!r} left out: {self.why}]"


def checked(displays: Iterable[dict[str, str]]) -> Iterator[Text | Image | Omitted]:
    """Validate the displayed objects, in order."""
    room = MAX_IMAGES_BYTES
    for data in displays:
        mime, body = next(iter(data.items()))
        if is_text(mime):
            yield Text(body)
            continue
        shown = _image(mime, body, room)
        if isinstance(shown, Image):
            room -= shown.size
        yield shown


def is_text(mime: str) -> bool:
    """Whether content of a MIME type is text."""
    return mime.startswith("text/") or mime in _TEXT_TYPES or mime.endswith(_TEXT_ENDS)


def size(mime: str, body: str) -> int:
    """The size of a displayed object in bytes, assuming that its base64 is valid."""
    if is_text(mime):
        return len(body.encode("utf-8", "surrogatepass"))
    return len(body) * 3 // 4 - body[-2:].count("=")


def summary(displays: Iterable[dict[str, str]]) -> list[dict[str, str | int]]:
    """The MIME types and sizes."""
    first = (next(iter(data.items())) for data in displays)
    return [{"mime_type": mime[:MAX_MIME_CHARS], "size": size(mime, body)} for mime, body in first]


def _image(mime: str, body: str, room: int) -> Image | Omitted:
    name = mime[:MAX_MIME_CHARS]
    if mime not in _MAGIC:
        return Omitted(name, "a type that can't be shown; artifact(path) keeps a file")
    # Checked before decoding, so that an oversized image takes no memory.
    claimed = size(mime, body)
    if claimed > MAX_IMAGE_BYTES:
        return Omitted(name, f"{claimed} bytes, the limit is {MAX_IMAGE_BYTES}; artifact(path) keeps a file")
    if claimed > room:
        return Omitted(name, f"the images of one run are over {MAX_IMAGES_BYTES} bytes; artifact(path) keeps a file")
    try:
        data = binascii.a2b_base64(body, strict_mode=True)
    except ValueError:
        return Omitted(name, "its base64 is invalid")
    if not _MAGIC[mime](data):
        return Omitted(name, "its content is not of that type")
    return Image(mime, body, len(data))


_MAGIC = {
    "image/png": lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"),
    "image/jpeg": lambda data: data.startswith(b"\xff\xd8\xff"),
    "image/gif": lambda data: data.startswith((b"GIF87a", b"GIF89a")),
    "image/webp": lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP",
}
