"""Any provider that the LiteLLM library knows (extra `litellm`).

What is settled for the library here, since it would do otherwise: it fetches nothing from the network by itself, reads
no `.env` file, prints nothing to standard output (which may be the protocol's), and sends no request twice. It keeps
one idle task on the event loop for its own logging.
"""

from __future__ import annotations

import base64
import functools
import importlib
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio
import anyio.to_thread

from mcp_bridge.models.model import ModelError, amount, answer_within, completion, out_of_time, smaller, usage_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_bridge.models.config import ModelConfig
    from mcp_bridge.models.model import Completion, Message, Usage

ResolveSecret = Callable[[str], Awaitable[str]]
"""From a reference (`vault://secret/openai`) to its plaintext. Raises `BridgeError` for one that there isn't."""

ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else prices are fetched at import
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",  # else a list of headers is, at the first such request
    "LITELLM_MODE": "PRODUCTION",  # else a .env file somewhere above the library becomes our environment
}

LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "openai", "httpcore")
"""Of the library and of what it sends with: heard from a warning upwards."""

_MESSAGE_CHARS = 500
_HINTS = {
    401: "Check api_key in [model].",
    403: "Check api_key in [model].",
    404: "Check name and base_url in [model].",
    429: "The provider limits how much may be asked: try again later.",
}
_PREFIX = re.compile(r"(?:(?:litellm\.)?\w*(?:Error|Exception|Timeout)(?::| -)\s*)+")
_TRACEBACK = re.compile(r"\s*Traceback \(most recent call last\)")
_KEY_VARIABLE = re.compile(r"_(?:KEY|TOKEN|SECRET|PASSWORD)$")
_KEY_SHAPES = re.compile(r"\bsk-[\w-]{8,}|\bAIza[\w-]{20,}|(?<=[?&]key=)[^&\s]+|(?<=bearer )\S+", re.IGNORECASE)
_MIN_KEY_CHARS = 8
_HIDDEN = "[REDACTED]"


class LiteLLMModel:
    """A model by LiteLLM's name for it.

    The first question of a process loads the library: some seconds in a thread, which no time-out counts.

    Args:
        config: With provider `litellm`.
        resolve_secret: Gives the plaintext behind `api_key`'s reference; asked before each request, never kept.
    """

    def __init__(self, config: ModelConfig, resolve_secret: ResolveSecret | None) -> None:
        self._config = config
        self._resolve_secret = resolve_secret

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """See `Model`. Also raises what `resolve_secret` raises."""
        limit = smaller(timeout, self._config.timeout)
        library = await anyio.to_thread.run_sync(_load, abandon_on_cancel=True)
        asked = {
            "messages": [{"role": message.role, "content": message.text} for message in messages],
            "max_tokens": smaller(max_tokens, self._config.max_tokens),
            "temperature": self._config.temperature if temperature is None else temperature,
        }
        response = await self._ask(library, asked, limit)
        if isinstance(response, ModelError):
            raise response
        return _read(library, response, messages, self._config)

    async def _ask(self, library: Any, asked: dict[str, Any], limit: float | None) -> Any:
        """The library's response, or the error to raise.

        It isn't raised here: neither this frame, which holds the key, nor the library's exception, which holds a
        request with its headers, shall be reachable from it.
        """
        config = self._config
        key = await self._key()
        try:
            _check_name(library, config)
            return await answer_within(
                limit,
                lambda: library.acompletion(
                    **asked,
                    model=config.name,
                    timeout=limit,
                    api_key=key,
                    base_url=config.base_url,
                    max_retries=0,
                    num_retries=0,
                    drop_params=True,
                ),
            )
        except ModelError as exc:
            failure = exc
        except library.Timeout:
            failure = out_of_time(limit)
        except Exception as exc:  # noqa: BLE001 - the library raises whatever a provider's answer makes it raise
            failure = _failure(exc, config, key)
        return failure.with_traceback(None)

    async def _key(self) -> str | None:
        reference = self._config.api_key
        if reference is None:
            return None
        if self._resolve_secret is None:
            raise ModelError("model_unavailable", f"There is no vault to take {reference} from.")
        return await self._resolve_secret(reference)


