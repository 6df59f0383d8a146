"""Checks of the environment variables for proxies and certificates, for `mcp-bridge doctor`."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mcp_bridge.sandbox.probe_report import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CERTIFICATE_FILES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PIP_CERT")
"""Variables that name a certificate file, for Python, uv, pip, curl and Node."""

PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")

_SCHEMES = frozenset({"http", "https", "socks4", "socks4a", "socks5", "socks5h"})

_LOOPBACK = ("localhost", "127.0.0.1")


def findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about variables for certificates and proxies, without access to the network."""
    yield from _certificates(environ)
    yield from _proxies(environ)


def _certificates(environ: Mapping[str, str]) -> Iterator[Finding]:
    for name in CERTIFICATE_FILES:
        value = environ.get(name)
        if value and (wrong := _wrong_certificates(Path(value))):
            yield _certificate_finding(name, value, wrong, "file of certificates in PEM form")
    for value in environ.get("SSL_CERT_DIR", "").split(":"):
        if value and not Path(value).is_dir():
            yield _certificate_finding("SSL_CERT_DIR", value, "which is no folder", "folder of certificates")


def _certificate_finding(name: str, value: str, wrong: str, wanted: str) -> Finding:
    return Finding(
        "warning",
        "certificates",
        f"{name} is {value}, {wrong}: what asks for it can't reach anything by TLS.",
        f"Name a {wanted} that is there, or unset {name}.",
    )


def _wrong_certificates(file: Path) -> str | None:
    try:
        if file.is_dir():
            # REQUESTS_CA_BUNDLE may be a directory.
            return None
        if not file.is_file():
            return "which isn't there"
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except ssl.SSLError:
        return "which holds no certificate"
    except OSError as exc:
        return f"which can't be read ({exc.strerror})"
    return None


def _proxies(environ: Mapping[str, str]) -> Iterator[Finding]:
    named = False
    for name in PROXIES:
        values = {each: environ[each] for each in (name, name.lower()) if environ.get(each)}
        named = named or bool(values)
        for each, value in values.items():
            if wrong := _wrong_proxy(value):
                hint = f"Write it as http://HOST:PORT, or unset {each}."
                yield Finding("warning", "proxy", f"{each} is no proxy's address: {wrong}.", hint)
        if len(set(values.values())) > 1:
            yield Finding(
                "warning",
                "proxy",
                f"{name} and {name.lower()} differ: some programs take the one, and some the other.",
                "Set both to the same address.",
            )
    exempt = {
        part.strip().removeprefix(".") for each in ("NO_PROXY", "no_proxy") for part in environ.get(each, "").split(",")
    }
    missing = [host for host in _LOOPBACK if host not in exempt]
    if named and missing and "*" not in exempt:
        yield Finding(
            "warning",
            "proxy",
            f"There is a proxy, and NO_PROXY lacks {' and '.join(missing)}: this machine itself is asked through it.",
            f"Set NO_PROXY and no_proxy to {','.join(sorted({*exempt, *_LOOPBACK} - {''}))}.",
        )


def _wrong_proxy(value: str) -> str | None:
    """What is wrong with a proxy's URL. It may contain a password, so only its scheme is quoted."""
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "its port or host can't be read"
    if "://" not in value:
        return "it has no http:// before it"
    if parts.scheme not in _SCHEMES:
        return f"it begins with {parts.scheme}://"
    return None if host else "it has no host"
