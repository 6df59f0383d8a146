"""The forms that an object has besides its text, as notebooks ask for them: pictures, Markdown, HTML, PDF."""

from mcp_bridge.wire.annotations import Any

_METHODS = {
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "image/svg+xml": "_repr_svg_",
    "text/markdown": "_repr_markdown_",
    "application/pdf": "_repr_pdf_",
    "text/html": "_repr_html_",
}

SHOWN = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml", "text/markdown")
"""The types that are shown as they are, the first one there."""


class RichForms:
    """An object's forms, each made when it is asked for.

    Args:
        thing: The object.
    """

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self._bundle: Any = None
        """All forms that the object has made at once; None before it was asked."""

    def get(self, mime: str) -> bytes | str | None:
        """The form of a type; None if there is none. Of a picture, a text is base64.

        Raises:
            Exception: Whatever the object's method raises.
        """
        if self._bundle is None:
            self._bundle = _bundle_of(self._thing)
        form = _form(self._bundle.get(mime))
        # As IPython does: what the bundle leaves out, a method may have.
        if form is None and (name := _METHODS.get(mime)) and callable(method := getattr(self._thing, name, None)):
            form = _form(method())
        if isinstance(form, str) and mime.startswith("image/") and mime != "image/svg+xml":
            return "".join(form.split())
        return form


def _bundle_of(thing: Any) -> dict[str, Any]:
    # Of the class: an object that answers to any name has none.
    method = getattr(type(thing), "_repr_mimebundle_", None)
    if not callable(method):
        return {}
    try:
        made = method(thing, include=None, exclude=None)
    except Exception:  # noqa: BLE001  (the script's own class; its other forms are there)
        return {}
    made = _without_metadata(made)
    return made if isinstance(made, dict) else {}


def _form(made: Any) -> bytes | str | None:
    made = _without_metadata(made)
    return made if isinstance(made, (bytes, str)) else None


def _without_metadata(made: Any) -> Any:
    return made[0] if isinstance(made, tuple) and len(made) == 2 else made
