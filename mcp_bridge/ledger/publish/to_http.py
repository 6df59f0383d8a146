"""Checkpoints over HTTP: to an address that takes notes, and to a witness that cosigns them (C2SP tlog-witness).

Answers come from outside: they are bounded in time and size and never decompressed, no redirect is followed, and a
cosignature counts if it holds under the key that the operator has named.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import logging
import re
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread
import httpx2

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.proofs.notes import open_checkpoint, split_note
from mcp_bridge.ledger.proofs.signing import Verifier
from mcp_bridge.ledger.publish.protocol import Published, checkpoint_of, conflict, rolled_back

if TYPE_CHECKING:
    import ssl

    from mcp_bridge.ledger.publish.protocol import Source
    from mcp_bridge.ledger.publish.targets import Target

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 64 << 10

_TEXT = {"content-type": "text/plain; charset=utf-8", "accept-encoding": "identity"}
_SIZE = re.compile(rb"(0|[1-9][0-9]{0,18})\n")
_OK, _CONFLICT, _UNPROCESSABLE = 200, 409, 422
_TRIED_AGAIN = "A bridge that runs tries again by itself; `mcp-bridge audit publish` does so now."
_PASSING = frozenset({408, 425, 429})
"""Statuses besides 5xx after which the same may work later (RFC 9110, section 15)."""


class _Answer(NamedTuple):
    status: int
    body: bytes


async def publish_to_url(target: Target, note: str) -> Published:
    """Send a note by POST; any status 2xx says that it was taken.

    Raises:
        BridgeError: As `publish`.
    """
    assert target.url is not None  # noqa: S101 - the caller's choice
    size = checkpoint_of(note).size
    async with await _client(target) as client:
        answer = await _request(client, target, "POST", target.url, note.encode())
    if not httpx2.codes.is_success(answer.status):
        raise _refused(target, answer.status)
    return Published(target.id, size, note)


async def publish_to_witness(target: Target, note: str, source: Source) -> Published:
    """Have a note cosigned, with a proof that the log has only grown since the witness saw it last.

    Raises:
        BridgeError: As `publish`.
    """
    checkpoint = checkpoint_of(note)
    old = source.last(target.id)
    async with await _client(target) as client:
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
                    raise _bad_answer(target, f"that it has cosigned {held} entries, of which nobody here knows")
            elif held < old:
                logger.warning("the %s says %d entries, and has cosigned %d before", target.id, held, old)
            old = held
        else:
            raise _unreachable(target, "it names another size each time")
    if (answer.status == _UNPROCESSABLE and old) or (answer.status == _CONFLICT and old == checkpoint.size):
        raise _rewritten(target, old, checkpoint.origin)
    if answer.status != _OK:
        raise _refused(target, answer.status)
    lines = _cosignatures(target, note, answer.body)
    return Published(target.id, checkpoint.size, note + "".join(lines), lines)


async def look_at_witness(target: Target, source: Source) -> int:
    """How many entries a witness has cosigned, all of which are the log's; 0 for none.

    Asked is for the checkpoint that it shows to whoever watches the log. A witness that shows none is sent the newest
    one, as `publish_to_witness` does: it says what it has seen when it compares.

    Args:
        target: Names the witness.
        source: The log.

    Raises:
        BridgeError: As `publish`.
    """
    note = await source.newest()
    origin = checkpoint_of(note).origin
    assert target.witness is not None  # noqa: S101 - the caller's choice
    name = hashlib.sha256(origin.encode()).hexdigest()
    async with await _client(target) as client:
        seen = None
        try:
            answer = await _request(client, target, "GET", f"{target.witness.rstrip('/')}/{name}/checkpoint")
            # By its own key alone: a log that was put back may not know the one that it was signed with then.
            seen, _ = open_checkpoint(answer.body.decode(), [_key(target)])
        except (BridgeError, UnicodeDecodeError) as exc:
            # What is no such checkpoint says nothing. Who doesn't answer now won't answer a moment later.
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


async def _add_checkpoint(client: httpx2.AsyncClient, target: Target, note: str, source: Source, old: int) -> _Answer:
    size = checkpoint_of(note).size
    proof = await source.consistency(old, size) if 0 < old < size else ()
    lines = "".join(f"{base64.b64encode(each).decode()}\n" for each in proof)
    assert target.witness is not None  # noqa: S101 - the caller's choice
    address = f"{target.witness.rstrip('/')}/add-checkpoint"
    return await _request(client, target, "POST", address, f"old {old}\n{lines}\n{note}".encode())


def _size_of(answer: _Answer) -> int | None:
    """What a witness says it has cosigned; None where it doesn't say, as it may when only the roots differ."""
    found = _SIZE.fullmatch(answer.body)
    return int(found[1]) if found else None


