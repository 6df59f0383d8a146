"""The JSON of the channel, by the C parts of the standard library's `json` alone.

`import json` imports `re` and compiles patterns. Without it a container starts with a fifth less processor time, and
keeps a mebibyte less while it waits. An interpreter that lacks the C parts uses the package.
"""

from mcp_bridge.wire.annotations import Any, NoReturn

try:
    import _json
except ImportError:
    _json = None  # type: ignore[assignment]

_SPACES = " \t\n\r"
"""JSON's white space (RFC 8259, section 2)."""


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:40]} is too large for a 64-bit float")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


class Decoder:
    """As `json.JSONDecoder`, for finite numbers only.

    Attributes:
        scan_once: Decodes the value at a position of a text; returns it and the position after it. Raises
            StopIteration if none begins there.
    """

    # What the C scanner reads of its context; the last since Python 3.15.
    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float = staticmethod(_finite)
    parse_int = int
    parse_constant = staticmethod(_refuse_constant)

    def __init__(self) -> None:
        if _json is not None:
            # By its stub, it takes one of its own kind.
            context: Any = self
            self.scan_once: Any = _json.make_scanner(context)
            return
        import json  # noqa: PLC0415  (only where the C parts are missing)

        decoder: Any = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)
        self.scan_once = decoder.scan_once

    def decode(self, text: str) -> Any:
        """The value of a document.

        Raises:
            ValueError: It isn't JSON, or has a number that isn't finite.
            RecursionError: It is nested too deeply.
        """
        try:
            value, end = self.scan_once(text, len(text) - len(text.lstrip(_SPACES)))
        except StopIteration as exc:
            raise _error("Expecting value", text, exc.value) from None
        if rest := text[end:].lstrip(_SPACES):
            raise _error("Extra data", text, len(text) - len(rest))
        return value


class Encoder:
    """As `json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))`.

    That makes the C encoder anew for each value, which takes longer than to encode a short one.
    """

    item_separator = ","

    def __init__(self) -> None:
        self._parts: Any = None
        if _json is not None:
            # Without a memory of the containers that it is in: two threads may encode the same one.
            sorts, skips, allows_nan = False, False, False
            quote = _json.encode_basestring
            self._parts = _json.make_encoder(None, _refuse_type, quote, None, ":", ",", sorts, skips, allows_nan)

    def encode(self, value: Any) -> str:
        """A value as JSON.

        Raises:
            TypeError, ValueError: It isn't of JSON's types, contains itself, or has a number that isn't finite.
            RecursionError: It is nested too deeply.
        """
        if self._parts is not None:
            try:
                return "".join(self._parts(value, 0))
            except RecursionError:
                # The package tells a value that contains itself from one that is too deep.
                pass
        import json  # noqa: PLC0415  (as a rule not needed, and slow to import)

        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _refuse_type(value: Any) -> NoReturn:
    # The text of `json`'s.
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _error(message: str, text: str, at: int) -> ValueError:
    from json import JSONDecodeError  # noqa: PLC0415  (likewise)

    return JSONDecodeError(message, text, at)
