"""`display`, `artifact` and `progress`, and the text form of the last expression's value."""

import os
import sys
import types

from mcp_bridge.guest.channel import Channel
from mcp_bridge.guest.host_requests import MCPError, notify_host
from mcp_bridge.guest.not_awaited import NotAwaitedError
from mcp_bridge.guest.output import Capture
from mcp_bridge.guest.runner import cut, printable
from mcp_bridge.guest.values import blocks
from mcp_bridge.guest.values.blocks import IMAGE_TYPES
from mcp_bridge.wire.annotations import Any, Callable
from mcp_bridge.wire.errors import LocalMessageError
from mcp_bridge.wire.messages import OutputDisplay, ProgressReport

MAX_FIGURES = 20
"""Most open figures that are shown at the end of a script."""

OUT = "/workspace/out"

MAX_SAVED_BYTES = 64 << 20
"""The largest saved figure that is recognised when its file is displayed."""


def _is_used(folder: str) -> bool:
    """Whether anything is in a folder."""
    try:
        with os.scandir(folder) as found:
            return any(True for _ in found)
    except OSError:
        # The script has removed it, or put something else in its place.
        return os.path.lexists(folder)


class Display:
    """The script's output functions, bound to a channel."""

    def __init__(self, channel: Channel, capture: Capture) -> None:
        self._channel = channel
        self._capture = capture
        self._pid = os.getpid()
        """That of the process that has the channel."""
        self.max_value = 1_000_000
        self._sent: set[int] = set()
        """Digests of displayed images: each is sent once."""
        self._saved: Any = {}
        """For each figure, the digests of the files to which it was saved."""
        self._documents = 0
        self._left: Any = None
        """Keeps what is left in /workspace/out; None until something of that is known."""
        try:
            os.mkdir(OUT)
        except OSError:
            # A run that is rebuilt, or no sandbox at all.
            pass

    def begin(self) -> None:
        """Begin a session's cell, which may show again what an earlier one has shown."""
        self._sent.clear()
        self._documents = 0

    def display(self, *objects: Any) -> None:
        """Show objects: figures, images and Markdown as what they are, tables as text, anything else by its `repr`.

        An image is a matplotlib figure, a PIL image, the bytes of a PNG, JPEG, GIF or WebP file, or an image in a
        tool's result; in a list or a dict, too. HTML, PDF and audio, also those in a tool's result, are kept as files.
        """
        for thing in objects:
            forms = forms_of(thing)
            left = self._send_rich(thing, forms, self._kept_block)
            if left is thing:
                left = self._without_document(thing, forms)
            if not isinstance(left, ImagePlaceholder):
                print(left if isinstance(left, str) else repr(left))  # noqa: T201

    def _send_rich(self, thing: Any, forms: Any, instead: Callable[[dict[str, Any]], Any] = lambda _: None) -> Any:
        """Send the rich content of an object; return the rest to show as text, or an `ImagePlaceholder` for nothing.

        `forms` are the object's `forms_of`; `instead` is as for `extract_images`.
        """
        data = rich_form(thing, forms)
        if data is not None:
            self._send(data)
            return ImagePlaceholder(*next(iter(data.items())))
        left, images = extract_images(thing, instead)
        for image in images:
            self._send(image)
        return left

    def _without_document(self, thing: Any, forms: Any) -> Any:
        """Keep an object that is a document; a table as text; anything else as it is."""
        if isinstance(thing, (int, float, dict, tuple, type, types.ModuleType)) or thing is None:
            return thing
        # Imported late: most scripts display neither.
        from mcp_bridge.guest.files.documents import document
        from mcp_bridge.guest.values.table_text import table

        try:
            if (text := table(thing)) is not None:
                return Shown(text)
            found = document(thing, forms)
            own = None if forms is None else forms.get("text/plain")
        except Exception:  # noqa: BLE001  (the script's own class: its `repr` may do all the same)
            return thing
        if found is None:
            return thing if own is None else Shown(own)
        line = self._kept(found)
        if (
            own is None
            and not isinstance(thing, (str, bytes, bytearray, memoryview))
            and type(thing).__repr__ is not _NO_REPR
        ):
            own = repr(thing)
        return Shown(line if own is None else f"{own}\n{line}")

    def _kept_block(self, part: dict[str, Any]) -> Any:
        """What is shown in place of a PDF or audio in a tool's result, which is kept; None for anything else."""
        if not blocks.is_block(part) or blocks.mime(part) in IMAGE_TYPES:
            return None
        from mcp_bridge.guest.files.documents import of_block

        found = of_block(part)
        return None if found is None else Shown(self._kept(found))

    def _kept_image(self, mime: str, body: str, why: str) -> str:
        """Keep an image that isn't shown; the line about that."""
        from mcp_bridge.guest.files.documents import of_image

        found = of_image(mime, body)
        if found is None:
            return f"[{mime} not shown: {why}]"
        return self._kept(found, f" not shown, since {why}")

    def _kept(self, found: Any, said: str = "") -> str:
        """Keep a document; the line about that, with what else is `said` of it."""
        import io

        self._documents += 1
        what = f"{found.mime} of {len(found.data)} bytes{said}"
        try:
            uri = self._keep(io.BytesIO(found.data), f"display-{self._documents}{found.suffix}")
        except MCPError as exc:
            return f"[{what} not kept: [{exc.code}] {exc.message}]"
        return f"[{what}: {uri}]"

    def _send(self, data: dict[str, Any]) -> None:
        mime, body = next(iter(data.items()))
        if mime in IMAGE_TYPES:
            digest = hash((mime, body))
            if digest in self._sent:
                return
            self._sent.add(digest)
            # Imported late, as all that is about images: most scripts show none.
            from mcp_bridge.guest.values.images import fitting

            found = fitting(mime, body)
            data = found if isinstance(found, dict) else {"text/plain": self._kept_image(mime, body, found)}
        self._capture.drain()
        for kind, text in data.items():
            notify_host(self._channel, OutputDisplay({kind: text}))

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
        with open(path, "rb") as file:
            uri = self._keep(file, name)
            if _is_used(OUT):
                from mcp_bridge.guest.files.left_files import key_of

                self._left_files().was_kept(path, key_of(os.fstat(file.fileno())))
            return uri

    def _keep(self, file: Any, name: str) -> str:
        # Imported late: most scripts keep no file.
        from mcp_bridge.guest.files.left_files import keep_file

        return keep_file(self._channel, file, name)

    def _left_files(self) -> Any:
        if self._left is None:
            # Imported late: most scripts leave nothing.
            from mcp_bridge.guest.files.left_files import LeftFiles

            self._left = LeftFiles(self._keep)
        return self._left

    def keep_left_files(self, interrupted_at: Callable[[], float | None]) -> None:
        """Keep what is in /workspace/out, at the end of a script or a cell.

        Args:
            interrupted_at: As for `LeftFiles.keep_all`.
        """
        if _is_used(OUT):
            self._left_files().keep_all(interrupted_at)

    def show(self, value: Any) -> str | None:
        """The last expression's value as text: its `repr`, bounded; None for None or if a rich form was displayed."""
        try:
            return self._show_value(value)
        finally:
            # Afterwards, as in a notebook: the value may be the file of an open figure.
            self.show_figures()

    def _show_value(self, value: Any) -> str | None:
        if value is None:
            return None
        if isinstance(value, types.CoroutineType):
            name = value.__qualname__
            value.close()
            raise NotAwaitedError(f"{name}(...) was never awaited, so it never ran; write: await {name}(...)")
        left = self._send_rich(value, forms_of(value))
        if left is value and type(value).__module__.partition(".")[0] == "pandas":
            from mcp_bridge.guest.values.table_text import table

            try:
                text = table(value)
            except Exception:  # noqa: BLE001  (as in `_without_document`)
                text = None
            left = value if text is None else Shown(text)
        return None if isinstance(left, ImagePlaceholder) else cut(printable(_text(left)), self.max_value)

    def show_figures(self) -> None:
        """Display matplotlib's open figures and close them, as a notebook does at the end of a cell.

        Those that were shown already aren't displayed again.
        """
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            numbers = pyplot.get_fignums()
            if len(numbers) > MAX_FIGURES:
                print(f"[{len(numbers) - MAX_FIGURES} more open figures: display(figure) shows one]")  # noqa: T201
            try:
                for number in numbers[:MAX_FIGURES]:
                    self._show_figure(pyplot, number)
            finally:
                # One that can't be shown in time would be there again in each later cell.
                pyplot.close("all")

    def _show_figure(self, pyplot: Any, number: int) -> None:
        """Display an open figure that wasn't shown yet; say so if it can't be drawn."""
        try:
            figure = pyplot.figure(number)
            if self._sent.isdisjoint(self._saved.get(figure, ())):
                self.display(figure)
        except Exception as exc:  # noqa: BLE001  (the script's own text or artist; neither is it the script's end)
            print(f"[figure {number} can't be drawn: {type(exc).__name__}: {exc}]", file=sys.stderr)  # noqa: T201

    def follow_pyplot(self) -> None:
        """Have `pyplot.show` display the open figures and close them, as in a notebook: what is drawn then is new."""
        import functools

        pyplot = sys.modules["matplotlib.pyplot"]
        plain = pyplot.show

        @functools.wraps(plain)
        def show(*args: Any, **kwargs: Any) -> Any:
            # A forked process has no channel.
            if os.getpid() != self._pid:
                return plain(*args, **kwargs)
            # Where the script goes on drawing, as after `pyplot.pause`, the figure is shown at the end.
            if kwargs.get("block", args[0] if args else None) is not False:
                self.show_figures()
            return None

        pyplot.show = show  # type: ignore[attr-defined]

    def follow_figures(self) -> None:
        """Track the files to which figures are saved, so that a figure and its file aren't both displayed."""
        import functools
        import weakref

        from mcp_bridge.guest.values.images import type_of

        self._saved = weakref.WeakKeyDictionary()
        figures = sys.modules["matplotlib.figure"].Figure
        plain = figures.savefig

        @functools.wraps(plain)
        def savefig(figure: Any, fname: Any, *args: Any, **kwargs: Any) -> Any:
            result = plain(figure, fname, *args, **kwargs)
            data = _content(fname)
            if (mime := type_of(data)) is not None:
                self._saved.setdefault(figure, set()).add(hash((mime, blocks.base64_of(data))))
            return result

        savefig.unfollowed = plain  # type: ignore[attr-defined]
        figures.savefig = savefig


