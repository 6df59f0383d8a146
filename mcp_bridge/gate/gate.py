"""The gate, which every call to the outside passes.

In this order: references are resolved, and defaults put in that rules ask about; the policy decides on that; the
arguments are checked against the tool's schema; a person is asked, if the policy wants it, and shown what the tool is
going to get; the budget is taken; the intent is recorded, durably; the call is made, by exactly the name and in exactly
the form that were decided on; its result is projected and counted. What is refused on the way has not happened, and
says by which rule.

The gate knows neither scripts nor programs. Whoever makes a call (`Caller`) records it.
"""

from __future__ import annotations

import functools
import json
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.downstream.catalog.bound_tool import Listener, ToolResult
from mcp_bridge.errors import BridgeError
from mcp_bridge.gate.call_notifications import CallNotifications
from mcp_bridge.gate.model_steps import ModelSteps, amounts
from mcp_bridge.gate.planned_calls import PlannedCallError
from mcp_bridge.gate.policy_check import Admission, projected
from mcp_bridge.models.model import ModelError
from mcp_bridge.offload import off_loop
from mcp_bridge.policy.rules.budgets import Amounts, Budget, Share, cut_short
from mcp_bridge.policy.rules.trusted_hints import is_trusted_idempotent
from mcp_bridge.registered.current_call import made_for
from mcp_bridge.telemetry import measurements, tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from mcp_bridge.downstream.catalog.bound_tool import BoundTool
    from mcp_bridge.gate.allowed_tools import AllowedTools
    from mcp_bridge.gate.callers import Caller, ModelCaller
    from mcp_bridge.gate.execution_values import ExecutionValues
    from mcp_bridge.gate.planned_calls import ApprovedCalls
    from mcp_bridge.gate.policy_check import Admitted, Asker
    from mcp_bridge.governance.governance import Governance
    from mcp_bridge.ledger.log.record_limit import Allowance
    from mcp_bridge.models.model import Completion
    from mcp_bridge.models.sampling import Sampler
    from mcp_bridge.policy.redaction.projection import Projector
    from mcp_bridge.policy.rules.budgets import Usages

_ONE_CALL = Amounts(calls=1)

_NO_SPAN: AbstractContextManager[None] = nullcontext()


