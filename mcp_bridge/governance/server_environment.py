"""What servers are given of the bridge's environment, and what may be told of what they print.

Held back from all of them is what is the bridge's alone: the variables that the vault's secrets come from, since grants
say which tools get those, and the key with which the configured model is asked.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from mcp_bridge.downstream.configuration.environment import Environment
from mcp_bridge.downstream.search.config import is_local
from mcp_bridge.policy.redaction.masking import Masker
from mcp_bridge.policy.redaction.patterns import BUILT_IN, DEFAULT, TooManyValuesError, find
from mcp_bridge.policy.secrets.vault_uris import secret_uri

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcp_bridge.downstream.client.failures import MaskOutput
    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.governance.governance import Governance
    from mcp_bridge.models.config import ModelConfig
    from mcp_bridge.policy.secrets.vault import Vault
    from mcp_bridge.settings import Settings

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

_MODEL_KEY = re.compile(r"_(?:KEY|TOKEN|SECRET|PASSWORD)$")

_PROVIDER_VARIABLES = {
    "azure_ai": ("AZURE_AI_",),
    "gemini": ("GEMINI_", "GOOGLE_API_KEY"),
    "huggingface": ("HF_TOKEN", "HUGGINGFACE_"),
    "together_ai": ("TOGETHERAI_", "TOGETHER_"),
}
"""The variables' prefixes of providers whose variables don't begin with their LiteLLM name."""

_FAMILIES = (("claude", "anthropic"), ("gemini", "gemini"), ("mistral", "mistral"), ("command", "cohere"))
"""Prefixes of models that LiteLLM accepts without a provider's name, with their providers; others are OpenAI's."""


def environment(settings: Settings, governance: Governance | None) -> Environment:
    """What servers are given of the bridge's environment, as it is now."""
    return environment_beside(settings, *(None, None) if governance is None else (governance.vault, governance.model))


def environment_beside(settings: Settings, vault: Vault | None, model: ModelConfig | None) -> Environment:
    """As `environment`, for commands that need no operator's tools."""
    variables = dict(os.environ)
    own = _withheld(vault, model, variables) | frozenset(_search_keys(settings, variables))
    return Environment(variables, settings.env_pass, own)


def withheld(governance: Governance | None, variables: Mapping[str, str]) -> frozenset[str]:
    """The variables that are the bridge's alone, besides its settings."""
    if governance is None:
        return frozenset()
    return _withheld(governance.vault, governance.model, variables)


def _withheld(vault: Vault | None, model: ModelConfig | None, variables: Mapping[str, str]) -> frozenset[str]:
    sources = frozenset() if vault is None else vault.variables
    return sources | frozenset(_model_keys(model, variables))


def _model_keys(model: ModelConfig | None, variables: Mapping[str, str]) -> Iterator[str]:
    """The variables that LiteLLM takes a key from where the configuration names none."""
    if model is None or model.provider != "litellm" or model.api_key is not None:
        return
    yield from _provider_keys(model.name or "", variables)


def _search_keys(settings: Settings, variables: Mapping[str, str]) -> Iterator[str]:
    """The variables that LiteLLM takes the key of the search's embedding model from."""
    if settings.search.embeddings is not None and not is_local(settings.search.embeddings):
        yield from _provider_keys(settings.search.embeddings, variables)


def _provider_keys(model: str, variables: Mapping[str, str]) -> Iterator[str]:
    """The variables with keys of a model's provider, by LiteLLM's name of the model."""
    name = model.lower()
    provider, slash, _ = name.partition("/")
    if not slash:
        provider = next((family for start, family in _FAMILIES if name.startswith(start)), "openai")
    prefixes = _PROVIDER_VARIABLES.get(provider, (f"{provider.upper().replace('-', '_')}_",))
    for variable in variables:
        if variable.startswith(prefixes) and _MODEL_KEY.search(variable):
            yield variable


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
