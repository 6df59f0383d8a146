"""Where uv finds the operator's package index: what pip is configured for, unless uv is configured itself.

uv reads neither pip's files nor its environment, and a machine that reaches its index through a mirror, or with a
certificate of its own, often says so to pip alone. Further indexes of pip's (`extra-index-url`) aren't taken over: each
could answer for a name that another one owns. Who wants that says it to uv, which asks one index for each name.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECTIONS = ("global", "install")
"""Sections of pip's files, the stronger one last."""

_VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "index-url": "UV_DEFAULT_INDEX",
        "find-links": "UV_FIND_LINKS",
        "no-index": "UV_NO_INDEX",
        "trusted-host": "UV_INSECURE_HOST",
        "cert": "SSL_CERT_FILE",
    }
)
"""uv's environment variables for pip's settings."""

_UV_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_CONFIG_FILE")

_OFF = frozenset({"", "0", "false", "no", "off"})


def index_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables with which uv finds the index; none that is set already."""
    settings = _pip_settings(environ)
    if _is_uv_configured(environ):
        settings = {name: value for name, value in settings.items() if name == "cert"}
    if settings.get("no-index", "").lower() in _OFF:
        # Links count where they are all that there is.
        settings = {name: value for name, value in settings.items() if name not in {"no-index", "find-links"}}
    found = {_VARIABLES[name]: value for name, value in settings.items() if not environ.get(_VARIABLES[name])}
    if not environ.get("UV_SYSTEM_CERTS") and not environ.get("UV_NATIVE_TLS"):
        # A company's own root is among the system's certificates, and not in uv's.
        found["UV_SYSTEM_CERTS"] = "true"
    return found


def _pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    parser = configparser.RawConfigParser()
    try:
        parser.read(_pip_files(environ), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return found
    for section in _SECTIONS:
        if parser.has_section(section):
            found |= {name.replace("_", "-"): value for name, value in parser.items(section)}
    for name in _VARIABLES:
        if value := environ.get("PIP_" + name.upper().replace("-", "_")):
            found[name] = value
    return {name: " ".join(value.split()) for name, value in found.items() if name in _VARIABLES}


def _pip_files(environ: Mapping[str, str]) -> list[Path]:
    """The configuration files of pip, the strongest last."""
    home = Path(environ.get("HOME") or Path.home())
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    system = [Path(folder) / "pip" for folder in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if folder]
    files = [folder / "pip.conf" for folder in (*system, Path("/etc"), home / ".pip", config / "pip")]
    if named := environ.get("PIP_CONFIG_FILE"):
        # pip reads no file at all when it is told to read the null device.
        return [] if named == os.devnull else [*files, Path(named)]
    return files


def _is_uv_configured(environ: Mapping[str, str]) -> bool:
    home = Path(environ.get("HOME") or Path.home())
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = (config / "uv/uv.toml", Path("/etc/uv/uv.toml"))
    return any(environ.get(name) for name in _UV_INDEXES) or any(file.exists() for file in files)