@functools.cache
def _load() -> Any:
    """The library, set up."""
    os.environ.update(ENVIRONMENT)
    try:
        library: Any = importlib.import_module("litellm")
    except ImportError as exc:
        missing = exc.name == "litellm"
        raise ModelError(
            "model_unavailable",
            "The LiteLLM library isn't installed." if missing else f"The LiteLLM library can't be loaded: {exc}.",
            hint="Install the extra: pip install 'mcp-code-bridge[litellm]'.",
        ) from None
    for name in LOGGERS:
        # The library's handlers write to standard output, and it logs prompts and headers.
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.WARNING)
    library.suppress_debug_info = True
    library.disable_hf_tokenizer_download = True
    return library


def _check_name(library: Any, config: ModelConfig) -> None:
    try:
        library.get_llm_provider(model=config.name, api_base=config.base_url)
    except library.BadRequestError:
        raise ModelError(
            "model_unavailable",
            f"LiteLLM knows no provider for the model {config.name!r}.",
            hint="Write the provider before the name in [model], such as name = 'openai/gpt-4o-mini'.",
        ) from None


def _read(library: Any, response: Any, messages: Sequence[Message], config: ModelConfig) -> Completion:
    choices = getattr(response, "choices", None)
    choice = choices[0] if isinstance(choices, list) and choices else None
    text = getattr(getattr(choice, "message", None), "content", None)
    reported = getattr(response, "usage", None)
    usage = usage_of(
        messages,
        text,
        model=str(getattr(response, "model", None) or config.name),
        prompt_tokens=getattr(reported, "prompt_tokens", None),
        completion_tokens=getattr(reported, "completion_tokens", None),
        total_tokens=getattr(reported, "total_tokens", None),
        prices=config.prices,
    )
    if config.prices is None:
        usage = replace(usage, cost_usd=_known_cost(library, response, usage, config.name))
    return completion(text, usage, truncated=getattr(choice, "finish_reason", None) == "length")


def _known_cost(library: Any, response: Any, usage: Usage, name: str | None) -> float | None:
    """By the library's price list; None for a model that it doesn't list."""
    try:
        if not usage.estimated:
            return amount(library.completion_cost(completion_response=response, model=name))
        parts = library.cost_per_token(
            model=name,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.total_tokens - usage.prompt_tokens,
        )
        return amount(sum(parts))
    except Exception:  # noqa: BLE001 - the library has no one type for a price that it doesn't know
        return None


def _failure(exc: Exception, config: ModelConfig, key: str | None) -> ModelError:
    status = getattr(exc, "status_code", None)
    known = status if isinstance(status, int) else None
    return ModelError(
        "model_failed",
        f"The model {config.name!r} failed: {told(exc, key)}",
        hint=_HINTS.get(known or 0),
        status=known,
    )


def told(exc: Exception, key: str | None) -> str:
    """What a provider said, in one line, without our library's wrapping and without keys.

    Providers do repeat keys ("Incorrect API key provided: …"), and the library puts tracebacks into messages.
    """
    text = str(getattr(exc, "message", None) or exc)
    # Before anything else: what is left of a key that was cut through can't be found any more.
    for secret in sorted(_secrets(key), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    text = _TRACEBACK.split(_KEY_SHAPES.sub(_HIDDEN, text), maxsplit=1)[0]
    if wrapping := _PREFIX.match(text):
        text = text[wrapping.end() :]
    return " ".join(text.split())[:_MESSAGE_CHARS] or type(exc).__name__


def _secrets(key: str | None) -> Iterator[str]:
    """The key, and what the library may have taken from the environment instead, in the forms that messages have."""
    keys = [value for name, value in os.environ.items() if _KEY_VARIABLE.search(name) and len(value) >= _MIN_KEY_CHARS]
    for value in [key, *keys] if key else keys:
        yield value
        yield quote(value, safe="")
        yield json.dumps(value)[1:-1]
        yield base64.b64encode(value.encode()).decode()
