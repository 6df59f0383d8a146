"""Models of any provider that the LiteLLM library supports (extra `litellm`).

The library is configured not to fetch data from the network by itself, read `.env` files, print to standard output
(which may carry the MCP protocol), or repeat requests. It keeps one idle task on the event loop for its own logging.
"""

from __future__ import annotations

import base64
import functools
import importlib
import json
import logging
import os
import re
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio
import anyio.to_thread

from mcp_bridge.errors import extra_hint
from mcp_bridge.models.answer_checks import completion
from mcp_bridge.models.model import ModelError, amount, answer_within, smaller_limit, timeout_error, usage_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_bridge.models.config import ModelConfig
    from mcp_bridge.models.model import Completion, Message, Usage

ResolveSecret = Callable[[str], Awaitable[str]]
"""Resolves a reference (`vault://secret/openai`) to its plaintext. Raises `BridgeError` if it doesn't exist."""

ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise prices are fetched at import
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",  # otherwise a list of headers is fetched at the first such request
    "LITELLM_MODE": "PRODUCTION",  # otherwise a .env file in a directory above the library is loaded
}

LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "openai", "httpcore")
"""Loggers of the library and its HTTP clients, limited to warnings and above."""

_MESSAGE_CHARS = 500
_HINTS = {
    401: "Check api_key in [model].",
    403: "Check api_key in [model].",
    404: "Check name and base_url in [model].",
    429: "The provider limits how much may be asked: try again later.",
}
_NO_JSON = "Expecting value: line 1 column 1"
"""What Python's parser of JSON says of an HTML page."""
_PREFIX = re.compile(r"(?:(?:litellm\.)?\w*(?:Error|Exception|Timeout)(?::| -)\s*)+")
_TRACEBACK = re.compile(r"\s*Traceback \(most recent call last\)")
_KEY_VARIABLE = re.compile(r"_(?:KEY|TOKEN|SECRET|PASSWORD)$")
_KEY_SHAPES = re.compile(r"\bsk-[\w-]{8,}|\bAIza[\w-]{20,}|(?<=[?&]key=)[^&\s]+|(?<=bearer )\S+", re.IGNORECASE)
_MIN_KEY_CHARS = 8
_HIDDEN = "[REDACTED]"


class LiteLLMModel:
    """A model with a LiteLLM name.

    The first request in a process loads the library in a thread, which takes seconds and isn't counted as time-out.

    Args:
        config: The `[model]` table, with provider `litellm`.
        resolve_secret: Returns the plaintext of `api_key`; called for each request, and its result isn't stored.
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
        """See `Model`. Also raises the errors of `resolve_secret`."""
        library = await anyio.to_thread.run_sync(load_library, abandon_on_cancel=True)
        request = {
            "messages": [{"role": message.role, "content": message.text} for message in messages],
            "max_tokens": smaller_limit(max_tokens, self._config.max_tokens),
            "temperature": self._config.temperature if temperature is None else temperature,
        }
        response = await self._ask(library, request, timeout)
        if isinstance(response, ModelError):
            raise response
        return _read(library, response, messages, self._config)

    async def _ask(self, library: Any, request: dict[str, Any], timeout: float | None) -> Any:
        """The library's response, or an error for the caller to raise.

        It isn't raised here, so that neither this frame, which contains the API key, nor the library's exception, which
        contains the request with its headers, is reachable from it.
        """
        config = self._config
        key = await self._key()
        try:
            _check_name(library, config)
            return await answer_within(
                timeout,
                config.timeout,
                lambda: library.acompletion(
                    **request,
                    model=config.name,
                    timeout=smaller_limit(timeout, config.timeout),
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
            failure = timeout_error(timeout, config.timeout)
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


_loading = threading.Lock()


def load_library() -> Any:
    """Import and configure the library, once.

    Raises:
        ModelError: `model_unavailable`: it isn't installed, or can't be loaded.
    """
    # Two threads that import it at the same time would see parts of it.
    with _loading:
        return _load()


@functools.cache
def _load() -> Any:
    os.environ.update(ENVIRONMENT)
    try:
        library: Any = importlib.import_module("litellm")
    except ImportError as exc:
        missing = exc.name == "litellm"
        raise ModelError(
            "model_unavailable",
            "The LiteLLM library isn't installed." if missing else f"The LiteLLM library can't be loaded: {exc}.",
            hint=extra_hint("litellm"),
        ) from None
    for name in LOGGERS:
        # The library's handlers write to standard output, and log prompts and headers.
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
    """The price according to the library's list; None for a model that isn't in it."""
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
    said, hint = provider_message(exc, key), _HINTS.get(known or 0)
    if said.startswith(_NO_JSON):
        said = f"what answered there isn't a model's interface, since its answer is no JSON ({said})"
        hint = "Check base_url in [model]: OpenAI's interface is often under /v1."
    return ModelError("model_failed", f"The model {config.name!r} failed: {said}", hint=hint, status=known)


def provider_message(exc: Exception, key: str | None) -> str:
    """A provider's error message in one line, without the library's wrapping and without keys.

    Providers do repeat keys ("Incorrect API key provided: …"), and the library adds tracebacks to messages.
    """
    text = str(getattr(exc, "message", None) or exc)
    # Comes first: a key that is cut in two can't be recognised any more.
    for secret in sorted(_secrets(key), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    text = _TRACEBACK.split(_KEY_SHAPES.sub(_HIDDEN, text), maxsplit=1)[0]
    if wrapping := _PREFIX.match(text):
        text = text[wrapping.end() :]
    return " ".join(text.split())[:_MESSAGE_CHARS] or type(exc).__name__


def _secrets(key: str | None) -> Iterator[str]:
    """The API key, and keys that the library may take from the environment, in the forms that messages contain."""
    keys = [value for name, value in os.environ.items() if _KEY_VARIABLE.search(name) and len(value) >= _MIN_KEY_CHARS]
    for value in [key, *keys] if key else keys:
        yield value
        yield quote(value, safe="")
        yield json.dumps(value)[1:-1]
        yield base64.b64encode(value.encode()).decode()
