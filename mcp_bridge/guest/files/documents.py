"""Documents that a script displays and that aren't pictures (HTML, PDF, audio): each is kept as a file."""

from mcp_bridge.guest.values import blocks
from mcp_bridge.wire.annotations import Any, NamedTuple


class Document(NamedTuple):
    """Something that is kept as a file, and named in its place.

    Attributes:
        mime: Its MIME type.
        suffix: Of its file's name.
        data: Its content.
    """

    mime: str
    suffix: str
    data: bytes


MAGIC = (
    (b"%PDF-", "application/pdf", ".pdf"),
    (b"OggS", "audio/ogg", ".ogg"),
    (b"fLaC", "audio/flac", ".flac"),
    (b"ID3", "audio/mpeg", ".mp3"),
    (b"\xff\xfb", "audio/mpeg", ".mp3"),
)


SUFFIXES = {
    "application/pdf": ".pdf",
    "audio/aac": ".aac",
    "audio/flac": ".flac",
    "audio/mp3": ".mp3",
    "audio/mp4": ".m4a",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/wav": ".wav",
    "audio/wave": ".wav",
    "audio/webm": ".weba",
    "audio/x-wav": ".wav",
}
"""Of the files of what tools give, by type; other audio has none of its own."""


def document(thing: Any, forms: Any) -> Document | None:
    """An object as a document: bytes of a PDF or of audio, or what has an HTML or PDF form; None for anything else.

    `forms` are the object's `RichForms`, or None.
    """
    if isinstance(thing, str):
        is_page = thing[:200].lstrip().lower().startswith(("<!doctype html", "<html"))
        return Document("text/html", ".html", thing.encode("utf-8", "backslashreplace")) if is_page else None
    if isinstance(thing, (bytes, bytearray, memoryview)):
        return of_bytes(bytes(thing))
    for mime, suffix in (("application/pdf", ".pdf"), ("text/html", ".html")) if forms is not None else ():
        made = forms.get(mime)
        if isinstance(made, str):
            made = _decoded(made) if mime == "application/pdf" else made.encode("utf-8", "backslashreplace")
        if made is not None:
            return Document(mime, suffix, made)
    return None


def of_bytes(data: bytes) -> Document | None:
    """The bytes of a PDF, or of an audio file."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return Document("audio/wav", ".wav", data)
    for magic, mime, suffix in MAGIC:
        if data.startswith(magic):
            return Document(mime, suffix, data)
    return None


def of_block(block: dict[str, Any]) -> Document | None:
    """The PDF or audio in a tool's result; None for anything else, also for what is no base64."""
    if not blocks.is_block(block):
        return None
    mime = blocks.mime(block)
    if mime != "application/pdf" and not mime.startswith("audio/"):
        return None
    data = _decoded(blocks.body(block))
    return Document(mime, SUFFIXES.get(mime, ".bin"), data) if data else None


def of_image(mime: str, body: str) -> Document | None:
    """An image in base64 that isn't shown; None for what is no base64."""
    data = _decoded(body)
    return Document(mime, f".{mime.removeprefix('image/')}", data) if data else None


def _decoded(body: str) -> bytes | None:
    import binascii

    try:
        return binascii.a2b_base64(body)
    except ValueError:
        return None