def _text(value: Any) -> str:
    try:
        return repr(value)
    except ValueError as exc:
        if "integer string conversion" in str(exc):
            exc.add_note(
                "It is in the value of the last expression: end with hex(...) of it, or write "
                "`import sys; sys.set_int_max_str_digits(0)` before."
            )
        raise


_NO_REPR: Any = object.__repr__


class Shown(str):
    """A text that is shown in an object's place."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class ImagePlaceholder:
    """Replaces an image in the text form of the value that contains it."""

    def __init__(self, mime: str, body: str) -> None:
        self._text = f"<{mime}, {blocks.size(body)} bytes>"

    def __repr__(self) -> str:
        return self._text


def extract_images(
    value: Any, instead: Callable[[dict[str, Any]], Any] = lambda _: None
) -> tuple[Any, list[dict[str, Any]]]:
    """A value with its images replaced, and the images. Lists, tuples and dicts are searched.

    A value without images is returned unchanged.

    Args:
        value: The value.
        instead: What stands in place of a dict that is no image; None for itself.
    """
    images: list[dict[str, Any]] = []
    left = blocks.MAX_VALUES * blocks.SCALARS_PER_VALUE
    replaced = 0

    def image(form: dict[str, Any]) -> ImagePlaceholder:
        nonlocal replaced
        replaced += 1
        images.append(form)
        return ImagePlaceholder(*next(iter(form.items())))

    def looked_at(part: Any, depth: int) -> Any:
        nonlocal left, replaced
        if type(part) in _SCALARS:
            left -= 1
            return part
        left -= blocks.SCALARS_PER_VALUE
        if left < 0 or depth > blocks.MAX_DEPTH:
            return part
        before = replaced
        made: Any = part
        if isinstance(part, dict):
            if (form := _image_block(part)) is not None:
                return image(form)
            if (other := instead(part)) is not None:
                replaced += 1
                return other
            made = {key: looked_at(inner, depth + 1) for key, inner in part.items()}
        elif isinstance(part, (list, tuple)):
            made = [looked_at(inner, depth + 1) for inner in part]
            made = made if isinstance(part, list) else tuple(made)
        elif (form := _image_form(part)) is not None:
            return image(form)
        # A part without images stays the same object, which may have its own `repr`.
        return made if replaced > before else part

    return (looked_at(value, 0), images) if isinstance(value, (dict, list, tuple)) else (value, [])


_SCALARS = (int, float, str, bool, type(None))


def _image_form(thing: Any) -> dict[str, Any] | None:
    """The rich form of a list item if it is an image."""
    # Looking up attributes of a server's module would request its tools.
    if isinstance(thing, (str, int, float, type(None), types.ModuleType)):
        return None
    try:
        form = rich_form(thing, forms_of(thing))
    except Exception:  # noqa: BLE001  (the script's own class: its `repr` may do all the same)
        return None
    return form if form is not None and next(iter(form)) in IMAGE_TYPES else None


def _image_block(part: dict[str, Any]) -> dict[str, Any] | None:
    """An image in a tool's result, in its own form or that of `.raw`: `{mime_type | mimeType, data | blob}`."""
    mime, body = blocks.mime(part), blocks.body(part)
    if isinstance(mime, str) and mime in IMAGE_TYPES and isinstance(body, str):
        return {mime: body}
    return None


