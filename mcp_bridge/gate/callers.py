"""Protocols of what makes a call, a script or a program's step, and records it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.ledger.log.payloads import QuestionFields, ToolIntent
    from mcp_bridge.policy.rules.call import StepContext


class Caller(Protocol):
    """Makes a call, and records its entries."""

    @property
    def execution(self) -> str:
        """The execution that the entries belong to."""

    @property
    def program(self) -> str | None:
        """The hash of the program that calls; None for a script."""

    @property
    def step(self) -> StepContext | None:
        """The step that calls, for the policy; None for a script's own call."""

    @property
    def request(self) -> RequestContext:
        """The request that the call is made for."""

    @property
    def approved(self) -> Mapping[str, Any] | None:
        """The question about this call that a person has approved already, or None."""

    async def decided(self, question: QuestionFields) -> bool | None:
        """Whether a person has approved exactly this call before, or elsewhere; None if nobody has decided.

        Args:
            question: As a person was to be asked it, projected.
        """

    async def decide(self, question: QuestionFields, *, approved: bool) -> bool:
        """Record the decision of the client's person.

        Returns:
            What counts: where the question is open elsewhere, too, somebody may have been quicker.
        """

    def left_open(self, question: QuestionFields) -> None:
        """Note that the client's person has gone without an answer.

        Args:
            question: As they were asked it, projected.
        """

    async def deny(self, tool: str, decider: str) -> None:
        """Record that the policy denies the call.

        Args:
            tool: The tool's exact name, after its server's.
            decider: What denies it.
        """

    async def begin(self, intent: ToolIntent, *, is_repeatable: bool) -> None:
        """Record that the call is about to be made; when this returns, that is durable.

        Args:
            intent: The call, without what only the caller knows of it.
            is_repeatable: Whether the call does no harm if it is made once more.

        Raises:
            BridgeError: `not_recorded`: it must not be made.
        """


class ModelCaller(Protocol):
    """A program's step that asks the model."""

    @property
    def execution(self) -> str:
        """The program's execution."""

    @property
    def request(self) -> RequestContext:
        """The request that the step is made for."""

    async def ask(self, arguments: Any) -> None:
        """Record that the model is about to be asked; when this returns, that is durable.

        Args:
            arguments: What it is asked, projected.

        Raises:
            BridgeError: `not_recorded`: it must not be asked.
        """
