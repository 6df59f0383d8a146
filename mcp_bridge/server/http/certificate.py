"""The certificate of https, read again once its files have changed: it is renewed every few weeks.

A connection gets the certificate of when it begins. Files that can't be used, such as half-written ones or a key of
another certificate, change nothing.
"""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import anyio
from cryptography import x509

from mcp_bridge.atomic_files import stamp
from mcp_bridge.offload import on_blocking_thread

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How often it is looked at. Files that have changed are read once they are the same at two looks: there are two."""


class Tls(NamedTuple):
    """The files of the server's certificate chain and its private key (PEM)."""

    certificate: Path
    key: Path | None

    def load(self) -> ssl.SSLContext:
        """A context with the certificate.

        Raises:
            OSError, ValueError: The files can't be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A key with a passphrase is refused, and not asked for.
        context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
        return context

    def stamps(self) -> tuple[object, ...]:
        """A value that differs once the files have been written, replaced or removed."""
        return tuple(stamp(path) for path in self if path is not None)

    def lifetime(self) -> tuple[datetime, datetime] | None:
        """From when to when the certificate is valid; None where that can't be read."""
        try:
            first = x509.load_pem_x509_certificates(self.certificate.read_bytes())[0]
        except (OSError, ValueError):
            return None
        return first.not_valid_before_utc, first.not_valid_after_utc


class Certificate:
    """The certificate that is served.

    Args:
        files: Its files, which can be used.
    """

    def __init__(self, files: Tls) -> None:
        self._files = files
        self._seen = self._read = files.stamps()
        self._context = files.load()
        self._lifetime = files.lifetime()
        self._warned = False
        self._warn_if_invalid()

    def serve_with(self, context: ssl.SSLContext | None) -> None:
        """Have the connections of a server's context get the certificate."""
        assert context is not None  # the server speaks TLS
        context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        # OpenSSL calls it in each handshake, without a name too.
        connection.context = self._context

    async def watch(self) -> None:
        """Read the files again whenever they have changed. Runs until cancelled."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            await on_blocking_thread(self.look)

    def look(self) -> None:
        """Read the files again if they have changed and are at rest. Blocks."""
        stamps = self._files.stamps()
        if stamps != self._seen:
            self._seen = stamps
        elif stamps != self._read:
            self._read = stamps
            try:
                context = self._files.load()
            except (OSError, ValueError) as exc:
                logger.warning(
                    "%s and its key have changed and can't be used, so the certificate of before is served: %s",
                    self._files.certificate,
                    why_unusable(exc),
                )
            else:
                self._context, self._lifetime, self._warned = context, self._files.lifetime(), False
                logger.info("%s was read again, with its key", self._files.certificate)
        self._warn_if_invalid()

    def _warn_if_invalid(self) -> None:
        """Log, once, that clients refuse the certificate because of its dates."""
        if self._warned or self._lifetime is None:
            return
        start, end = self._lifetime
        now = datetime.now(UTC)
        if start <= now <= end:
            return
        self._warned = True
        what = (
            f"has expired on {end:%Y-%m-%d %H:%M} UTC"
            if end < now
            else f"isn't valid before {start:%Y-%m-%d %H:%M} UTC"
        )
        logger.warning("the certificate of %s %s: clients refuse it", self._files.certificate, what)


def why_unusable(error: OSError | ValueError) -> str:
    """What is wrong with files that can't be used."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
