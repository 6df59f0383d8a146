"""Images as clients and their models take them: of known types and bounded sizes; larger ones are scaled down."""

from mcp_bridge.guest.values import blocks
from mcp_bridge.wire.annotations import Any, NamedTuple
from mcp_bridge.wire.messages import MAX_IMAGE_BYTES

MAX_SIDE = 8000
"""Most pixels of a side: Anthropic's API refuses images with longer ones, and with them the whole conversation."""

MAX_PIXELS = 16_000_000
"""Most pixels of an image that is scaled. Of some formats each takes 16 bytes then, and a sandbox may have 512 MiB."""

SCALINGS = 8
"""How often an image is scaled down before it is given up."""

HEAD_CHARS = 1 << 20
"""How much base64 of an image is searched for its size: a JPEG may have a preview before it."""

MAX_SEGMENTS = 10_000
"""Most parts of a JPEG that are gone through for its size."""

_PNG = b"\x89PNG\r\n\x1a\n"
_MAGIC = ((_PNG, "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""The markers of a JPEG after which its size is."""


class Header(NamedTuple):
    """What an image's header says.

    Attributes:
        mime: Its type.
        width, height: In pixels.
    """

    mime: str
    width: int
    height: int


def type_of(data: bytes | bytearray) -> str | None:
    """The type of an image by how it begins; None for anything else."""
    for magic, mime in _MAGIC:
        if data.startswith(magic):
            return mime
    return "image/webp" if data.startswith(b"RIFF") and data[8:12] == b"WEBP" else None


def header(data: bytes) -> Header | None:
    """An image's header; None if it can't be read, or says that there are no pixels."""
    mime = type_of(data)
    sides = None if mime is None else _SIDES[mime](data)
    return Header(mime, *sides) if mime is not None and sides is not None and all(sides) else None


def _png_sides(data: bytes) -> tuple[int, int] | None:
    if len(data) < 24 or data[12:16] != b"IHDR":
        return None
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def _gif_sides(data: bytes) -> tuple[int, int] | None:
    if len(data) < 10 or data[4:6] not in {b"7a", b"9a"}:
        return None
    return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")


def _jpeg_sides(data: bytes) -> tuple[int, int] | None:
    at = 2
    for _ in range(MAX_SEGMENTS):
        if len(data) < at + 9 or data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker in _FRAMES:
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        if marker == 0xFF:
            # A byte that fills.
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _webp_sides(data: bytes) -> tuple[int, int] | None:
    if len(data) < 30:
        return None
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None


_SIDES = {"image/png": _png_sides, "image/jpeg": _jpeg_sides, "image/gif": _gif_sides, "image/webp": _webp_sides}


def fitting(mime: str, body: str) -> dict[str, Any] | str:
    """What to send for a base64 image: the image, or a scaled-down one and a note on that; or why it isn't shown."""
    import binascii

    # Lines of it are as good; what is sent has none.
    body = "".join(body.split())
    size = blocks.size(body)
    try:
        found = header(binascii.a2b_base64(body[:HEAD_CHARS]))
    except ValueError:
        return "its base64 is invalid"
    if found is None:
        return "its header can't be read"
    is_wide = max(found.width, found.height) > MAX_SIDE
    if size <= MAX_IMAGE_BYTES and not is_wide:
        return {found.mime: body}
    try:
        made, data, said = _scaled(binascii.a2b_base64(body), found)
    except Exception as exc:  # noqa: BLE001  (no Pillow here, or no image that it reads)
        sides = f"{MAX_SIDE} pixels a side, it has {found.width}x{found.height}"
        limit = sides if is_wide else f"{MAX_IMAGE_BYTES} bytes"
        if isinstance(exc, ImportError):
            return (
                f"the limit is {limit}, and Pillow, which scales, is not in the sandbox "
                '(the operator\'s setting `profile = "data"` brings it)'
            )
        return f"the limit is {limit}, and it can't be scaled down ({exc})"
    return {made: blocks.base64_of(data), "text/plain": f"[{mime} of {size} bytes scaled down {said}]"}


def _scaled(data: bytes, found: Header) -> tuple[str, bytes, str]:
    """A smaller image: its type, its bytes, and a note on its size.

    Raises:
        ImportError: Pillow isn't installed.
        ValueError: It can't be made small enough. Other errors are Pillow's.
    """
    import io

    # Nothing else may refer to the image: it is freed as soon as there is a smaller one.
    image = _opened(data, found)
    kind = "JPEG" if found.mime == "image/jpeg" else "PNG"
    size = len(data) * image.width * image.height // (found.width * found.height)
    mode = image.mode
    if mode in _PREMULTIPLIED:
        # As `resize` would itself, beside the image that it has.
        image = image.convert(_PREMULTIPLIED[mode])
    for _ in range(SCALINGS):
        factor = min(1.0, MAX_SIDE / max(image.size))
        if size > MAX_IMAGE_BYTES:
            # Scale by area, and a little more: a smaller image compresses less well.
            factor = min(factor, 0.9, (MAX_IMAGE_BYTES / size) ** 0.5 * 0.9)
        sides = max(1, int(image.width * factor)), max(1, int(image.height * factor))
        # By a whole factor first, which takes less memory; Pillow can't with colours of 16 bits.
        image = image.resize(sides, reducing_gap=None if mode.startswith("I;16") else 1.0)
        buffer = io.BytesIO()
        (image.convert(mode) if mode in _PREMULTIPLIED else image).save(buffer, kind)
        size = buffer.tell()
        if size <= MAX_IMAGE_BYTES:
            said = f"from {found.width}x{found.height} to {image.width}x{image.height}"
            return f"image/{kind.lower()}", buffer.getvalue(), said
    raise ValueError("it stays too large")


_PREMULTIPLIED = {"RGBA": "RGBa", "LA": "La"}
"""Pillow's modes of images with transparency, each with the one in which it scales them."""


def _opened(data: bytes, found: Header) -> Any:
    """Pillow's image, not decoded yet. A JPEG with too many pixels will be decoded at a half of its sides or less.

    Raises:
        ImportError: Pillow isn't installed.
        ValueError: It has too many pixels. Other errors are Pillow's.
    """
    import io
    from importlib import import_module

    pillow = import_module("PIL.Image")
    by = 1
    while found.width * found.height > MAX_PIXELS * by * by:
        by *= 2
    if by > 1 and found.mime != "image/jpeg":
        # To open it may take the memory already.
        raise ValueError(_TOO_MANY)
    image = pillow.open(io.BytesIO(data))
    # Of a progressive one, all that it has would be held first.
    if by > 1 and "progressive" not in image.info:
        image.draft(image.mode, (image.width // by, image.height // by))
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(_TOO_MANY)
    return image


_TOO_MANY = f"to scale more than {MAX_PIXELS} pixels takes too much memory"
