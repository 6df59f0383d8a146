"""Print shell exports that make uv use the registry that pip is configured for on this machine.

uv reads neither pip's files nor its environment. A machine that reaches PyPI through a mirror, or through a proxy
with a certificate of its own, usually says so to pip only. What the user told uv itself always wins.

Extra indexes are left out on purpose: everything this project installs is on PyPI, and a second index could
answer for a name that it doesn't own. Links count only where they are the index's replacement.
"""

import configparser
import os
import shlex
from pathlib import Path

SECTIONS = ("global", "install")  # pip's order: the later one wins
UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
INDEX_NAMES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_CONFIG_FILE")


def pip_files() -> list[Path]:
    """Pip's configuration files, the strongest last."""
    home = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    system = [Path(folder) / "pip" for folder in os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if folder]
    folders = [*system, Path("/etc"), home / "Library/Application Support/pip", home / ".pip", config / "pip"]
    files = [folder / "pip.conf" for folder in folders]
    if named := os.environ.get("PIP_CONFIG_FILE"):
        # pip reads no file at all when it is told to read the null device.
        return [] if named == os.devnull else [*files, Path(named)]
    return files


def pip_settings() -> dict[str, str]:
    """Pip's settings that matter here, the environment's over the files'."""
    found: dict[str, str] = {}
    parser = configparser.RawConfigParser()
    parser.read(pip_files(), encoding="utf-8")
    for section in SECTIONS:
        if parser.has_section(section):
            found.update({name.replace("_", "-"): value for name, value in parser.items(section)})
    for name in UV_NAMES:
        if value := os.environ.get("PIP_" + name.upper().replace("-", "_")):
            found[name] = value
    return {name: " ".join(value.split()) for name, value in found.items() if name in UV_NAMES}


def uv_is_configured() -> bool:
    """Whether the user has told uv itself where to look."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return any(os.environ.get(name) for name in INDEX_NAMES) or any(
        path.exists() for path in (config / "uv/uv.toml", Path("/etc/uv/uv.toml"))
    )


def exports() -> dict[str, str]:
    """The variables to set; none that is set already."""
    settings = pip_settings()
    if uv_is_configured():
        settings = {name: value for name, value in settings.items() if name == "cert"}
    if settings.get("no-index", "").lower() in {"", "0", "false", "no", "off"}:
        settings = {name: value for name, value in settings.items() if name not in {"no-index", "find-links"}}
    return {UV_NAMES[name]: value for name, value in settings.items() if not os.environ.get(UV_NAMES[name])}


if __name__ == "__main__":
    for variable, setting in sorted(exports().items()):
        print(f"export {variable}={shlex.quote(setting)}")
