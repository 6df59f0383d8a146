"""What servers are given of the bridge's environment.

Held back from all of them is what is the bridge's alone: the variables that the vault's secrets come from, since grants
say which tools get those, and the key with which the configured model is asked.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from mcp_bridge.downstream.configuration.inherited_environment import InheritedEnvironment
from mcp_bridge.downstream.search.config import is_local

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcp_bridge.governance.governance import Governance
    from mcp_bridge.models.config import ModelConfig
    from mcp_bridge.policy.secrets.vault import Vault
    from mcp_bridge.settings import Settings


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


def environment(settings: Settings, governance: Governance | None) -> InheritedEnvironment:
    """What servers are given of the bridge's environment, as it is now."""
    return environment_beside(settings, *(None, None) if governance is None else (governance.vault, governance.model))


def environment_beside(settings: Settings, vault: Vault | None, model: ModelConfig | None) -> InheritedEnvironment:
    """As `environment`, for commands that need no operator's tools."""
    variables = dict(os.environ)
    own = _withheld(vault, model, variables) | frozenset(_search_keys(settings, variables))
    return InheritedEnvironment(variables, settings.env_pass, own)


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
