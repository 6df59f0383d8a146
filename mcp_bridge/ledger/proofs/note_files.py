"""Files of signed notes: one note after the other, with an empty line between two, as they are published.

Others may be able to add to such a file, and a crash may have left a part of a note: what is no note is skipped.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mcp_bridge.ledger.proofs.notes import MAX_NOTE_BYTES

_DASH = "\u2014".encode()
_MARK = _DASH + b" "
_SIGNATURE = rb"%s[^ \n]+ (?:[A-Za-z0-9+/=]{4}){23,}\n" % _MARK
"""With a key's id and a signature, 68 bytes or more in base64."""
_UNGAPPED = re.compile(rb"^(%s.*\n)(?=[^\n])(?!%s)" % (_MARK, _SIGNATURE), re.MULTILINE)
"""The end of a note without an empty line behind it: an appended line that is no signature must not invalidate it."""
_GAP = re.compile(rb"\n{2,}")


class CarriedOver(NamedTuple):
    """The part of a file's content that may still become a note: the last complete block, and what follows it."""

    block: bytes = b""
    rest: bytes = b""

    def and_then(self, data: bytes) -> tuple[list[bytes], CarriedOver]:
        """The notes that are complete with more of the file's content, and what is carried over."""
        text = self.rest + data
        end = text.rfind(b"\n") + 1
        # Concatenated notes need no gap between them.
        whole = _UNGAPPED.sub(rb"\1\n", text[:end])
        *blocks, rest = _GAP.split(whole if self.rest else whole.lstrip(b"\n"))
        notes, before = [], self.block
        for block in blocks:
            if block.startswith(_MARK) and before:
                notes.append(before + b"\n\n" + block + b"\n")
                before = b""
            else:
                # A text without signatures is dropped here.
                before = block
        rest += text[end:]
        if before and rest.startswith(_MARK) and len(rest) > MAX_NOTE_BYTES:
            # A note's own signatures come first, whatever was appended.
            cut = rest.rfind(b"\n", 0, MAX_NOTE_BYTES) + 1
            notes.append(before + b"\n\n" + rest[:cut])
            before = b""
        # A longer block can't be a note, and must not take memory.
        return notes, CarriedOver(before[-MAX_NOTE_BYTES:], rest[-MAX_NOTE_BYTES:])

    def last(self) -> list[bytes]:
        """The note that the carried content is if the file ends here."""
        return self.and_then(b"\n\n")[0]


def notes_in(text: str) -> list[str]:
    """The notes of a file, in order, without one that a crash has truncated. Signatures are not verified."""
    notes, carried = CarriedOver().and_then(text.encode())
    texts = (note.decode(errors="replace") for note in (*notes, *carried.last()))
    return [note for note in texts if _ENDED.search(note)]


_ENDED = re.compile(r" ([A-Za-z0-9+/=]{4}){23,}\n\Z")
"""A last line with a key's id and a signature, 68 bytes or more in base64."""
