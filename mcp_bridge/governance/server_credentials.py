"""Which secrets a remote server's entry may use, and where logins are kept.

The entry itself is the grant: who writes `vault://secret/NAME` into the user's own configuration means that server to
have it. A folder's entry gets none of the user's own secrets, since it says where they would be sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.downstream.http.remote_auth import RemoteAccess
from mcp_bridge.downstream.oauth.login_store import LoginStore
from mcp_bridge.errors import BridgeError
from mcp_bridge.policy.secrets.secret_stores import LOGINS_FILE_NAME, SecretFile
from mcp_bridge.policy.secrets.strength import MIN_BITS, bits
from mcp_bridge.policy.secrets.vault_uris import SECRET_PREFIX, find_references
from mcp_bridge.system_keyring import SystemKeyring

if TYPE_CHECKING:
    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.governance.governance import Governance
    from mcp_bridge.policy.secrets.vault import Secrets, Vault
    from mcp_bridge.settings import Settings


def login_store(settings: Settings) -> LoginStore:
    """Where the user's logins to remote servers are kept: beside the secrets, or with them in the keyring."""
    state = settings.state_dir
    secrets = SystemKeyring() if settings.logins == "keyring" else SecretFile(state, LOGINS_FILE_NAME, "log in again")
    return LoginStore(secrets, state)


def remote_access(governance: Governance | None, logins: LoginStore | None = None) -> RemoteAccess:
    """What connections to remote servers are authenticated with."""
    return access_with(governance.vault if governance is not None else None, logins)


def access_with(vault: Vault | None, logins: LoginStore | None) -> RemoteAccess:
    """As `remote_access`, for commands that need no operator's tools."""

    def resolve(spec: ServerSpec, text: str) -> str:
        if SECRET_PREFIX not in text:
            return text
        secrets = vault.load() if vault is not None else None
        resolved, end = [], 0
        for mention in find_references(text, secrets.ids if secrets is not None else ()):
            if mention.secret is None:
                continue
            resolved += [text[end : mention.start], _reveal(secrets, mention.secret, spec)]
            end = mention.end
        return "".join([*resolved, text[end:]])

    return RemoteAccess(resolve, logins, lambda credential: bits(credential) >= MIN_BITS)


def _reveal(secrets: Secrets | None, secret_id: str, spec: ServerSpec) -> str:
    if secrets is not None:
        # As `Bounds`: the user's own secrets, of which a folder's entry could send every one to its author.
        if secret_id in secrets.bounds.owned and spec.name in secrets.bounds.folder_servers:
            raise BridgeError(
                "secret_denied",
                f"The server {spec.name!r}, which comes with the folder, may not receive the secret {secret_id!r}.",
                hint="Write the server into your own configuration, or have it use another secret.",
                secret=secret_id,
                server=spec.name,
            )
        if (plaintext := secrets.plaintexts.get(secret_id)) is not None:
            return plaintext
    problem = secrets.problems.get(secret_id) if secrets is not None else None
    raise BridgeError(
        "secret_missing",
        f"There is no secret {secret_id!r} that the server {spec.name!r} could be given.",
        hint=problem.hint if problem else f"Add [secrets.{secret_id}] to the configuration.",
        private={"reason": str(problem)} if problem else None,
        secret=secret_id,
        server=spec.name,
    )