def _key(target: Target) -> Verifier:
    assert target.key is not None  # noqa: S101 - the model holds it
    return Verifier.parse(target.key)


def _cosignatures(target: Target, note: str, body: bytes) -> tuple[str, ...]:
    """The lines of an answer that the witness's key has made; lines by other keys are passed over."""
    key = _key(target)
    text, _ = split_note(note)
    found = []
    try:
        # All of it, first: a wrong signature by this key, or what is no signature line, spoils the answer.
        split_note(f"{text}\n{body.decode()}")
        for line in body.decode().splitlines(keepends=True):
            try:
                open_checkpoint(f"{text}\n{line}", [key])
            except BridgeError as exc:
                if exc.code != "unknown_key" or "time" in exc.details:
                    raise
            else:
                found.append(line)
        if found:
            split_note(note + "".join(found))
    except (BridgeError, UnicodeDecodeError) as exc:
        raise _bad_answer(target, f"with no cosignatures of this checkpoint ({exc})") from None
    if not found:
        raise _bad_answer(target, "without a cosignature by its key")
    return tuple(found)


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


async def _client(target: Target) -> httpx2.AsyncClient:
    # To read all certificates of the system takes a while: once, and not in the event loop.
    tls = await anyio.to_thread.run_sync(_tls)
    return httpx2.AsyncClient(timeout=target.timeout, follow_redirects=False, verify=tls)


async def _request(
    client: httpx2.AsyncClient, target: Target, method: str, address: str, body: bytes | None = None
) -> _Answer:
    """The answer to a request that is neither a redirect nor an excuse of the server's.

    Raises:
        BridgeError: `publish_unreachable`, `publish_refused`, `publish_bad_answer`.
    """
    try:
        with anyio.fail_after(target.timeout):
            async with client.stream(method, address, content=body, headers=_TEXT) as response:
                parts, size = [], 0
                async for part in response.aiter_raw():
                    size += len(part)
                    if size > MAX_ANSWER_BYTES:
                        raise _bad_answer(target, f"with more than {MAX_ANSWER_BYTES} bytes")
                    parts.append(part)
    except TimeoutError:
        raise _unreachable(target, f"it has not answered in {target.timeout:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as exc:
        raise _unreachable(target, str(exc) or type(exc).__name__) from None
    status = response.status_code
    if httpx2.codes.is_redirect(status):
        raise BridgeError(
            "publish_refused",
            f"The {target.id} sends elsewhere ({status}), and a checkpoint goes nowhere but where it is configured.",
            hint="Write the address that it sends to.",
            target=target.id,
        )
    if httpx2.codes.is_server_error(status) or status in _PASSING:
        raise _unreachable(target, f"it has answered {status}")
    return _Answer(status, b"".join(parts))


def _rewritten(target: Target, size: int, origin: str) -> BridgeError:
    return conflict(
        target,
        f"The {target.id} says that the first {size} entries of the log {origin} are not those that it has cosigned: "
        "the log was rewritten.",
        size,
    )


def _unreachable(target: Target, why: str) -> BridgeError:
    return BridgeError(
        "publish_unreachable", f"The {target.id} can't be reached: {why}.", hint=_TRIED_AGAIN, target=target.id
    )


def _refused(target: Target, status: int) -> BridgeError:
    known = target.witness is not None and status in {403, 404}
    return BridgeError(
        "publish_refused",
        f"The {target.id} doesn't take the checkpoint: it has answered {status}.",
        hint="Has the witness this log's key (`--log`), and is the address right?" if known else "Look at its log.",
        target=target.id,
    )


def _bad_answer(target: Target, what: str) -> BridgeError:
    return BridgeError(
        "publish_bad_answer",
        f"The {target.id} has answered {what}.",
        hint=f"{_TRIED_AGAIN} Is its address right, and is that what answers there?",
        target=target.id,
    )
