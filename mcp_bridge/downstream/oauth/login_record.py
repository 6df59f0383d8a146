"""A login to a remote server: its tokens, and what is needed to replace and to revoke them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from mcp.shared.auth import (  # noqa: TC002  (pydantic reads the annotations)
    OAuthClientInformationFull,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import BaseModel, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.downstream.oauth.login_store import LoginStore

EARLY_SECONDS = 60.0
EARLY_SHARE = 0.2
"""A token is replaced so long before it expires, or in the last fifth of its life if that is shorter."""


class Login(BaseModel):
    """A login: the tokens, and what is needed to replace and to revoke them. `repr` shows neither.

    Attributes:
        format: The version of this record.
        server: The server's name in the configuration.
        url: Its URL.
        client: The client that the tokens were given to, without the secret of one that is configured.
        metadata: The authorization server's metadata (RFC 8414).
        resource: The server's own metadata (RFC 9728), or None if it has none.
        tokens: The tokens.
        made_at: When the access token was made (Unix time in seconds).
        rotates: Whether the refresh token may be one that can be used once: until it was used, and has stayed.
        refresh_sent: Whether the refresh token was sent, and no answer has come that tells what became of it.
        refused: Whether the server has refused the access token when it was last used, though its time isn't over, and
            there is no other. It may have been a failure that passes: the token is tried again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    server: str
    url: str
    client: OAuthClientInformationFull = Field(repr=False)
    metadata: OAuthMetadata = Field(repr=False)
    resource: ProtectedResourceMetadata | None = Field(default=None, repr=False)
    tokens: OAuthToken = Field(repr=False)
    made_at: float
    rotates: bool
    refresh_sent: bool = False
    # None isn't written: earlier versions read no record that has it.
    refused: Literal[True] | None = None

    @property
    def issuer(self) -> str:
        """The authorization server."""
        return str(self.metadata.issuer)

    @property
    def expires_at(self) -> float | None:
        """When the access token expires (Unix time in seconds), or None if that isn't known."""
        return None if self.tokens.expires_in is None else self.made_at + self.tokens.expires_in

    def is_usable(self, *, early: bool = False) -> bool:
        """Whether the access token hasn't expired; with `early`, and won't soon."""
        if self.tokens.expires_in is None:
            return True
        margin = min(EARLY_SECONDS, EARLY_SHARE * self.tokens.expires_in) if early else 0.0
        return time.time() < self.made_at + self.tokens.expires_in - margin

    @property
    def can_refresh(self) -> bool:
        """Whether there is a refresh token that may be used."""
        return self.tokens.refresh_token is not None and not (self.refresh_sent and self.rotates)


async def read_login(store: LoginStore, spec: ServerSpec) -> Login | None:
    """A server's login, or None. One that can't be read counts as none, and so does one for another URL.

    Raises:
        BridgeError: As the store.
    """
    text = await store.get(spec)
    if text is None:
        return None
    try:
        login = Login.model_validate_json(text)
    except ValidationError:
        return None
    return login if login.url == spec.url else None


async def keep_login(store: LoginStore, spec: ServerSpec, login: Login) -> None:
    """Keep a server's login, in place of an earlier one. It is on the disk when this returns.

    Raises:
        BridgeError: As the store.
    """
    await store.put(spec, login.model_dump_json(exclude_none=True))
