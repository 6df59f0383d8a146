"""A model with prepared answers: for tests, continuous integration, and trying a program without a provider.

The same requests in the same order always get the same answers: each scripted model starts at the beginning of its
script.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING

import anyio
from pydantic import TypeAdapter, ValidationError

from mcp_bridge.errors import BridgeError
from mcp_bridge.models.answer_checks import completion
from mcp_bridge.models.config import Script
from mcp_bridge.models.model import ModelError, answer_within, usage_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mcp_bridge.models.config import ModelConfig, ScriptedAnswer
    from mcp_bridge.models.model import Completion, Message

NAME = "scripted"

_SCRIPT: TypeAdapter[tuple[ScriptedAnswer, ...] | dict[str, ScriptedAnswer]] = TypeAdapter(Script)


class ScriptedModel:
    """Answers from the setting `answers` of `[model]`.

    Args:
        config: The `[model]` table, with provider `scripted`.
        directory: The directory for relative paths of a file of answers.

    Raises:
        BridgeError: `bad_config`: a file of answers can't be read.
    """

    def __init__(self, config: ModelConfig, directory: Path) -> None:
        answers = config.answers
        script = read_script(directory / answers) if isinstance(answers, str) else answers or ()
        rest = repeat(config.default_answer) if config.default_answer else ()
        self._config = config
        self._by_part = script if isinstance(script, dict) else {}
        self._in_order: Iterator[ScriptedAnswer] = chain(() if isinstance(script, dict) else script, rest)

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """See `Model`. Token limits and temperature have no effect."""
        del max_tokens, temperature
        answer = self._choose(messages)
        await answer_within(timeout, self._config.timeout, lambda: anyio.sleep(answer.delay))
        if answer.error:
            message = answer.message or "The scripted model fails here, as its script says."
            raise ModelError(answer.error, message)
        usage = usage_of(
            messages,
            answer.text,
            model=self._config.name or NAME,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            cost_usd=answer.cost_usd or 0,
            prices=self._config.prices,
        )
        return completion(answer.text, usage, truncated=answer.truncated)

    def _choose(self, messages: Sequence[Message]) -> ScriptedAnswer:
        prompt = next((message.text for message in reversed(messages) if message.role == "user"), "")
        chosen = next((answer for part, answer in self._by_part.items() if part in prompt), None)
        chosen = chosen or next(self._in_order, None)
        if chosen is None:
            what = "no answer for this prompt" if self._by_part else "no more answers"
            raise ModelError("model_failed", f"The scripted model has {what}.", hint="Add default_answer to [model].")
        return chosen


def read_script(file: Path) -> tuple[ScriptedAnswer, ...] | dict[str, ScriptedAnswer]:
    """The answers in a JSON file.

    Raises:
        BridgeError: `bad_config`.
    """
    try:
        return _SCRIPT.validate_json(file.read_bytes())
    except OSError as exc:
        what = f"can't be read: {exc.strerror}"
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"][1:]))
        what = f"{where}: {first['msg']}" if where else first["msg"]
    raise BridgeError("bad_config", f"Model answers: {file}: {what}.", file=str(file), key="model.answers")