def _content(file: Any) -> bytes:
    """The content written to a file, given by path or as an object; empty if unknown."""
    try:
        if isinstance(file, (str, os.PathLike)):
            with open(file, "rb") as opened:
                return opened.read(MAX_SAVED_BYTES)
        value = file.getvalue()
    except (AttributeError, OSError, ValueError):
        return b""
    return value if isinstance(value, bytes) else b""


def forms_of(thing: Any) -> Any:
    """The `RichForms` of an object; None for what has none, such as a text, bytes, a list or a class."""
    if type(thing) in _FORMLESS or isinstance(thing, (bytes, bytearray, type, types.ModuleType)):
        return None
    from mcp_bridge.guest.values.rich_forms import RichForms

    return RichForms(thing)


_FORMLESS = frozenset({*_SCALARS, dict, list, tuple, set, frozenset, memoryview})


def rich_form(thing: Any, forms: Any) -> dict[str, Any] | None:
    """MIME type → text, or base64 for images; None for an object without a rich form. `forms` are its `forms_of`."""
    if isinstance(thing, (bytes, bytearray)):
        from mcp_bridge.guest.values.images import type_of

        mime = type_of(thing)
        return None if mime is None else {mime: blocks.base64_of(thing)}
    if forms is None:
        return None
    if type(thing).__module__.startswith("matplotlib.") and hasattr(thing, "savefig"):
        import io

        buffer = io.BytesIO()
        # Not recorded as a file of the script: a figure that changes after it was shown is shown again.
        unfollowed = getattr(thing.savefig, "unfollowed", None)
        if unfollowed is None:
            thing.savefig(buffer, format="png", bbox_inches="tight")
        else:
            unfollowed(thing, buffer, format="png", bbox_inches="tight")
        return {"image/png": blocks.base64_of(buffer.getvalue())}
    from mcp_bridge.guest.values.rich_forms import SHOWN

    for mime in SHOWN:
        if (form := forms.get(mime)) is not None:
            return {mime: blocks.base64_of(form) if isinstance(form, bytes) else form}
    return None
