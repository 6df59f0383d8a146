"""Documents that a script displays and that aren't pictures (HTML, PDF, audio): each is kept as a file."""

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


def document(thing: Any) -> Document | None:
    """An object as a document: bytes of a PDF or of audio, or what has an HTML or PDF form; None for anything else."""
    if isinstance(thing, str):
        is_page = thing[:200].lstrip().lower().startswith(("<!doctype html", "<html"))
        return Document("text/html", ".html", thing.encode("utf-8", "backslashreplace")) if is_page else None
    if isinstance(thing, (bytes, bytearray, memoryview)):
        return of_bytes(bytes(thing))
    for method, mime, suffix in (("_repr_pdf_", "application/pdf", ".pdf"), ("_repr_html_", "text/html", ".html")):
        form = getattr(thing, method, None)
        if callable(form):
            made = form()
            if isinstance(made, str):
                made = made.encode("utf-8", "backslashreplace")
            if isinstance(made, bytes):
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
