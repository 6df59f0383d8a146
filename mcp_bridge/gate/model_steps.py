"""Model steps: prompts are projected, budgets reserved, and the usage is counted, also after a failure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.kernel.events import Usage as KernelUsage
from mcp_bridge.models.factory import make_model
from mcp_bridge.models.model import Completion, Message, ModelError
from mcp_bridge.offload import off_loop
from mcp_bridge.policy.rules.budgets import Amounts
from mcp_bridge.policy.secrets.vault_uris import SECRET_PREFIX
from mcp_bridge.telemetry.model_spans import model_span

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_bridge.models.config import ModelConfig
    from mcp_bridge.models.model import Model, Usage
    from mcp_bridge.models.sampling import Sampler
    from mcp_bridge.policy.redaction.projection import Projector
    from mcp_bridge.policy.rules.budgets import Budget
    from mcp_bridge.policy.secrets.vault import Secrets


class ModelSteps:
    """The model of one execution, as `models.model.Model`.

    Args:
        config: Which; None for none.
        projector, secrets: Of the execution.
        budget: Of the execution.
        sampler: How the client is asked, or None.
        directory: The configuration's folder.
    """

    def __init__(
        self,
        config: ModelConfig | None,
        projector: Projector,
        secrets: Secrets,
        budget: Budget,
        sampler: Sampler | None,
        directory: Path,
    ) -> None:
        self._projector = projector
        self._secrets = secrets
        self._budget = budget
        self._most = config.max_tokens if config else None
        self._provider = config.provider if config else "none"
        self._name = (config.name if config else None) or self._provider
        self._model: Model = make_model(config, resolve_secret=self._key, sampler=sampler, directory=directory)

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Completion:
        """Ask.

        Raises:
            BridgeError: `budget_tokens`, `budget_cost`; as `models.model.Model.complete`.
        """
        project = self._projector.model
        shown = [Message(each.role, as_text(await off_loop(each.text, project, each.text))) for each in messages]
        size = sum(len(message.text.encode()) for message in shown)
        limit = min((count for count in (max_tokens, self._most) if count is not None), default=None)
        with await self._budget.reserve_persistent(Amounts(model_tokens=size + (limit or 0))) as reservation:
            await reservation.confirm()
            try:
                with model_span(self._provider, self._name) as answered:
                    completion = await self._model.complete(
                        shown, max_tokens=max_tokens, temperature=temperature, timeout=timeout
                    )
                    answered.usage = completion.usage
            except ModelError as exc:
                await reservation.settle_persistent(amounts(exc.usage))
                raise
            await reservation.settle_persistent(amounts(completion.usage))
        text = await off_loop(completion.text, self._projector.output, completion.text)
        return Completion(as_text(text), completion.usage, completion.truncated)

    async def answer(self, arguments: dict[str, Any], timeout: float | None) -> Completion:  # noqa: ASYNC109
        """Ask a step's question, with `prompt`, `system` and `allowed_outputs`. An empty answer is valid.

        Raises:
            ModelError: `model_bad_answer`: also for an answer that was cut off, if it isn't plainly one that is
                allowed. What follows would go by half of it.
            BridgeError: As `complete`.
        """
        messages = [Message("user", as_text(arguments["prompt"]))]
        if "system" in arguments:
            messages.insert(0, Message("system", as_text(arguments["system"])))
        try:
            completion = await self.complete(messages, timeout=timeout)
        except ModelError as exc:
            if exc.blank is None:
                raise
            return Completion(exc.blank, exc.usage)
        if completion.truncated and not _is_whole(completion.text, arguments.get("allowed_outputs", ())):
            limit = "Set max_tokens" if self._most is None else f"Raise max_tokens, which is {self._most},"
            raise ModelError(
                "model_bad_answer",
                f"The model's answer was cut off at its limit of tokens, after {len(completion.text)} characters.",
                hint=f"{limit} in [model], or ask for a shorter answer.",
                usage=completion.usage,
            )
        return completion

    async def _key(self, reference: str) -> str:
        name = reference.removeprefix(SECRET_PREFIX)
        if (plaintext := self._secrets.plaintexts.get(name)) is None:
            problem = self._secrets.problems.get(name)
            raise BridgeError(
                "secret_missing",
                f"The model's key, the secret {name!r}, can't be had.",
                hint=problem.hint if problem else f"Add [secrets.{name}] to the configuration.",
                secret=name,
            )
        return plaintext


def _is_whole(text: str, allowed: Sequence[str]) -> bool:
    """Whether a text that was cut off is one of the answers that are allowed, and no other could have become of it."""
    return {one for one in allowed if one.startswith(text.strip())} == {text.strip()}


def as_text(value: Any) -> str:
    """A text unchanged, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def amounts(usage: Usage) -> Amounts:
    """The usage for the budget; an unknown price counts as 0."""
    return Amounts(model_tokens=usage.total_tokens, model_cost_usd=usage.cost_usd or 0.0)


def kernel_usage(usage: Usage) -> KernelUsage:
    """The usage for a program's machine; an unknown price counts as 0."""
    return KernelUsage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.cost_usd or 0)
