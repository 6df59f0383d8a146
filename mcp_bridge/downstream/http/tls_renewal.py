"""The TLS files of a remote server's entry, read again once they have changed: some certificates live for hours only.

Connections that are made from then on use the new ones. Files that can't be used, such as half-written ones or a key of
another certificate, change nothing.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from mcp_bridge.atomic_files import stamp
from mcp_bridge.downstream.configuration.spec import TlsFiles

if TYPE_CHECKING:
    import httpx2

    from mcp_bridge.downstream.configuration.spec import ServerSpec

logger = logging.getLogger(__name__)


def stamps(files: TlsFiles) -> list[object]:
    """A value that differs once one of the files was modified, replaced or removed."""
    return [stamp(Path(path)) for path in files.paths]


class TlsRenewal:
    """Keeps the TLS context of a connection as the files of its server's entry are.

    The files of an entry that comes with a folder aren't read again: they are trusted as they were.

    Args:
        spec: The server.
        context: The context.
        read: The stamps of the files from before the context was made.
    """

    def __init__(self, spec: ServerSpec, context: ssl.SSLContext, read: list[object]) -> None:
        self._name = spec.name
        self._files = TlsFiles() if spec.comes_with_folder else spec.tls
        self._context = context
        self._read = [] if spec.comes_with_folder else read

    async def look(self, _request: httpx2.Request) -> None:
        """Read the files again if they have changed: a hook of the client, before each request."""
        if (found := stamps(self._files)) != self._read:
            self._read = found
            await anyio.to_thread.run_sync(self._load)

    def _load(self) -> None:
        try:
            # First into another one: what can't be used would leave the context without a certificate.
            load_files(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), self._files)
            load_files(self._context, self._files)
        except (OSError, ssl.SSLError) as error:
            is_unreadable = not isinstance(error, ssl.SSLError) and error.strerror
            why = error.strerror if is_unreadable else "they are no certificates in PEM, or no certificate and its key"
            logger.warning(
                "the TLS files of server %r have changed and can't be used, so those of before are: %s", self._name, why
            )
        else:
            logger.info("the TLS files of server %r were read again", self._name)


def load_files(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Have a context trust the authorities of a server's entry, and show its certificate. Blocks.

    Raises:
        OSError, ssl.SSLError: A file can't be used.
    """
    if files.ca_file is not None:
        context.load_verify_locations(cafile=files.ca_file)
    load_certificate(context, files)


def load_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    """As `load_files`, of the certificate alone."""
    if files.client_cert is not None:
        # An encrypted key would have OpenSSL ask on the terminal.
        context.load_cert_chain(files.client_cert, files.client_key, password="")
