"""The gate: every call to the outside passes here, whichever way it comes.

In this order: what is called is looked up; references are resolved, and defaults put in that rules ask about; the
policy decides on that; a person is asked, if the policy wants it, and shown that; the budget is taken; the intent is
recorded, durably; the call is made, by exactly the name and in exactly the form that were decided on; its result is
projected, counted and recorded. What is refused on the way has not happened, and says by which rule.
"""

from __future__ import annotations

import functools
import json
import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from mcp_bridge.downstream.catalog import describe
from mcp_bridge.downstream.catalog.aliases import nearest
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.scripts.call_history import failure
from mcp_bridge.gate.admission import Admission, ApprovalNeededError, Place, projected
from mcp_bridge.gate.model_steps import ModelSteps, amounts, kernel_usage
from mcp_bridge.governance.governance import LOCAL
from mcp_bridge.governance.tool_names import split
from mcp_bridge.host.channel import comes_to_its_end
from mcp_bridge.kernel.events import Effect, Outcome
from mcp_bridge.kernel.machine import APPROVAL
from mcp_bridge.kernel.references import WHOLE
from mcp_bridge.kernel.values import ValueFaultError, normal
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.payloads import PENDING, TAKEN_BACK
from mcp_bridge.models.model import ModelError
from mcp_bridge.offload import off_loop, on_thread, time_limit
from mcp_bridge.policy.redaction.json_walk import leaves
from mcp_bridge.policy.redaction.projection import Projector
from mcp_bridge.policy.rules.budgets import Amounts, Budget, Share, cut_short
from mcp_bridge.policy.rules.call import ProgramRef, StepContext
from mcp_bridge.policy.secrets.references import MemoryReferences
from mcp_bridge.policy.secrets.vault import Secrets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from mcp_bridge.downstream.catalog.catalog import Catalog
    from mcp_bridge.downstream.catalog.tools import ToolInfo
    from mcp_bridge.downstream.client.fleet import Fleet
    from mcp_bridge.executions.programs.run import ProgramRun
    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.executions.scripts.run import ScriptRun
    from mcp_bridge.gate.admission import Asker
    from mcp_bridge.governance.governance import Governance
    from mcp_bridge.kernel.events import OutcomeStatus
    from mcp_bridge.kernel.format import Fault
    from mcp_bridge.kernel.program import Program
    from mcp_bridge.ledger.log.allowance import Allowance
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.models.sampling import Sampler
    from mcp_bridge.policy.rules.budgets import Usages
    from mcp_bridge.policy.rules.call import Origin
    from mcp_bridge.policy.secrets.references import Scalar

logger = logging.getLogger(__name__)

PLANNED_TOOLS = 40
"""Tools that a planner is told of: those nearest to the intent."""

MAX_QUERY_CHARS = 1000

LONGEST_WAIT_SECONDS = 30.0
"""A wait of a program up to this is waited for; a longer one suspends it."""


NEWS_SECONDS = 0.25
"""Between two things that are told of what a server says of one call; what comes sooner is passed over."""

MAX_NEWS_CHARS = 300


NO_MARK: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Answered:
    """What a call gave, projected for the agent.

    Attributes:
        value: The value.
        raw: The whole result, as its server sent it; empty unless it was asked for.
        pending: Whether the tool's outcome comes later.
    """

    value: Any
    raw: dict[str, Any]
    pending: bool = False


