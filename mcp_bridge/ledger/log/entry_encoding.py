"""The encoding of entries, which is hashed: canonical JSON (RFC 8785) of ASCII names, texts and integers.

Each entry has exactly one encoding. Bytes that decode, but encode differently, are rejected.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, fields
from json.encoder import encode_basestring as _encode_text
from typing import Any, get_args

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.entries import Kind

KINDS = frozenset(get_args(Kind))

MAX_TEXT_CHARS = 4096
"""Longest text of an entry; the longest one is a step's path."""

MAX_ENTRY_BYTES = 32 << 10

MAX_NUMBER = 2**53 - 1
"""The largest integer that every JSON parser reads exactly (RFC 8785, appendix D)."""

LEDGER = "ledger"
"""The value of `execution` in an entry about the log itself."""

_HASH = re.compile(r"[0-9a-f]{64}")

_PLAIN_TEXT = rb"[ !#-\[\]-~]"
"""ASCII characters that JSON doesn't escape."""

_PLAIN = re.compile(
    rb'\{"commitment":"([0-9a-f]{64})","execution":"(%(text)s{1,%(most)d})","kind":"([a-z]+)",'
    rb'"policy":"(%(text)s{0,%(most)d})","previous":(?:null|"([0-9a-f]{64})"),'
    rb'"program":(?:null|"(%(text)s{0,%(most)d})"),"sequence":(0|[1-9][0-9]{0,15}),'
    rb'"step":(?:null|"(%(text)s{0,%(most)d})"),"time":(0|[1-9][0-9]{0,15})\}'
    % {b"text": _PLAIN_TEXT, b"most": MAX_TEXT_CHARS}
)
"""The canonical form of an entry without escapes in its texts, as nearly all are."""

# Fixed code points instead of Python's idea of printable characters, which changes: all readers must agree.
_TEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*")
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One entry of the log.

    Attributes:
        commitment: HMAC-SHA-256 of the payload's bytes under the entry's own random salt, in hex.
        execution: The execution's id, or LEDGER.
        kind: The entry's kind.
        policy: The policy's hash, or an empty text.
        previous: The leaf hash of the execution's entry before this one, in hex; None for its first.
        program: The program's hash, or None.
        sequence: Its position in the log, from 0.
        step: The path of the program's step, or None.
        time: Microseconds since 1970, UTC; never less than that of the previous entry.
    """

    commitment: str
    execution: str
    kind: str
    policy: str
    previous: str | None
    program: str | None
    sequence: int
    step: str | None
    time: int


_NAMES = tuple(field.name for field in fields(Leaf))


def fitting(text: str) -> str:
    """Make any text valid for an entry: control characters are escaped, and a long text is truncated."""
    if len(text) <= MAX_TEXT_CHARS and text.isascii() and text.isprintable():
        return text
    text = _UNFIT.sub(lambda match: f"\\u{ord(match[0]):04x}", text[: MAX_TEXT_CHARS + 1])
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"


def encode(leaf: Leaf) -> bytes:
    """The canonical encoding of an entry."""
    return encode_fields(
        leaf.commitment,
        leaf.execution,
        leaf.kind,
        leaf.policy,
        leaf.previous,
        leaf.program,
        leaf.sequence,
        leaf.step,
        leaf.time,
    )


def encode_fields(
    commitment: str,
    execution: str,
    kind: str,
    policy: str,
    previous: str | None,
    program: str | None,
    sequence: int,
    step: str | None,
    time: int,
) -> bytes:
    """As `encode`, by the fields of a `Leaf`: to make a frozen object of them takes as long as all the rest."""
    return (
        f'{{"commitment":"{commitment}","execution":{_encode_text(execution)},"kind":"{kind}",'
        f'"policy":{_encode_text(policy)},"previous":{"null" if previous is None else _encode_text(previous)},'
        f'"program":{"null" if program is None else _encode_text(program)},"sequence":{sequence},'
        f'"step":{"null" if step is None else _encode_text(step)},"time":{time}}}'
    ).encode()


def _text_of(data: bytes) -> str:
    if not isinstance(data, bytes):
        # In a damaged file a column can have a value of another type than the table declares.
        raise _bad("it is no bytes")
    if len(data) > MAX_ENTRY_BYTES:
        raise _bad(f"it has {len(data)} bytes")
    return data.decode()


def decode(data: bytes) -> Leaf:
    """Decode an entry.

    Raises:
        BridgeError: `bad_entry`: it is invalid, or not in canonical form.
    """
    return _decode_plain(data) or _decode_any(data)


def _decode_plain(data: bytes) -> Leaf | None:
    """As `decode`, in a tenth of the time; None for an entry that doesn't have the form of `_PLAIN`."""
    if not isinstance(data, bytes) or len(data) > MAX_ENTRY_BYTES or (found := _PLAIN.fullmatch(data)) is None:
        return None
    commitment, execution, kind, policy, previous, program, sequence, step, time = found.groups()
    leaf = Leaf(
        commitment.decode(),
        execution.decode(),
        kind.decode(),
        policy.decode(),
        None if previous is None else previous.decode(),
        None if program is None else program.decode(),
        int(sequence),
        None if step is None else step.decode(),
        int(time),
    )
    return leaf if leaf.kind in KINDS and leaf.sequence <= MAX_NUMBER and leaf.time <= MAX_NUMBER else None


def _decode_any(data: bytes) -> Leaf:
    try:
        # Numbers are checked as texts first, because parsing a long one takes long.
        fields = _decoder.decode(_text_of(data))
    except (ValueError, RecursionError):
        raise _bad("it is no JSON object of texts and whole numbers") from None
    if not isinstance(fields, dict) or tuple(fields) != _NAMES:
        raise _bad(f"its names are not {', '.join(_NAMES)}")
    leaf = Leaf(**fields)
    for name in ("commitment", "previous"):
        value = fields[name]
        if not (isinstance(value, str) and _HASH.fullmatch(value)) and not (name == "previous" and value is None):
            raise _bad(f"its {name} is no hash")
    for name in ("execution", "policy", "program", "step"):
        value = fields[name]
        if not _is_text(value) and not (name in {"program", "step"} and value is None):
            raise _bad(f"its {name} is no text")
    if not isinstance(leaf.kind, str) or leaf.kind not in KINDS:
        raise _bad("it has an unknown kind")
    for name in ("sequence", "time"):
        if not (isinstance(fields[name], int) and not isinstance(fields[name], bool)):
            raise _bad(f"its {name} is no whole number")
    if not leaf.execution or encode(leaf) != data:
        raise _bad("it is not in canonical form (RFC 8785)")
    return leaf


def leaf_hash(data: bytes) -> bytes:
    """The hash of an entry as a leaf of the tree (RFC 6962, section 2.1)."""
    return hashlib.sha256(b"\0" + data).digest()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT_CHARS and _TEXT.fullmatch(value) is not None


def _number(text: str) -> int:
    if len(text) > len(str(MAX_NUMBER)) or not 0 <= int(text) <= MAX_NUMBER:
        raise ValueError(text[:20])
    return int(text)


def _refuse(text: str) -> Any:
    raise ValueError(text[:20])


_decoder = json.JSONDecoder(parse_int=_number, parse_float=_refuse, parse_constant=_refuse)


def _bad(why: str) -> BridgeError:
    return BridgeError("bad_entry", f"This is no entry of a ledger: {why}.")
