r"""A script's output as text, decoded only as far as it is displayed.

Invalid UTF-8 is written as `\xNN`, four characters a byte: 128 MiB for the 32 MiB that a script may print.
"""

from __future__ import annotations

import codecs

_STEP_BYTES = 256 << 10

MAX_CHAR_BYTES = 4
"""The maximum length of a UTF-8 character in bytes."""


class Printed:
    """Bytes as text: its length, its beginning and its end.

    Args:
        data: The bytes.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._length: int | None = None

    def __len__(self) -> int:
        """The length of the text in characters."""
        if self._length is None:
            self._length = self._counted()
        return self._length

    def __str__(self) -> str:
        return _text(self.data)

    def first(self, count: int) -> str:
        """The first characters."""
        # The last character of this part may be incomplete, but it isn't among the first `count`.
        return _text(self.data[: MAX_CHAR_BYTES * (count + 1)])[:count]

    def last(self, count: int) -> str:
        """The last characters."""
        if not count:
            return ""
        # The beginning of this part may have at most three bytes of an incomplete character.
        return _text(self.data[-MAX_CHAR_BYTES * (count + MAX_CHAR_BYTES) :])[-count:]

    def _counted(self) -> int:
        # Invalid bytes become one surrogate each here, and are dropped when encoding again: ten times faster.
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        characters = encoded = 0
        for start in range(0, len(self.data), _STEP_BYTES):
            end = start + _STEP_BYTES
            text = decoder.decode(self.data[start:end], final=end >= len(self.data))
            characters += len(text)
            encoded += len(text.encode("utf-8", "ignore"))
        return characters + (len(r"\xff") - 1) * (len(self.data) - encoded)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
