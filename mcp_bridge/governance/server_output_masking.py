"""What of a server's output may be told a model: without secrets, and without the path of the home directory."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from mcp_bridge.governance.server_environment import withheld
from mcp_bridge.policy.redaction.masking import Masker
from mcp_bridge.policy.redaction.patterns import BUILT_IN, DEFAULT, TooManyValuesError, find
from mcp_bridge.policy.secrets.vault_uris import secret_uri

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.downstream.client.server_errors import MaskOutput
    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.governance.governance import Governance

HIDDEN = "[hidden]"

_MIN_CHARS = 6
"""Least characters of a variable's value that is hidden: `true` and `1234` occur in any text."""

_SECRET_WORD = re.compile(
    r"api_?key|passphrase|passw(?:or)?d|secret|token(?!iz)"
    r"|(?:^|[_.-]|\b)(?:auth|cookie|credentials?|keys?|pass|pat|pwd)(?:$|[_.=-]|\b)",
    re.IGNORECASE,
)

_NO_SECRETS = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK"})

_SHAPES = (
    # The user and password of an address, as proxies and data bases have them.
    (re.compile(r"(?<=://)[^/\s@]{1,300}@"), f"{HIDDEN}@"),
    (re.compile(r"(?i)(?<=\bbearer )[A-Za-z0-9._~+/=-]{8,4000}|(?<=\bbasic )[A-Za-z0-9+/=]{8,4000}"), HIDDEN),
)


def shown_output(governance: Governance | None) -> MaskOutput:
    """Returns a function that masks a server's output for a model: secrets, and the home directory as `~`."""
    hidden = {name: os.environ[name] for name in withheld(governance, os.environ) if name in os.environ}

    def shown(spec: ServerSpec, variables: Mapping[str, str], text: str) -> str:
        known = dict(governance.vault.known) if governance is not None else {}
        text = Masker(known).mask(text) if known else text
        text = _without(text, {**_secrets(spec, variables), **hidden})
        for shape, instead in _SHAPES:
            text = shape.sub(instead, text)
        try:
            spans = find([BUILT_IN[name] for name in DEFAULT], text)
        except TooManyValuesError:
            return ""
        for span in reversed(spans):
            text = f"{text[: span.start]}{HIDDEN}{text[span.end :]}"
        home = variables.get("HOME", "").rstrip("/")
        return re.sub(rf"{re.escape(home)}(?=/|\b)", "~", text) if home else text

    return shown


def _secrets(spec: ServerSpec, variables: Mapping[str, str]) -> dict[str, str]:
    """The values of a server's variables and arguments whose names are those of secrets, by name."""
    secrets = {name: value for name, value in {**variables, **spec.env}.items() if _names_a_secret(name)}
    before = ""
    for number, arg in enumerate(spec.args):
        option, equals, value = arg.partition("=")
        if equals and _names_a_secret(option):
            secrets[f"args[{number}]"] = value
        elif before.startswith("-") and "=" not in before and _names_a_secret(before):
            secrets[f"args[{number}]"] = arg
        before = arg
    return secrets


def _names_a_secret(name: str) -> bool:
    return name not in _NO_SECRETS and _SECRET_WORD.search(name) is not None


def _without(text: str, secrets: Mapping[str, str]) -> str:
    """The text with `[NAME]` in the place of each value, however that is encoded."""
    # Variables have names that no id may have.
    ids = {f"variable-{number}.": name for number, name in enumerate(secrets) if len(secrets[name]) >= _MIN_CHARS}
    text = Masker({secret_id: secrets[name] for secret_id, name in ids.items()}).mask(text) if ids else text
    for secret_id, name in ids.items():
        text = text.replace(secret_uri(secret_id), f"[{name}]")
    return text
