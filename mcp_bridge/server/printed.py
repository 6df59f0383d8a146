r"""What a script printed, as text of which no more is decoded than is shown.

Bytes that are no UTF-8 are written as `\xNN`, which takes four characters a byte: of 32 MiB, which a script may print,
128 MiB.
"""

from __future__ import annotations

import codecs

_STEP_BYTES = 256 << 10

MAX_CHAR_BYTES = 4
"""The most bytes of one character of UTF-8."""


class Printed:
    """Bytes as text: its length, its beginning and its end.

    Args:
        data: The bytes.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._length: int | None = None

    def __len__(self) -> int:
        """Characters of the text."""
        if self._length is None:
            self._length = self._counted()
        return self._length

    def __str__(self) -> str:
        return _text(self.data)

    def first(self, count: int) -> str:
        """The first characters."""
        # The last character of the part may be cut, and isn't one of them.
        return _text(self.data[: MAX_CHAR_BYTES * (count + 1)])[:count]

    def last(self, count: int) -> str:
        """The last characters."""
        if not count:
            return ""
        # What the part's beginning cuts is at most three bytes.
        return _text(self.data[-MAX_CHAR_BYTES * (count + MAX_CHAR_BYTES) :])[-count:]

    def _counted(self) -> int:
        # Each byte that is no UTF-8 is one surrogate here, and none in what is encoded again: ten times quicker.
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
