"""The address that a service's operations are called at."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mcp_bridge.downstream.configuration.remote_entries import shown_origin, url_problem
from mcp_bridge.downstream.oauth.endpoints import may_carry_tokens
from mcp_bridge.downstream.openapi.document_errors import UnusableDocumentError

if TYPE_CHECKING:
    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.downstream.openapi.compiled_service import Service


def base_url_of(spec: ServerSpec, service: Service) -> str:
    """The address that a service's operations are called at.

    The configuration's, if it has one. Else the first that the document names: of a document that was fetched, only at
    its own origin; of a file, only over TLS or on this machine, and only where no credentials are sent.

    Raises:
        UnusableDocumentError: There is none.
    """
    if spec.url is not None:
        return spec.url
    assert spec.openapi is not None  # of this type
    named = service.servers[0] if service.servers else ""
    if (problem := url_problem(named)) or urlsplit(named).query:
        said = f"names {named[:100]!r}, which isn't one" if named else "names none"
        raise UnusableDocumentError(
            f"there is no address to call it at: its document {said}{f' ({problem})' if named and problem else ''}.",
            'Write base_url = "https://…" into its configuration.',
        )
    origin = shown_origin(named)
    hint = f'If that is where it is, write base_url = "{named[:200]}" into its configuration.'
    if spec.openapi.is_remote:
        if origin_of(named) != origin_of(spec.openapi.location):
            raise UnusableDocumentError(f"its document says that it is at {origin}, which is another origin.", hint)
    elif spec.headers or spec.openapi.credentials:
        raise UnusableDocumentError(
            f"its document says that it is at {origin}, and credentials go only where the configuration says.", hint
        )
    elif not may_carry_tokens(named):
        raise UnusableDocumentError(f"its document says that it is at {origin}, in the clear.", hint)
    return named


def origin_of(url: str) -> tuple[str, str | None, int | None]:
    """The origin of an address: scheme, host and port."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, port
