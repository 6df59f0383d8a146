"""An MCP server over streamable HTTP that wants a token for itself: `protected_server.py PORT ISSUER RESOURCE_SECRET`.

It asks the authorization server about each token (RFC 7662), and refuses those for another server. It says "ready", and
a line for each call of a tool.
"""

import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from json import load

import anyio
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings

port, issuer, secret = sys.argv[1:4]
url = f"http://127.0.0.1:{port}/mcp"


def introspect(token):
    credentials = b64encode(f"resource:{secret}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310
        f"{issuer}/token/introspection",
        urllib.parse.urlencode({"token": token}).encode(),
        {"authorization": f"Basic {credentials}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return load(answer)


class Verifier:
    async def verify_token(self, token):
        try:
            said = await anyio.to_thread.run_sync(introspect, token)
        except urllib.error.HTTPError:
            return None
        if not said.get("active"):
            return None
        return AccessToken(
            token=token,
            client_id=said["client_id"],
            scopes=said.get("scope", "").split(),
            expires_at=said.get("exp"),
            resource=said.get("aud"),
            subject=said.get("sub"),
        )


server = MCPServer(
    "protected",
    token_verifier=Verifier(),
    auth=AuthSettings(
        issuer_url=issuer, resource_server_url=url, required_scopes=["tools"], validate_token_resource=True
    ),
    log_level="WARNING",
)


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@server.tool()
def whoami() -> str:
    """Who has logged in."""
    say("whoami")
    return get_access_token().subject or get_access_token().client_id


@server.tool()
def leak() -> str:
    """What the server was sent: the token itself."""
    say("leak")
    return f"the token is {get_access_token().token}."


def announce():
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/.well-known/oauth-protected-resource/mcp", timeout=5)
        except OSError:
            time.sleep(0.02)
        else:
            say("ready")
            return


threading.Thread(target=announce, daemon=True).start()
server.run(transport="streamable-http", port=int(port))
