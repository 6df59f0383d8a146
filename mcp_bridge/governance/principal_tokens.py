"""The bearer tokens that principals authenticate with over HTTP: made, listed, replaced and revoked.

A token is `mcpb_ID_SECRET`: a prefix that secret scanners can know, a public id, and 256 random bits. Only its SHA-256
is kept. A slow hash (scrypt, Argon2) protects what people choose and others can guess; nobody guesses 256 random bits,
and a slow hash would let anybody keep the bridge busy with wrong tokens.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcp_bridge.bridge_identity import TOKEN_PREFIX
from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.principals import PRINCIPAL_NAME
from mcp_bridge.policy.secrets.secret_stores import PRINCIPAL_TOKENS_FILE_NAME, SecretFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

TOKEN = re.compile(rf"{TOKEN_PREFIX}([0-9a-f]{{16}})_([A-Za-z0-9_-]{{43}})")

MAX_TOKENS = 10_000
"""Of all principals together. The file is read as a whole after each change."""

_ID_BYTES = 8
_SECRET_BYTES = 32

_NO_HASH = "0" * 64


class TokenRecord(BaseModel):
    """What is kept of a token.

    Attributes:
        principal: Whose it is.
        sha256: The SHA-256 of the token's ASCII text, in hexadecimal.
        created: When it was made, in seconds since the epoch.
        expires: When it ends, likewise; None for never.
        restricted: Whether its principal had a table in the configuration when it was made. Such a token isn't good
            where there is no table: it would have more rights than it was made for.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    principal: str = Field(pattern=f"^{PRINCIPAL_NAME.pattern}$")
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    created: float = Field(allow_inf_nan=False)
    expires: float | None = Field(default=None, allow_inf_nan=False)
    restricted: bool = False

    def has_expired(self, now: float) -> bool:
        """Whether it has ended."""
        return self.expires is not None and now >= self.expires


class NewToken(NamedTuple):
    """A token that was made: its id, its text, which is kept nowhere, and what is kept of it."""

    id: str
    text: str
    record: TokenRecord


def find(tokens: Mapping[str, TokenRecord], text: str, now: float) -> tuple[str, TokenRecord] | None:
    """The id and the record of the token with this text, or None. Takes the same time for any wrong secret.

    Args:
        tokens: The tokens by id.
        text: What was presented.
        now: The time, in seconds since the epoch.
    """
    parts = TOKEN.fullmatch(text)
    if parts is None:
        return None
    record = tokens.get(parts[1])
    given = hashlib.sha256(text.encode()).hexdigest()
    if not hmac.compare_digest(given, record.sha256 if record else _NO_HASH):
        return None
    return None if record is None or record.has_expired(now) else (parts[1], record)