class Gate:
    """The gate of one execution of a script, and of the programs that it runs.

    Args:
        principal: Whose it is.
        governance: The operator's word.
        tools: The tools that it may use.
        values: Its values.
        usages: What principals have used.
        asker: Asks a person, or None.
        sampler: Asks the client's model, or None.
        allowance: What may be recorded of it all; None for any.
        on_server_message: Told what servers say while they work on a call; None if nobody wants it.
        narrowed: Whether its servers were chosen by whoever runs it, and aren't simply all that there are.
        is_dry: Whether it is of a dry run: calls that don't only read are listed, and not made.

    Attributes:
        tools: The tools that it may use.
        values: Its values.
        asker: Asks a person, or None.
        allowance: What may be recorded of it all; None for any.
        policy_hash: Of the policy that decides.
        narrowed_to: The configured names of its servers, if it was narrowed; else None.
        is_dry: Whether it is of a dry run.
    """

    def __init__(
        self,
        principal: str,
        governance: Governance,
        tools: AllowedTools,
        values: ExecutionValues,
        usages: Usages,
        asker: Asker | None = None,
        sampler: Sampler | None = None,
        allowance: Allowance | None = None,
        on_server_message: Callable[[str], None] | None = None,
        *,
        narrowed: bool = False,
        is_dry: bool = False,
    ) -> None:
        self.tools = tools
        self.values = values
        self.asker = asker
        self.allowance = allowance
        self.policy_hash = governance.snapshot.hash
        self.narrowed_to = frozenset(tools.servers) if narrowed else None
        limits = governance.snapshot.limits
        self._governance = governance
        self._budget = Budget(limits, usages.of(principal))
        self._counts_bytes = limits.bytes is not None or limits.principal.bytes is not None
        self._shares: dict[str, Share] = {}
        """Each program's share of the budget: other executions may have resumed the program in between."""
        self.is_dry = is_dry
        self._admission = Admission(governance.snapshot, self._budget, values, asker, is_dry=is_dry)
        self._model: ModelSteps | None = None
        self._sampler = sampler
        self._principal = principal
        self._on_server_message = on_server_message

    @property
    def approved(self) -> ApprovedCalls | None:
        """The calls that a person has approved as a whole, after a dry run, and that aren't made yet; or None."""
        return self._admission.approved

    @approved.setter
    def approved(self, calls: ApprovedCalls | None) -> None:
        self._admission.approved = calls

    def room(self, *, undoes: bool = False) -> AbstractAsyncContextManager[None]:
        """As `Allowance.room`."""
        return nullcontext() if self.allowance is None else self.allowance.room(undoes=undoes)

    async def call(
        self, tool: BoundTool, arguments: dict[str, Any], caller: Caller, *, raw: bool = False
    ) -> ToolResult:
        """Call a tool, if everything allows it.

        Args:
            tool: The tool.
            arguments: By their names in the schema, references unresolved.
            caller: Who makes the call.
            raw: Whether the whole result is wanted.

        Returns:
            The result, projected for the agent.

        Raises:
            BridgeError: `denied`, `approval_needed`, `approval_outdated`, `tool_changed`, `bad_arguments`,
                `arguments_unchecked`, `budget_…`, `secret_…`, `reference_…`, `record_limit`, `ledger_full`,
                `not_recorded`: it was not made. What a failed call raises is projected as its result would be.
            PlannedCallError: In a dry run: it is listed, and not made.
        """
        undoing = 0 if caller.step is None else caller.step.undoing
        async with self.room(undoes=undoing > 0):
            projector = await self.values.projector()
            admitted = await self._admit(tool, arguments, caller)
            try:
                await caller.request.effect_begins()
                # As it is recorded: usage outlives an erasure, and mustn't tell how long an erased value was.
                size = await self._size(admitted.recorded)
                reserved = Amounts(calls=1, bytes=size) if size else _ONE_CALL
                # What has been done is undone, though a limit is reached: by one call for each that was counted.
                reservation = await self._budget.reserve_persistent(reserved, regardless=undoing == 1)
            except BaseException as exc:
                self._admission.give_up(admitted)
                measurements.call_refused(tool.info.server, tool.info.name, exc)
                raise
            share = None if caller.program is None else self._share(caller.execution)
            with reservation:
                if share is not None:
                    share.add(reserved, admitted.decision.counts)
                self.values.keep(caller.execution, [admitted.asked, admitted.recorded])
                await caller.begin(admitted.intent(), is_repeatable=self._is_idempotent(admitted.tool))
                try:
                    # It is durable with the intent. If it fails there, that is the outcome of a call that wasn't made.
                    await reservation.confirm()
                except BridgeError as exc:
                    measurements.call_refused(tool.info.server, tool.info.name, exc)
                    raise
                try:
                    with (
                        measurements.call(tool.info.server, tool.info.name),
                        _span_of_own_tool(tool),
                        made_for(self._principal, caller.execution),
                        self._listening(tool, projector) as listener,
                    ):
                        result = await admitted.tool.call(admitted.prepared, listener, raw=raw)
                    result = await off_loop(
                        [result.value, result.raw], functools.partial(_projected, result, projector, raw=raw)
                    )
                    given = await self._size(result.value)
                    if share is not None and given:
                        share.add(Amounts(bytes=given))
                    await reservation.settle_persistent(Amounts(calls=1, bytes=size + given) if given else reserved)
                except BridgeError as exc:
                    raise await off_loop([exc.message, exc.details], projected, exc, projector) from None
            return result

    async def _admit(self, tool: BoundTool, arguments: dict[str, Any], caller: Caller) -> Admitted:
        names = {"mcp_bridge.server": tool.info.server, "gen_ai.tool.name": tool.info.name}
        with tracing.span("decide call", attributes=names) as span:
            try:
                admitted = await self._admission.admit(tool, arguments, caller)
            except PlannedCallError:
                raise
            except BaseException as exc:
                measurements.call_refused(tool.info.server, tool.info.name, exc)
                raise
            if span is not None:
                span.set_attribute("mcp_bridge.decision", admitted.decision.effect)
            return admitted

    async def ask_model(
        self,
        arguments: dict[str, Any],
        caller: ModelCaller,
        timeout: float | None,  # noqa: ASYNC109
    ) -> Completion:
        """Ask the model for a program's step.

        Args:
            arguments: `prompt`, and perhaps `system`.
            caller: Whose step it is.
            timeout: Seconds that the answer may take; None for as long as it takes.

        Raises:
            ModelError: As `models.model.Model.complete`. Its text is not projected.
            BridgeError: `budget_tokens`, `budget_cost`, `record_limit`, `ledger_full`, `not_recorded`; `dry_run`.
        """
        self._refuse_if_dry()
        async with self.room():
            projector = await self.values.projector()
            model = await self.model()
            told: dict[str, Any] = await off_loop(arguments, projector.trace, arguments)
            share = self._share(caller.execution)
            await caller.request.effect_begins()
            await caller.ask(told)
            try:
                completion = await model.answer(arguments, timeout)
            except ModelError as exc:
                share.add(amounts(exc.usage))
                raise
            except anyio.get_cancelled_exc_class():
                # Its usage is unknown.
                share.add(cut_short(told))
                raise
            share.add(amounts(completion.usage))
            return completion

    async def model(self) -> ModelSteps:
        """The model of this execution.

        Raises:
            BridgeError: `dry_run`: a dry run asks none.
        """
        self._refuse_if_dry()
        if self._model is None:
            projector, governance = await self.values.projector(), self._governance
            self._model = ModelSteps(
                governance.model, projector, self.values.secrets, self._budget, self._sampler, governance.base
            )
        return self._model

    def _refuse_if_dry(self) -> None:
        if self.is_dry:
            raise BridgeError("dry_run", "A dry run asks no model.")

    async def is_idempotent(self, name: str, servers: frozenset[str] | None = None) -> bool:
        """Whether a call of a tool does no harm if it is made once more; False for a tool that isn't there now.

        Args:
            name: The tool's, as a step or a script's record has it.
            servers: The servers that are left to its program; None for all that this gate has.
        """
        try:
            return self._is_idempotent(await self.tools.of_step(name, servers))
        except BridgeError:
            return False

    def _is_idempotent(self, tool: BoundTool) -> bool:
        """Whether a tool is idempotent: an operator's own tool by what it says, a server's by a trusted hint."""
        hints = tool.info.annotations
        if tool.is_operators:
            return hints.get("idempotentHint") is True
        return is_trusted_idempotent(self._governance.snapshot, tool.info.server, hints)

    def adopt(self, used: Mapping[str, Any], program: str | None = None) -> None:
        """Count usage in another process, as `Budget.adopt` takes it.

        Args:
            used: By a program's execution, or by the script itself.
            program: The program's execution.
        """
        if program is None:
            self._budget.adopt(used)
        else:
            self._share(program).adopt(used)

    def _share(self, program: str) -> Share:
        return self._shares.setdefault(program, Share(self._budget))

    async def _size(self, value: Any) -> int:
        """Bytes of a value as JSON, if there is a limit on them."""
        return await off_loop(value, _json_bytes, value) if self._counts_bytes else 0

    @contextmanager
    def _listening(self, tool: BoundTool, projector: Projector) -> Iterator[Listener]:
        """Pass on what a server says while a call is made."""
        if self._on_server_message is None:
            yield Listener(self._principal)
            return
        with CallNotifications(
            f"{tool.info.server}.{tool.info.name}", projector, self._on_server_message
        ) as notifications:
            yield Listener(self._principal, notifications.on_message)


def _span_of_own_tool(tool: BoundTool) -> AbstractContextManager[object]:
    """A span for a call of the operator's own tool; the connection to a server makes its own."""
    if not tool.is_operators:
        return _NO_SPAN
    name = tool.info.name
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.type": "function"}
    return tracing.span(f"execute_tool {name}", attributes=attributes)


def _projected(result: ToolResult, projector: Projector, *, raw: bool) -> ToolResult:
    """A result as the agent may see it."""
    whole = projector.answer(result.raw) if raw else {}
    return ToolResult(projector.answer(result.value), whole, result.is_pending)


def _json_bytes(value: Any) -> int:
    return len(json.dumps(value))
