"""`display`, `artifact` and `progress`, and the shown form of the last expression's value."""

import binascii
import os
import sys
import types
from typing import Any

from mcp_bridge.guest.channel import Channel
from mcp_bridge.guest.output import Capture
from mcp_bridge.guest.proxies import NotAwaitedError, ask, tell
from mcp_bridge.guest.runner import cut, printable
from mcp_bridge.wire.errors import LocalMessageError
from mcp_bridge.wire.messages import ArtifactWrite, OutputDisplay, ProgressReport

ARTIFACT_CHUNK_BYTES = 512 * 1024

RICH_METHODS = (
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_markdown_", "text/markdown"),
)

IMAGE_MAGIC = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


class Display:
    """The script's ways to show something, bound to one channel."""

    def __init__(self, channel: Channel, capture: Capture) -> None:
        self._channel = channel
        self._capture = capture
        self.max_value = 1_000_000

    def display(self, *objects: Any) -> None:
        """Show objects: figures, images and Markdown as what they are, anything else by its `repr`."""
        for thing in objects:
            data = rich_form(thing)
            if data is None:
                print(thing if isinstance(thing, str) else repr(thing))  # noqa: T201
            else:
                self._capture.drain()
                tell(self._channel, OutputDisplay(data))

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the client how far the script is.

        Raises:
            ValueError: `done` or `total` is no number, or `message` no text.
        """
        try:
            self._channel.notify(ProgressReport(done, total, message))
        except LocalMessageError as exc:
            raise ValueError(str(exc)) from None

    def artifact(self, path: str | os.PathLike[str], name: str | None = None) -> str:
        """Keep a file beyond the sandbox's end. Returns the URI by which the client can read it.

        Raises:
            OSError: The file can't be read.
            MCPError: The host refuses it (its size, its name).
        """
        name = name or os.path.basename(os.fspath(path))
        first = True
        with open(path, "rb") as file:
            chunk = file.read(ARTIFACT_CHUNK_BYTES)
            while True:
                following = file.read(ARTIFACT_CHUNK_BYTES)
                text = binascii.b2a_base64(chunk, newline=False).decode("ascii")
                result = ask(self._channel, ArtifactWrite(name, text, first, not following))
                if not following:
                    return str(result["uri"])
                chunk, first = following, False

    def show(self, value: Any) -> str | None:
        """The last expression's value: None for None, a rich form displayed, else its `repr`, bounded."""
        self.show_figures()
        if value is None:
            return None
        if isinstance(value, types.CoroutineType):
            name = value.__qualname__
            value.close()
            raise NotAwaitedError(f"{name}(...) was never awaited, so it never ran; write: await {name}(...)")
        if rich_form(value) is not None:
            self.display(value)
            return None
        return cut(printable(repr(value)), self.max_value)

    def show_figures(self) -> None:
        """Show what matplotlib has open, as a notebook does at the end of a cell."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            for number in pyplot.get_fignums():
                self.display(pyplot.figure(number))
            pyplot.close("all")


def rich_form(thing: Any) -> dict[str, Any] | None:
    """MIME type → text, or base64 for images; None for a plain object."""
    if isinstance(thing, (bytes, bytearray)):
        for magic, mime in IMAGE_MAGIC:
            if thing.startswith(magic):
                return {mime: _base64(bytes(thing))}
        return None
    if isinstance(thing, type):
        return None
    if type(thing).__module__.startswith("matplotlib.") and hasattr(thing, "savefig"):
        import io

        buffer = io.BytesIO()
        thing.savefig(buffer, format="png", bbox_inches="tight")
        return {"image/png": _base64(buffer.getvalue())}
    for method, mime in RICH_METHODS:
        if callable(form := getattr(thing, method, None)):
            shown = form()
            if isinstance(shown, bytes):
                return {mime: _base64(shown)}
            if isinstance(shown, str):
                return {mime: shown}
    return None


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")
