"""Which addresses are reached without the proxy of the environment."""

from __future__ import annotations

from urllib.parse import urlsplit

from mcp_bridge.downstream.configuration.remote_entries import is_loopback


def unproxied(server_url: str) -> dict[str, None]:
    """The addresses that are reached without a proxy, as `httpx2` has them mounted.

    What is sent to this machine may be in the clear, since it stays here: through a proxy it wouldn't.
    """
    if not is_loopback(server_url):
        return {}
    host = urlsplit(server_url).hostname or ""
    own = f"[{host}]" if ":" in host else host
    return dict.fromkeys(f"all://{each}" for each in ("localhost", "*.localhost", "127.0.0.1", "[::1]", own))
