"""Checkpoints to a witness that cosigns them (C2SP tlog-witness).

A cosignature counts if it holds under the key that the operator has named.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.proofs.notes import open_checkpoint, split_note
from mcp_bridge.ledger.proofs.signing import Verifier
from mcp_bridge.ledger.publish.protocol import Published, checkpoint_of, conflict, rolled_back
from mcp_bridge.ledger.publish.target_requests import Answer, bad_answer, open_client, refused, send, unreachable

if TYPE_CHECKING:
    import httpx2

    from mcp_bridge.ledger.publish.protocol import Source
    from mcp_bridge.ledger.publish.targets import Target

logger = logging.getLogger(__name__)

_SIZE = re.compile(rb"(0|[1-9][0-9]{0,18})\n")
_OK, _CONFLICT, _UNPROCESSABLE = 200, 409, 422


async def publish_to_witness(target: Target, note: str, source: Source) -> Published:
    """Have a note cosigned, with a proof that the log has only grown since the witness saw it last.

    Raises:
        BridgeError: As `to_target.publish`.
    """
    checkpoint = checkpoint_of(note)
    old = source.last(target.id)
    async with await open_client(target) as client:
        for _ in range(2):
            answer = await _add_checkpoint(client, target, note, source, old)
            held = _size_of(answer) if answer.status == _CONFLICT else None
            if held is None or held == old:
                break
            if held > checkpoint.size:
                if await source.roots([held]) == [None]:
                    raise rolled_back(target, held, checkpoint)
                # Another process may have added entries and had them cosigned since this checkpoint was read; that a
                # size was answered is no sign of it.
                if await source.is_cosigned(held, _key(target)):
                    return Published(target.id, held, note)
                note = await source.newest()
                checkpoint = checkpoint_of(note)
                if held > checkpoint.size:
                    raise bad_answer(target, f"that it has cosigned {held} entries, which are unknown here")
            elif held < old:
                logger.warning("the %s says %d entries, and has cosigned %d before", target.id, held, old)
            old = held
        else:
            raise unreachable(target, "it names another size each time")
    if (answer.status == _UNPROCESSABLE and old) or (answer.status == _CONFLICT and old == checkpoint.size):
        raise _rewritten(target, old, checkpoint.origin)
    if answer.status != _OK:
        raise refused(target, answer.status)
    lines = _cosignatures(target, note, answer.body)
    return Published(target.id, checkpoint.size, note + "".join(lines), lines)


async def look_at_witness(target: Target, source: Source) -> int:
    """The size of the largest checkpoint that a witness has cosigned, after comparing it with the log; 0 for none.

    Asked is for the checkpoint that it shows to whoever watches the log. A witness that shows none is sent the newest
    one, as `publish_to_witness` does: it says what it has seen when it compares.

    Args:
        target: Names the witness.
        source: The log.

    Raises:
        BridgeError: As `to_target.publish`.
    """
    note = await source.newest()
    origin = checkpoint_of(note).origin
    assert target.witness is not None  # the caller's choice
    name = hashlib.sha256(origin.encode()).hexdigest()
    async with await open_client(target) as client:
        seen = None
        try:
            answer = await send(client, target, "GET", f"{target.witness.rstrip('/')}/{name}/checkpoint")
            # By the witness's key alone: a log that was rolled back may not know the log key of that time.
            seen, _ = open_checkpoint(answer.body.decode(), [_key(target)])
        except (BridgeError, UnicodeDecodeError) as exc:
            # An invalid answer says nothing. A witness that doesn't answer now won't answer a moment later.
            if isinstance(exc, BridgeError) and exc.code == "publish_unreachable":
                raise
    if seen is None or seen.origin != origin or answer.status != _OK:
        return (await publish_to_witness(target, note, source)).size
    (root,) = await source.roots([seen.size])
    if root is None:
        raise rolled_back(target, seen.size, checkpoint_of(await source.newest()))
    if root != seen.root:
        raise _rewritten(target, seen.size, origin)
    if seen.size < source.last(target.id):
        logger.warning("the %s says %d entries, and has cosigned more before", target.id, seen.size)
    return seen.size


async def _add_checkpoint(client: httpx2.AsyncClient, target: Target, note: str, source: Source, old: int) -> Answer:
    size = checkpoint_of(note).size
    proof = await source.consistency(old, size) if 0 < old < size else ()
    lines = "".join(f"{base64.b64encode(each).decode()}\n" for each in proof)
    assert target.witness is not None  # the caller's choice
    address = f"{target.witness.rstrip('/')}/add-checkpoint"
    return await send(client, target, "POST", address, f"old {old}\n{lines}\n{note}".encode())


def _size_of(answer: Answer) -> int | None:
    """The size in a witness's answer; None if there is none, as is allowed when only the roots differ."""
    match = _SIZE.fullmatch(answer.body)
    return int(match[1]) if match else None


def _key(target: Target) -> Verifier:
    assert target.key is not None  # the model holds it
    return Verifier.parse(target.key)


def _cosignatures(target: Target, note: str, body: bytes) -> tuple[str, ...]:
    """The signature lines of an answer that are by the witness's key; those of other keys are ignored."""
    key = _key(target)
    text, _ = split_note(note)
    cosignatures = []
    try:
        # All lines are parsed first: an invalid line, or a wrong signature by this key, invalidates the answer.
        split_note(f"{text}\n{body.decode()}")
        for line in body.decode().splitlines(keepends=True):
            try:
                open_checkpoint(f"{text}\n{line}", [key])
            except BridgeError as exc:
                if exc.code != "unknown_key" or "time" in exc.details:
                    raise
            else:
                cosignatures.append(line)
        if cosignatures:
            split_note(note + "".join(cosignatures))
    except (BridgeError, UnicodeDecodeError) as exc:
        raise bad_answer(target, f"with no cosignatures of this checkpoint ({exc})") from None
    if not cosignatures:
        raise bad_answer(target, "without a cosignature by its key")
    return tuple(cosignatures)


def _rewritten(target: Target, size: int, origin: str) -> BridgeError:
    return conflict(
        target,
        f"The {target.id} says that the first {size} entries of the log {origin} are not those that it has cosigned: "
        "the log was rewritten.",
        size,
    )