class Gate:
    """What one execution of a script, and of the programs that it runs, may do.

    Args:
        execution: The script's execution.
        principal: Whose it is.
        allowed: Configured names of the servers that it may use, with their aliases.
        governance: The operator's word.
        fleet, catalog: The servers and their tools.
        recorder: Is told before and after.
        usages: What principals have used.
        asker: Asks a person, or None.
        sampler: Asks the client's model, or None.
        store_values: Keeps the values behind an execution's references, with what is recorded next.
        allowance: What may be recorded of it all; None for any.
        news: Told what servers say while they work on a call; None if nobody wants it.
    """

    def __init__(
        self,
        execution: str,
        principal: str,
        allowed: Mapping[str, str],
        governance: Governance,
        fleet: Fleet,
        catalog: Catalog,
        recorder: Recorder,
        usages: Usages,
        asker: Asker | None = None,
        sampler: Sampler | None = None,
        store_values: Callable[[str, Mapping[str, Scalar]], None] | None = None,
        allowance: Allowance | None = None,
        news: Callable[[str], None] | None = None,
    ) -> None:
        self.execution = execution
        self.allowance = allowance
        self._allowed = allowed
        self._governance = governance
        self._snapshot = governance.snapshot
        self._fleet = fleet
        self._catalog = catalog
        self._recorder = recorder
        self._budget = Budget(governance.snapshot.limits, usages.of(principal))
        limits = governance.snapshot.limits
        self._counts_bytes = limits.bytes is not None or limits.principal.bytes is not None
        self._shares: dict[str, Share] = {}
        """What of the budget is each program's: others may have gone on with it in between."""
        self._references = MemoryReferences()
        self._projector: Projector | None = None
        self._describing: Projector | None = None
        self._secrets = Secrets()
        self._model: ModelSteps | None = None
        self._asker = asker
        self._sampler = sampler
        self._keep_values = store_values
        self._news = news
        self._kept: set[tuple[str, str]] = set()
        self.servers: frozenset[str] | None = None
        """The servers that it was narrowed to; None if it wasn't."""
        self.script: ScriptRun | None = None
        """The script whose own calls pass here: it is told how each has ended."""

    async def projector(self) -> Projector:
        """Projects this execution's values. The first use reads the secrets, which may wait for a keyring."""
        if self._projector is None:
            self._secrets = await anyio.to_thread.run_sync(self._governance.vault.load)
            self._projector = Projector(self._secrets, self._references, self._governance.patterns)
        return self._projector

    async def described(self, value: Any) -> Any:
        """What servers say of themselves and their tools, without the secrets that they were given."""
        await self.projector()
        if not self._secrets.hidden:
            return value
        if self._describing is None:
            # No patterns: an address in a description is no customer's.
            self._describing = Projector(self._secrets, self._references)
        return await off_loop(value, self._describing.output, value)

    # --- calls ---

    async def call(
        self,
        tool: ToolInfo,
        arguments: dict[str, Any],
        *,
        step: StepContext | None = None,
        run: ProgramRun | None = None,
        effect: int | None = None,
        approved: Mapping[str, Any] | None = None,
        raw: bool = False,
        mark: Mapping[str, Any] = NO_MARK,
    ) -> Answered:
        """Call a tool, if everything allows it.

        Args:
            tool: From the catalogue.
            arguments: By their names in the schema, references unresolved.
            step: The program's step that makes the call; None for a script's own.
            run: The program's execution, with `step`; its journal records the outcome.
            effect: The step's effect, with `run`.
            approved: The question that a person has approved of already, or None.
            raw: Whether the whole result is wanted.
            mark: Of a script's own call, what its entries are to carry: `call`, its id; `asked`, its tool's name as it
                was asked for; `raw`.

        Raises:
            BridgeError: `denied`, `approval_needed`, `approval_outdated`, `tool_changed`, `budget_…`, `secret_…`,
                `reference_…`, `record_limit`, `ledger_full`, `not_recorded`: it was not made. What a failed call raises
                is projected as its result would be.
        """
        async with self.room(undoes=path_undoes(step)):
            return await self._called(
                tool, arguments, step=step, run=run, effect=effect, approved=approved, raw=raw, mark=mark
            )

    def room(self, *, undoes: bool = False) -> AbstractAsyncContextManager[None]:
        """As `Allowance.room`."""
        return nullcontext() if self.allowance is None else self.allowance.room(undoes=undoes)

    def records(self, execution: str) -> None:
        """As `program_run.Effects`."""
        if self.allowance is not None:
            self.allowance.counts(execution)

    async def _called(
        self,
        tool: ToolInfo,
        arguments: dict[str, Any],
        *,
        step: StepContext | None,
        run: ProgramRun | None,
        effect: int | None,
        approved: Mapping[str, Any] | None,
        raw: bool,
        mark: Mapping[str, Any],
    ) -> Answered:
        projector = await self.projector()
        execution, program = (run.execution, run.program.hash) if run else (self.execution, None)
        place = Place(execution, program, step.path if step else None, step, mark)
        script = None if run else self.script
        admission = Admission(
            self._snapshot, self._budget, self._fleet, projector, self._recorder, self._keep, self._asker, script
        )
        admitted = await admission.admit(tool, arguments, place, approved)
        names, decision, mark = admitted.names, admitted.decision, place.marks(admitted.names)
        try:
            await comes_to_its_end()
            size = await off_loop(admitted.sent, self._bytes_of, admitted.sent)
            reservation = self._budget.reserve(Amounts(calls=1, bytes=size))
        except BaseException:
            self._budget.uncount(decision)
            raise
        with reservation:
            intent: dict[str, Any] = {"kind": "tool", "tool": str(names), "arguments": admitted.asked, **mark}
            if admitted.recorded != admitted.asked:
                intent["sent"] = admitted.recorded
            if run:
                self._share(run.execution).add(Amounts(calls=1, bytes=size), decision.counts)
                intent["effect"] = effect
                if effect is not None and not self._may_repeat(admitted.tool):
                    run.begins(effect)
            if decision.counts:
                intent["rules"] = list(decision.counts)
            outcome: dict[str, Any] = {"kind": "tool", "tool": str(names), **mark, "status": TAKEN_BACK}
            with nullcontext() if script is None else script.beginning(outcome):
                self._keep(execution, [admitted.asked, admitted.recorded])
                await self._record("intent", execution, place.path, program, intent)
            try:
                answered = await self._made(admitted.tool, admitted.sent, raw=raw)
                answered, given = await off_loop(
                    [answered.value, answered.raw], functools.partial(self._shown, answered, projector, raw=raw)
                )
                if run:
                    self._share(run.execution).add(Amounts(bytes=given))
                reservation.settle(Amounts(calls=1, bytes=size + given))
                if answered.pending and "call" in mark:
                    # Its script is suspended, and gets what comes later.
                    outcome["status"] = PENDING
                else:
                    outcome |= success(answered, raw=raw)
            except BridgeError as exc:
                error = await off_loop([exc.message, exc.details], projected, exc, projector)
                outcome |= failure(error, raw=raw)
                raise error from None
            finally:
                if script is not None:
                    # With the next intent, or with the answer to the client: what was done before then is in doubt.
                    script.outcome(outcome)
        return answered

    def _shown(self, answered: Answered, projector: Projector, *, raw: bool) -> tuple[Answered, int]:
        """What the agent may see of an answer, and its bytes."""
        whole = projector.output(answered.raw) if raw else {}
        shown = Answered(projector.output(answered.value), whole, answered.pending)
        return shown, self._bytes_of(shown.value)

    def _bytes_of(self, value: Any) -> int:
        """Bytes of a value as JSON, if there is a limit on them."""
        return len(json.dumps(value)) if self._counts_bytes else 0

    async def _made(self, tool: ToolInfo, arguments: Any, *, raw: bool) -> Answered:
        if tool.server == LOCAL and self._governance.registry.tools:
            called = await self._governance.registry.call(tool.name, arguments, None)
            value = "PENDING" if called.pending else called.value
            text = value if isinstance(value, str) or not raw else json.dumps(value)
            return Answered(value, {"content": [{"type": "text", "text": text}]}, called.pending)
        result = await self._fleet.call_tool(tool.server, tool, arguments, None, await self._teller(tool))
        from mcp_bridge.downstream.catalog.results import convert, is_slow_to_convert  # noqa: PLC0415  (needs the SDK, loaded by now)

        converted = await on_thread(convert, result, tool) if is_slow_to_convert(result) else convert(result, tool)
        if converted["is_error"]:
            shown = converted["value"]
            message = shown if isinstance(shown, str) else "the tool reported an error without a text"
            raise BridgeError("tool_error", message, content=converted["raw"].get("content"), raw=converted["raw"])
        return Answered(converted["value"], converted["raw"])

    async def _teller(self, tool: ToolInfo) -> Callable[[str], None] | None:
        """Passes on what a server says of a call, as it may be seen, and a few times a second at most."""
        news = self._news
        if news is None:
            return None
        projector = await self.projector()
        said_at = -NEWS_SECONDS

        def tell(text: str) -> None:
            nonlocal said_at
            now = time.monotonic()
            if now - said_at >= NEWS_SECONDS:
                said_at = now
                # All of it first: a secret that was cut through can't be found any more.
                shown = " ".join(str(projector.output(text)).split())
                if shown:
                    news(f"{tool.server}.{tool.name}: {shown[:MAX_NEWS_CHARS]}")

        return tell

    async def _record(
        self, kind: Any, execution: str, path: str | None, program: str | None, payload: dict[str, Any]
    ) -> None:
        await self._recorder.append(Entry(kind, execution, payload, path, self._snapshot.hash, program))

    # --- effects of programs ---

    async def project(self, value: Any) -> Any:
        """As `program_run.Effects`."""
        return await off_loop(value, (await self.projector()).output, value)

    def _keep(self, execution: str, value: Any) -> None:
        """Keep the values behind the references in what is recorded, so that it can be told what a tool was given."""
        if self._keep_values is None:
            return
        found = self.values_behind(value)
        new = {name: value for name, value in found.items() if (execution, name) not in self._kept}
        if new:
            self._keep_values(execution, new)
            self._kept.update((execution, name) for name in new)

    def values_behind(self, value: Any) -> Mapping[str, Scalar]:
        """As `program_run.Effects`."""
        return self._references.values_behind(value)

    def adopt(self, execution: str, values: Mapping[str, Scalar | None], spent: Mapping[str, Any]) -> None:
        """As `program_run.Effects`."""
        self._references.adopt(values)
        self._share(execution).adopt(spent)

    def adopt_values(self, values: Mapping[str, Scalar | None]) -> None:
        """Know the values behind references that an execution has had elsewhere."""
        self._references.adopt(values)

    def adopt_script(self, values: Mapping[str, Scalar | None], spent: Mapping[str, Any]) -> None:
        """As `adopt`, for the script itself."""
        self._references.adopt(values)
        self._budget.adopt(spent)

    def _share(self, execution: str) -> Share:
        return self._shares.setdefault(execution, Share(self._budget))

    async def repeatable(self, run: ProgramRun, effect: Effect) -> bool:
        """As `program_run.Effects`."""
        return effect.kind != "tool" or await self.is_repeatable(effect.name, run.servers)

    async def is_repeatable(self, name: str, servers: frozenset[str] | None = None) -> bool:
        """Whether a tool's call that may have happened may be made again."""
        try:
            tool = await self._find(name, servers)
        except BridgeError:
            return False
        return self._may_repeat(tool)

    def _may_repeat(self, tool: ToolInfo) -> bool:
        """Whether two calls do no more than one, by a word that is believed."""
        # A server's own counts where the operator says so.
        believed = tool.server == LOCAL or self._snapshot.believes(tool.server)
        return believed and tool.annotations.get("idempotentHint") is True

    async def perform(self, run: ProgramRun, effect: Effect, *, approved: Mapping[str, Any] | None = None) -> Outcome:
        """Do what a program asks for, as `program_run.Effects`."""
        outcome = await self._performed(run, effect, approved)
        value, message = await run.own([outcome.value, outcome.message])
        return outcome._replace(value=value, message=message)

    async def _performed(self, run: ProgramRun, effect: Effect, approved: Mapping[str, Any] | None) -> Outcome:
        number = effect.id
        try:
            return await self._perform(run, effect, approved=approved)
        except TimeoutError:
            return Outcome(number, "timeout")
        except ApprovalNeededError as exc:
            run.questions[number] = exc.question
            return Outcome(number, "pending", code=APPROVAL, message=exc.message)
        except BridgeError as exc:
            return Outcome(number, "denied" if exc.code == "denied" else "failed", None, exc.code, str(exc))
        except Exception:
            # A fault of ours must reach the operator's log, and not the sandbox.
            logger.exception("effect %s of %s failed", number, run.execution)
            return Outcome(number, "failed", None, "internal_error", "the bridge met an internal error")

    async def _perform(self, run: ProgramRun, effect: Effect, *, approved: Mapping[str, Any] | None) -> Outcome:
        match effect.kind:
            case "tool":
                return await self._tool(run, effect, approved=approved)
            case "wait":
                seconds = effect.arguments["seconds"]
                if seconds > LONGEST_WAIT_SECONDS:
                    return Outcome(effect.id, "pending")
                with anyio.fail_after(effect.timeout):
                    await anyio.sleep(seconds)
                return Outcome(effect.id, "ok")
            case "event":
                return Outcome(effect.id, "pending")
            case "approval":
                with anyio.fail_after(effect.timeout):
                    return await self._approval(run, effect)
        return await self._llm(run, effect)

    async def _approval(self, run: ProgramRun, effect: Effect) -> Outcome:
        projector = await self.projector()
        asked = {**effect.arguments, "program": run.program.name, "step": effect.step}
        question: dict[str, Any] = await off_loop(asked, projector.trace, asked)
        answer = None
        if self._asker is not None:
            shown = await off_loop(asked, projector.person, asked, "the question")
            answer = await self._asker.ask({**shown, "origin": run.origin})
        if answer is None:
            return Outcome(effect.id, "pending")
        decision = {"approved": answer, "by": "client"}
        self._keep(run.execution, question)
        await self._record("decision", run.execution, effect.step, run.program.hash, question | decision)
        return Outcome(effect.id, "ok", decision)

    async def _llm(self, run: ProgramRun, effect: Effect) -> Outcome:
        async with self.room():
            return await self._asked(run, effect)

    async def _asked(self, run: ProgramRun, effect: Effect) -> Outcome:
        projector = await self.projector()
        model = await self.model()
        told = await off_loop(effect.arguments, projector.trace, effect.arguments)
        asked: dict[str, Any] = {"kind": "llm", "effect": effect.id, "arguments": told}
        await comes_to_its_end()
        await self._record("intent", run.execution, effect.step, run.program.hash, asked)
        try:
            completion = await model.answer(effect.arguments, effect.timeout)
        except ModelError as exc:
            error = projected(exc, projector)
            status: OutcomeStatus = "timeout" if exc.code == "model_timeout" else "failed"
            self._share(run.execution).add(amounts(exc.usage))
            return Outcome(effect.id, status, None, error.code, str(error), kernel_usage(exc.usage))
        except anyio.get_cancelled_exc_class():
            self._share(run.execution).add(cut_short(asked["arguments"]))
            raise
        self._share(run.execution).add(amounts(completion.usage))
        return Outcome(effect.id, "ok", completion.text, usage=kernel_usage(completion.usage))

    async def model(self) -> ModelSteps:
        """The model of this execution."""
        if self._model is None:
            projector, word = await self.projector(), self._governance
            self._model = ModelSteps(word.model, projector, self._secrets, self._budget, self._sampler, word.base)
        return self._model

    async def plan(self, intent: str, validate: Callable[[Any], Awaitable[Sequence[Fault]]]) -> dict[str, Any]:
        """Have the model write a program for an intent.

        Args:
            intent: What it shall do.
            validate: Everything that is wrong with a program.

        Raises:
            BridgeError: As `models.planner.plan`.
        """
        from mcp_bridge.models.planner import plan  # noqa: PLC0415  (rarely needed)

        projector = await self.projector()
        found = await self._catalog.search(intent[:MAX_QUERY_CHARS], PLANNED_TOOLS, servers=self._allowed.keys())
        tools = [(f"{hit.tool.server}.{hit.tool.name}", describe.line(hit.tool)) for hit in found.hits]
        planned = await plan(
            await off_loop(intent, projector.model, intent),
            await self.model(),
            tools=await off_loop(tools, projector.model, tools),
            validate=validate,
        )
        return planned.program

    async def record_of(self, record: ExecutionRecord) -> None:
        """Hide in a script's record what must not be shown."""
        projector = await self.projector()
        for name in ("stdout", "stderr", "value", "error", "displays"):
            shown = getattr(record, name)
            setattr(record, name, await off_loop(shown, projector.output, shown))

    async def _tool(self, run: ProgramRun, effect: Effect, *, approved: Mapping[str, Any] | None) -> Outcome:
        chain = tuple(
            ProgramRef(self._origin(run, name, program), program.hash, name or program.name)
            for name, program in run.machine.programs_of(effect.id)
        )
        tool = await self._find(effect.name, run.servers)
        try:
            with time_limit(effect.timeout) as limit:
                answered = await self.call(
                    tool,
                    effect.arguments,
                    step=StepContext(chain, effect.step),
                    run=run,
                    effect=effect.id,
                    approved=approved,
                )
            if limit.cancelled_caught:
                raise TimeoutError
        except BridgeError as exc:
            empty = [text for text in leaves(effect.arguments) if isinstance(text, str) and WHOLE.fullmatch(text)]
            if exc.code == "bad_arguments" and empty:
                # The commonest mistake: a name that is mistyped, or missing from the context.
                names = ", ".join(sorted(set(empty)))
                nothing = f"Nothing is behind {names}: neither in the context nor in an output."
                exc.hint = f"{nothing} {exc.hint}" if exc.hint else nothing
            raise
        if answered.pending:
            return Outcome(effect.id, "pending")
        try:
            return Outcome(effect.id, "ok", await off_loop(answered.value, normal, answered.value))
        except ValueFaultError as exc:
            raise BridgeError("bad_result", f"The result is no JSON value: {exc}.") from None

    def _origin(self, run: ProgramRun, name: str | None, program: Program) -> Origin:
        """Whose a program is: by where the host has taken it from, not by what it says of itself."""
        if name is None:
            return run.origin
        known = self._governance.programs.get(name)
        return "operator" if known is not None and known.hash == program.hash else "agent"

    async def _find(self, name: str, servers: frozenset[str] | None = None) -> ToolInfo:
        """`server.tool`, or the plain name of one of the operator's tools.

        Args:
            name: As a step has it.
            servers: Those that are left to its program; None for all that this gate has.
        """
        allowed = self._allowed
        if servers is not None:
            allowed = {server: alias for server, alias in allowed.items() if server in servers}
        own = self._governance.registry.tools if LOCAL in allowed else {}
        if name in own:
            return await self._catalog.tool(LOCAL, name)
        try:
            server, tool = split(name, allowed)
        except BridgeError:
            if "." in name:
                raise
            close = nearest(name, own)
            hint = f"Did you mean {', '.join(close)}?" if close else "A step names server.tool, or a tool of local."
            raise BridgeError("unknown_tool", f"There is no tool {name[:100]!r}.", hint=hint, nearest=close) from None
        if not tool:
            raise BridgeError("unknown_tool", f"{name[:100]!r} is a server; a step names server.tool.")
        return await self._catalog.tool(server, tool)


def path_undoes(step: StepContext | None) -> bool:
    """Whether a call undoes what a step has done."""
    return step is not None and step.path.endswith(".compensate")


def success(answered: Answered, *, raw: bool) -> dict[str, Any]:
    """An answer as a part of an outcome."""
    told = {"status": "ok", "value": answered.raw if raw else answered.value}
    return told | {"pending": True} if answered.pending else told
