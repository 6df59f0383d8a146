"""The configuration table `[model]`: the model, its limits and its prices."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from mcp_bridge.models.model import Prices

_REFERENCE = re.compile(r"vault://secret/[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_NUMBERS = {"allow_inf_nan": False}

Amount = Annotated[float, Field(ge=0, **_NUMBERS)]
Seconds = Annotated[float, Field(gt=0, **_NUMBERS)]
Count = Annotated[int, Field(ge=0, strict=True)]


def _reference(value: str) -> str:
    # The message doesn't repeat the value: it may be an API key, configured here by mistake.
    if not _REFERENCE.fullmatch(value):
        raise ValueError("write a reference such as vault://secret/openai, never the key itself")
    return value


def _address(value: str) -> str:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("write an address such as https://models.example.com/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("an address has no user, password, query or fragment; a key belongs in api_key")
    return value


class ScriptedAnswer(BaseModel):
    """One answer of the scripted model: a text, or an error.

    Attributes:
        text: The answer.
        error: The code of the error to raise instead.
        message: The error's message.
        delay: Seconds before the answer or error.
        truncated: Whether to mark the answer as cut off.
        prompt_tokens, completion_tokens: Usage, as reported by a provider; estimated if omitted.
        cost_usd: The price, as known to a provider's library.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str | None = None
    error: Literal["model_timeout", "model_failed", "model_unavailable", "model_bad_answer"] | None = None
    message: str | None = None
    delay: Amount = 0.0
    truncated: bool = False
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cost_usd: Amount | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> ScriptedAnswer:
        if (self.text is None) == (self.error is None):
            raise ValueError("an answer has either text or error")
        if self.message is not None and self.error is None:
            raise ValueError("message is an error's")
        if (self.prompt_tokens is None) != (self.completion_tokens is None):
            raise ValueError("give both prompt_tokens and completion_tokens, or neither")
        return self


Answer = Annotated[ScriptedAnswer, BeforeValidator(lambda value: {"text": value} if isinstance(value, str) else value)]
"""A text, or a table with the fields of `ScriptedAnswer`."""


def _form(value: Any) -> str | None:
    if isinstance(value, str):
        return "file"
    return "table" if isinstance(value, dict) else "list" if isinstance(value, (list, tuple)) else None


Script = Annotated[
    Annotated[tuple[Answer, ...], Tag("list")] | Annotated[dict[str, Answer], Tag("table")],
    Discriminator(_form, custom_error_type="script", custom_error_message="answers are a list or a table"),
]
"""Answers in order, or keyed by a part of the prompt."""

Answers = Annotated[
    Annotated[tuple[Answer, ...], Tag("list")]
    | Annotated[dict[str, Answer], Tag("table")]
    | Annotated[str, Field(min_length=1), Tag("file")],
    Discriminator(_form, custom_error_type="script", custom_error_message="answers are a list, a table or a file"),
]
"""A script, or the name of a JSON file that contains one."""


class ModelConfig(BaseModel):
    """The `[model]` table.

    Validation errors show no values: a key may have been configured in the wrong place.

    Attributes:
        provider: `litellm` (any provider that the LiteLLM library supports), `sampling` (the MCP client's own model),
            or `scripted` (prepared answers).
        name: The model's name: for LiteLLM with its provider (`anthropic/claude-sonnet-4-5`), for sampling a hint.
        api_key: A reference to a secret; without it LiteLLM uses its provider's environment variable.
        base_url: The URL of a server that replaces the provider's.
        temperature: The temperature; not sent to a model that doesn't support it.
        max_tokens: The maximum length of an answer.
        timeout: Seconds for one answer.
        input_cost_per_million, output_cost_per_million: US dollars for a million tokens; override LiteLLM's prices.
        answers: For the scripted model. A list is served in order, and further requests fail. In a table, the first key
            that the last user message contains determines the answer. A text names a JSON file with either, relative to
            the configuration file.
        default_answer: For the scripted model, if no key of the table matches or the list is exhausted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    provider: Literal["litellm", "sampling", "scripted"]
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    api_key: Annotated[str, AfterValidator(_reference)] | None = None
    base_url: Annotated[str, AfterValidator(_address)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, **_NUMBERS)] = 0.0
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    timeout: Seconds = 60.0
    input_cost_per_million: Amount | None = None
    output_cost_per_million: Amount | None = None
    answers: Answers | None = None
    default_answer: Answer | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ModelConfig:
        if (self.input_cost_per_million is None) != (self.output_cost_per_million is None):
            raise ValueError("give both input_cost_per_million and output_cost_per_million, or neither")
        if self.provider == "litellm" and self.name is None:
            raise ValueError("provider 'litellm' needs name, such as 'openai/gpt-4o-mini'")
        if self.provider == "scripted" and self.answers is None and self.default_answer is None:
            raise ValueError("provider 'scripted' needs answers or default_answer")
        belongs = {"litellm": ("api_key", "base_url"), "scripted": ("answers", "default_answer")}
        for provider, keys in belongs.items():
            for key in keys:
                if provider != self.provider and getattr(self, key) is not None:
                    raise ValueError(f"{key} is for provider {provider!r}, not for {self.provider!r}")
        return self

    @property
    def prices(self) -> Prices | None:
        """The operator's prices, or None."""
        if self.input_cost_per_million is None or self.output_cost_per_million is None:
            return None
        return Prices(self.input_cost_per_million, self.output_cost_per_million)
