"""An entry as it is handed out: its bytes, and its payload with the salt of its commitment, or without.

The one form is a JSON object in canonical form (RFC 8785): a line of an export, the extra data of a proof. Objects of
this kind are read name by name and not by a general reader of JSON, which a hostile file could make fill the memory.
"""

from __future__ import annotations

import hmac
import json
import re
from dataclasses import dataclass
from json.encoder import encode_basestring as _encode_text
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log import entry_encoding

if TYPE_CHECKING:
    from collections.abc import Sequence

SALT_BYTES = 32

_WHOLE = re.compile(r"0|[1-9][0-9]{0,15}")
_SALT = re.compile(r"[0-9a-f]{64}")

_decode_text = json.JSONDecoder().raw_decode

Value = str | int | None
"""What such an object's values can be."""


@dataclass(frozen=True, slots=True)
class Disclosed:
    """An entry, and what of it can be shown.

    Attributes:
        entry: Its bytes, as they are hashed.
        payload: The payload's bytes, UTF-8; None where it is erased, or not shown.
        salt: The key of the commitment, 32 bytes; None together with the payload.
    """

    entry: bytes
    payload: bytes | None = None
    salt: bytes | None = None


def commitment(payload: bytes | Sequence[bytes], salt: bytes) -> str:
    """An entry's commitment to its payload: HMAC-SHA-256 under the salt, in hex. The payload may be passed in parts."""
    if isinstance(payload, bytes):
        return hmac.digest(salt, payload, "sha256").hex()
    if len(payload) == 1:
        return hmac.digest(salt, payload[0], "sha256").hex()
    whole = hmac.new(salt, digestmod="sha256")
    for part in payload:
        whole.update(part)
    return whole.hexdigest()


def encode(disclosed: Disclosed) -> bytes:
    """The entry as one JSON object, without a newline."""
    payload = None if disclosed.payload is None else disclosed.payload.decode()
    salt = None if disclosed.salt is None else disclosed.salt.hex()
    return encode_object(entry=disclosed.entry.decode(), payload=payload, salt=salt)


def decode(data: bytes) -> tuple[Disclosed, entry_encoding.Leaf]:
    """Decode an entry from such an object, and check its payload against the commitment.

    Raises:
        BridgeError: `bad_entry`: it is invalid. `tampered`: the payload is not what the entry commits to.
    """
    entry, payload, salt = decode_object(data, ("entry", "payload", "salt"))
    if not isinstance(entry, str) or not (payload is None or isinstance(payload, str)):
        raise _bad("its entry is no text, or its payload neither a text nor null")
    if (payload is None) != (salt is None) or not (
        salt is None or (isinstance(salt, str) and _SALT.fullmatch(salt) is not None)
    ):
        raise _bad(f"its salt is not {SALT_BYTES} bytes in hex, or not there together with the payload")
    leaf = entry_encoding.decode(entry.encode())
    disclosed = Disclosed(
        entry.encode(),
        None if payload is None else payload.encode(),
        None if salt is None else bytes.fromhex(str(salt)),
    )
    if disclosed.payload is not None and disclosed.salt is not None:
        computed = commitment(disclosed.payload, disclosed.salt)
        if not hmac.compare_digest(computed, leaf.commitment):
            raise BridgeError("tampered", f"The payload of entry {leaf.sequence} is not what the entry commits to.")
    return disclosed, leaf


def encode_object(**values: Value) -> bytes:
    """A JSON object in canonical form; the names are given in their order."""
    inner = ",".join(f'"{name}":{_written(value)}' for name, value in values.items())
    return f"{{{inner}}}".encode()


def decode_object(data: bytes, names: tuple[str, ...]) -> list[Value]:
    """The values of a JSON object in canonical form that has exactly these names, in this order.

    Raises:
        BridgeError: `bad_entry`: it is invalid.
    """
    values: list[Value] = []
    try:
        text, at = data.decode(), 0
        for name in names:
            before = f'{"," if values else "{"}"{name}":'
            if not text.startswith(before, at):
                raise _bad(f"its names are not {', '.join(names)}, without spaces between them")
            at += len(before)
            value, end = _value(text, at)
            # A text can be long, so it is compared without a copy.
            if not text.startswith(written := _written(value), at) or end != at + len(written):
                raise _bad(f"its {name} is not in canonical form (RFC 8785)")
            values.append(value)
            at = end
    except ValueError:
        raise _bad("it is no JSON in UTF-8") from None
    if not text.startswith("}", at) or len(text) != at + 1:
        raise _bad(f"something else than its end follows its {names[-1]}")
    return values


def _value(text: str, at: int) -> tuple[Value, int]:
    """The value that begins at a position, and the position after it."""
    if text.startswith('"', at):
        value, end = _decode_text(text, at)
        return str(value), end
    if match := _WHOLE.match(text, at):
        return int(match[0]), match.end()
    if text.startswith("null", at):
        return None, at + 4
    raise _bad("it has a value that is neither a text nor a whole number nor null")


def _written(value: Value) -> str:
    if value is None:
        return "null"
    return str(value) if isinstance(value, int) else _encode_text(value)


def _bad(why: str) -> BridgeError:
    return BridgeError("bad_entry", f"This is no entry of a ledger: {why}.")