class TokenStore:
    """The tokens of a state directory. Changes take effect at once in a bridge that serves.

    Args:
        state_dir: The state directory.
        clock: The time, in seconds since the epoch.
    """

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = SecretFile(state_dir, PRINCIPAL_TOKENS_FILE_NAME, "make new tokens")
        self._clock = clock

    def stamp(self) -> object | None:
        """A value that differs once the tokens were changed; None if none was ever made. Doesn't block for long."""
        return self._file.stamp()

    def read(self) -> dict[str, TokenRecord]:
        """The tokens by id, with those that have expired.

        Raises:
            BridgeError: As `SecretFile.read`.
        """
        return {token: self._decode(text) for token, text in self._file.read().items()}

    def add(
        self,
        principal: str,
        *,
        seconds: float | None = None,
        restricted: bool,
        keep: Callable[[NewToken, int], None] = lambda _made, _replaced: None,
    ) -> NewToken:
        """Make a token, beside those that the principal has.

        Args:
            principal: Whose it is.
            seconds: For how long it is good; None for ever.
            restricted: As `TokenRecord`.
            keep: As `rotate`.

        Raises:
            BridgeError: `too_many_tokens`; as `SecretFile.edit`.
        """
        made = self._new(principal, seconds, restricted=restricted)
        self._edit(lambda tokens: self._put(tokens, made))
        self._keep(made, 0, keep)
        return made

    def rotate(
        self,
        principal: str,
        *,
        grace: float = 0.0,
        seconds: float | None = None,
        restricted: bool,
        keep: Callable[[NewToken, int], None] = lambda _made, _replaced: None,
    ) -> tuple[NewToken, int]:
        """Make a token in place of all that the principal has.

        Args:
            principal: Whose they are.
            grace: For how many seconds the old ones stay good, if they don't expire earlier.
            seconds: For how long the new one is good; None for as long as the latest of the old ones was made for.
            restricted: As `TokenRecord`.
            keep: Gets the token and how many it replaces, before these end. If it raises, they stay, and it is revoked.

        Returns:
            The token, and how many it replaces.

        Raises:
            BridgeError: `unknown_principal`: it has none; as `add`.
        """
        # Before an edit, which makes a directory and a lock in it.
        _of(self.read(), principal)
        made = self._new(principal, seconds, restricted=restricted)
        ends = made.record.created + grace
        old: list[str] = []

        def begin(tokens: dict[str, TokenRecord]) -> None:
            nonlocal made
            replaced = _of(tokens, principal)
            old.extend(replaced)
            latest = max(replaced.values(), key=lambda record: (record.created, record.expires or math.inf))
            if seconds is None and latest.expires is not None:
                expires = made.record.created + latest.expires - latest.created
                made = made._replace(record=made.record.model_copy(update={"expires": expires}))
            self._put(tokens, made)

        def end(tokens: dict[str, TokenRecord]) -> None:
            for token in old:
                record = tokens.get(token)
                if record is None:
                    continue  # revoked meanwhile
                if grace <= 0:
                    del tokens[token]
                elif record.expires is None or record.expires > ends:
                    tokens[token] = record.model_copy(update={"expires": ends})

        self._edit(begin)
        self._keep(made, len(old), keep)
        self._edit(end)
        return made, len(old)

    def _keep(self, made: NewToken, replaced: int, keep: Callable[[NewToken, int], None]) -> None:
        try:
            keep(made, replaced)
        except BaseException:
            # Nobody has it.
            self.revoke(made.record.principal, made.id)
            raise

    def revoke(self, principal: str, token: str | None = None) -> int:
        """Forget a principal's tokens; how many.

        Args:
            principal: Whose they are.
            token: The id of one of them; None for all.

        Raises:
            BridgeError: `unknown_principal`: it has none, or not this one; as `SecretFile.edit`.
        """

        def change(tokens: dict[str, TokenRecord]) -> int:
            ended = [each for each in _of(tokens, principal) if token in {None, each}]
            if not ended:
                raise _unknown(principal, f"no token {token[:40]!r}" if token else "no token")
            for each in ended:
                del tokens[each]
            return len(ended)

        # Before an edit, which makes a directory and a lock in it.
        _of(self.read(), principal)
        return self._edit(change)

    def _new(self, principal: str, seconds: float | None, *, restricted: bool) -> NewToken:
        token = secrets.token_hex(_ID_BYTES)
        text = f"{TOKEN_PREFIX}{token}_{secrets.token_urlsafe(_SECRET_BYTES)}"
        now = self._clock()
        record = TokenRecord(
            principal=principal,
            sha256=hashlib.sha256(text.encode()).hexdigest(),
            created=now,
            expires=None if seconds is None else now + seconds,
            restricted=restricted,
        )
        return NewToken(token, text, record)

    def _put(self, tokens: dict[str, TokenRecord], made: NewToken) -> None:
        if len(tokens) >= MAX_TOKENS:
            raise BridgeError(
                "too_many_tokens",
                f"There are {MAX_TOKENS} tokens of principals, which is the most.",
                hint="Revoke some with `mcp-bridge principal revoke`.",
            )
        tokens[made.id] = made.record

    def _edit(self, change: Callable[[dict[str, TokenRecord]], int | None]) -> int:
        now = self._clock()

        def work(texts: dict[str, str]) -> int:
            tokens = {token: self._decode(text) for token, text in texts.items()}
            # Those that have expired are of no use to anybody.
            tokens = {token: record for token, record in tokens.items() if not record.has_expired(now)}
            outcome = change(tokens)
            texts.clear()
            texts.update({token: record.model_dump_json() for token, record in tokens.items()})
            return outcome or 0

        return self._file.edit(work)

    def _decode(self, text: str) -> TokenRecord:
        try:
            return TokenRecord.model_validate_json(text)
        except ValidationError:
            raise BridgeError(
                "secrets_file_damaged",
                f"{self._file.path} is not what this version writes.",
                hint="Move it away and make new tokens.",
                file=str(self._file.path),
            ) from None


def _of(tokens: Mapping[str, TokenRecord], principal: str) -> dict[str, TokenRecord]:
    found = {token: record for token, record in tokens.items() if record.principal == principal}
    if not found:
        raise _unknown(principal, "no token that is good", f"`mcp-bridge principal add {principal}` makes one. ")
    return found


def _unknown(principal: str, what: str, instead: str = "") -> BridgeError:
    return BridgeError(
        "unknown_principal",
        f"{principal[:100]!r} has {what}.",
        hint=f"{instead}`mcp-bridge principal list` has all tokens, those that have ended too.",
    )
