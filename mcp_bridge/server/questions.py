"""Requests to the client during a call: a person's approval (elicitation), the client's model (sampling).

Up to protocol version 2025-11-25 the server sends requests while the call is open. From 2026-07-28 on it can't: the
call is answered with the requests (`InputRequiredResult`) and repeated with their results. In between, the work
continues in a task of the server's own (MCP specification 2026-07-28, multi round-trip requests).
"""

from __future__ import annotations

import functools
import json
import logging
import re
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from mcp_bridge.escaping import escape_invisible, escape_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from anyio.abc import TaskGroup
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from mcp_bridge.ledger.log.payloads import QuestionFields
    from mcp_bridge.models.sampling import SamplingReply, SamplingRequest

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 600.0
"""How long a person may take. Afterwards there is no decision, and the execution is suspended."""

MAX_ANSWERS = 1000
"""Most answers of one round that are looked at."""

_OUR_KEY = re.compile(r"question-[0-9]{1,9}")

MAX_SHOWN_CHARS = 4000
MAX_SHOWN_LINES = 100
"""Limits on a question. A client's dialogue may cut a longer one, and text that isn't seen would be approved unseen."""

_FORM = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Approve this call", "default": False}},
    "required": ["approve"],
}


NOT_COUNTED = (
    "an answer of this client's to a question was not counted, because its principal approves nothing any more: "
    "the question waits for an approver"
)

UNREADABLE = types.ElicitResult(action="cancel")
"""What stands for an answer that can't be read: nobody has decided, and no model has answered."""


CALL_KEY = "mcp_bridge.call"
"""A list in the scope of a request over HTTP (ASGI): it gets the `Questions` of the call that the request makes."""


class Questions:
    """Requests to the client of one call. This base class can ask nobody.

    Attributes:
        ctx: The currently open request, or None between two requests.
        may_approve: Whether the client's principal decides, by the configuration of now: a question may be open for
            long. Set by whoever knows the call.
        notices: What the call's answer has to say of the questions.
        execution: The id of the execution that runs for the call, once it is accepted.
    """

    may_vanish = True
    continues = False
    """Whether other requests may follow that belong to the call."""

    def __init__(self, ctx: ServerRequestContext[dict[str, Any]]) -> None:
        self.ctx: ServerRequestContext[dict[str, Any]] | None = ctx
        self.may_approve: Callable[[], Awaitable[bool]] = _never_approves
        self.notices: list[str] = []
        self.execution: str | None = None
        capabilities = ctx.session.client_capabilities
        elicitation = capabilities.elicitation if capabilities else None
        # An empty elicitation capability means forms: it predates the other mode.
        self._forms = elicitation is not None and (elicitation.form is not None or elicitation.url is None)
        self._samples = capabilities is not None and capabilities.sampling is not None
        self.belongs_to(ctx)

    def belongs_to(self, ctx: ServerRequestContext[dict[str, Any]]) -> None:
        """Note the request that is open for the call now."""
        self.ctx = ctx
        if ctx.request is not None and (calls := ctx.request.scope.get(CALL_KEY)) is not None:
            calls.append(self)

    def begun(self, execution: str) -> None:
        """Note the execution that runs for the call."""
        self.execution = execution

    @property
    def can_be_asked(self) -> bool:
        """Whether the client supports any requests."""
        return self._forms or self._samples

    async def ask(self, question: QuestionFields) -> bool | None:
        """A person's decision, as `gate.policy_check.Asker`; None if there is none, or it doesn't count.

        A question that is too long to display is not asked here: it waits for `mcp-bridge approvals` or the viewer.
        """
        if not self._forms or not await self.may_approve():
            return None
        message = _question_text(question)
        if not is_displayable(message):
            logger.info("a question of %d characters is too long for the client's dialogue", len(message))
            return None
        params = types.ElicitRequestFormParams(message=message, requested_schema=_FORM)
        decision = _decision(await self._answer(types.ElicitRequest(params=params), types.ElicitResult))
        if decision is not None and not await self.may_approve():
            self.notices = [NOT_COUNTED]
            return None
        return decision

    async def sample(self, request: SamplingRequest) -> SamplingReply:
        """The answer of the client's model, as `models.sampling.Sampler`.

        Raises:
            ModelError: `model_unavailable`, `model_failed`; `model_bad_answer`: the answer is none of a model.
        """
        from mcp_bridge.models.model import ModelError  # noqa: PLC0415  (most servers answer no model's step)
        from mcp_bridge.models.sampling import SamplingReply  # noqa: PLC0415

        if not self._samples:
            raise ModelError("model_unavailable", "This client offers no model (MCP sampling).")
        asked = types.CreateMessageRequest(params=_sampling(request))
        # This type has the content as a list as well, which clients may send since 2025-11-25.
        result = await self._answer(asked, types.CreateMessageResultWithTools)
        if result is None:
            raise ModelError("model_failed", "The client has not answered.")
        if not isinstance(result, types.CreateMessageResult | types.CreateMessageResultWithTools):
            raise ModelError("model_bad_answer", "What the client has sent is no model's answer (MCP sampling).")
        blocks = result.content if isinstance(result.content, list) else [result.content]
        texts = [block.text for block in blocks if isinstance(block, types.TextContent)]
        return SamplingReply("".join(texts) if texts else None, result.model, result.stop_reason)

    async def _answer(self, request: Any, kind: type[types.Result]) -> types.Result | None:
        """The client's answer, `UNREADABLE` if it is not of this kind, or None if there is none."""
        raise NotImplementedError


class DirectQuestions(Questions):
    """Sends requests while the call is open (protocol versions up to 2025-11-25)."""

    async def _answer(self, request: Any, kind: type[types.Result]) -> types.Result | None:
        ctx = self.ctx
        if ctx is None or not ctx.session.can_send_request:
            return None
        with anyio.move_on_after(ANSWER_SECONDS):
            try:
                metadata = ServerMessageMetadata(related_request_id=ctx.request_id)
                return await ctx.session.send_request(request, kind, metadata=metadata)
            except ValidationError as exc:
                _log_unreadable(request.method, exc)
                return UNREADABLE
            except MCPError as exc:
                if kind is types.CreateMessageResultWithTools:
                    from mcp_bridge.models.model import ModelError  # noqa: PLC0415

                    raise ModelError("model_failed", f"The client refused: {exc}") from None
                logger.debug("the client refused a question: %s", exc)
        return None


class RoundTripQuestions(Questions):
    """Sends requests as results of the call, and continues between the rounds (from 2026-07-28).

    Args:
        ctx: The request that begins the call.
        params: Its parameters.
    """

    def __init__(self, ctx: ServerRequestContext[dict[str, Any]], params: types.CallToolRequestParams) -> None:
        super().__init__(ctx)
        self._called = (params.name, params.arguments)
        self.open: dict[str, Any] = {}
        self.result: types.CallToolResult | None = None
        self.scope = anyio.CancelScope()
        self.news = anyio.Event()
        self._answers: dict[str, types.Result | None] = {}
        self._waiting: dict[str, anyio.Event] = {}
        self._count = 0
        self.continues = self.can_be_asked

    async def _answer(self, request: Any, kind: type[types.Result]) -> types.Result | None:  # noqa: ARG002
        self._count += 1
        key = f"question-{self._count}"
        self.open[key], self._waiting[key] = request, anyio.Event()
        self.news.set()
        try:
            with anyio.move_on_after(ANSWER_SECONDS):
                await self._waiting[key].wait()
            return self._answers.pop(key, None)
        finally:
            self.open.pop(key, None)
            self._waiting.pop(key, None)

    def is_of(self, params: types.CallToolRequestParams) -> bool:
        """Whether a request has the tool and the arguments that the call was begun with, as its repetition has to."""
        return self._called == (params.name, params.arguments)

    def take(self, answers: Mapping[str, types.Result]) -> None:
        """Distribute the answers of a round; a request without one counts as not answered."""
        for key, waiting in list(self._waiting.items()):
            self._answers[key] = answers.get(key)
            self.open.pop(key, None)
            waiting.set()

    async def run(self, work: Callable[[Questions], Awaitable[types.CallToolResult]]) -> None:
        """Run the call's work to its end."""
        with self.scope:
            self.result = await work(self)
        self.news.set()


class Conversations:
    """The calls of one server, including those that wait for answers between two requests.

    Args:
        tasks: The task group in which waiting calls continue.
    """

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._parked: dict[tuple[str, str], RoundTripQuestions] = {}
        """By principal and request state: another principal's state is unknown."""

    async def call(
        self,
        ctx: ServerRequestContext[dict[str, Any]],
        params: types.CallToolRequestParams,
        work: Callable[[Questions], Awaitable[types.CallToolResult]],
        principal: str,
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Start a call's work, or continue it with the answers.

        Args:
            ctx: The request.
            params: Its parameters.
            work: What the call does.
            principal: Whose call it is.

        Raises:
            MCPError: Invalid parameters: the state is unknown, or its call has ended, or was begun with other ones.
        """
        if params.request_state is not None:
            parked = self._parked.get((principal, params.request_state))
            if parked is None:
                raise MCPError(types.INVALID_PARAMS, "This call doesn't wait for answers (any more); start it again.")
            if not parked.is_of(params):
                message = (
                    "[bad_argument] This requestState is of a call with other arguments, which still waits. Nothing "
                    "was done: repeat that call with its own arguments, or begin another without a requestState."
                )
                raise MCPError(types.INVALID_PARAMS, message, {"code": "bad_argument"})
            del self._parked[principal, params.request_state]
            parked.belongs_to(ctx)
            parked.news = anyio.Event()
            parked.take(params.input_responses or {})
        elif ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return await work(DirectQuestions(ctx))
        else:
            parked = RoundTripQuestions(ctx, params)
            if not parked.can_be_asked:
                return await work(parked)
            self._tasks.start_soon(parked.run, work)
        return await self._round(parked, principal)

    async def _round(
        self, parked: RoundTripQuestions, principal: str
    ) -> types.CallToolResult | types.InputRequiredResult:
        try:
            while parked.result is None and not parked.open:
                await parked.news.wait()
                parked.news = anyio.Event()
                # Concurrent requests are sent in one round.
                await anyio.lowlevel.checkpoint()
        except BaseException:
            # The client has cancelled the call: nobody will fetch its result.
            parked.scope.cancel()
            raise
        parked.ctx = None
        if parked.result is not None:
            return parked.result
        state = secrets.token_urlsafe(24)
        self._parked[principal, state] = parked
        self._tasks.start_soon(self._forget, (principal, state), parked)
        return types.InputRequiredResult(input_requests=dict(parked.open), request_state=state)

    async def _forget(self, state: tuple[str, str], parked: RoundTripQuestions) -> None:
        """End a call whose client doesn't come back."""
        await anyio.sleep(2 * ANSWER_SECONDS)
        if self._parked.pop(state, None) is not None:
            parked.scope.cancel()


async def take_unreadable(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Middleware of the MCP server: replaces the answers of a round that can't be read by `UNREADABLE`.

    Otherwise the SDK would refuse the request that has them, and its call would wait for answers in vain.
    """
    answers = (ctx.params or {}).get("inputResponses")
    if ctx.method != "tools/call" or not isinstance(answers, dict):
        return await call_next(ctx)
    # Of others nobody is waiting for the answer.
    asked = [key for key in answers if _OUR_KEY.fullmatch(key)][:MAX_ANSWERS]
    readable = {key: answers[key] for key in asked}
    unreadable = [key for key in asked if not _is_readable(answers[key])]
    if unreadable:
        # Without the answers: a person may have typed them.
        logger.warning("%d of the client's answers to questions can't be read", len(unreadable))
        instead = UNREADABLE.model_dump(mode="json", by_alias=True, exclude_none=True)
        readable |= dict.fromkeys(unreadable, instead)
    return await call_next(replace(ctx, params={**(ctx.params or {}), "inputResponses": readable}))


def _is_readable(answer: Any) -> bool:
    try:
        _any_answer().validate_python(answer, by_name=False)
    except ValidationError:
        return False
    return True


@functools.cache
def _any_answer() -> TypeAdapter[Any]:
    # Made late: most clients answer no question.
    return TypeAdapter(types.InputResponse)


def _log_unreadable(asked: str, error: ValidationError) -> None:
    # Without the answer: a person may have typed it.
    logger.warning("the client's answer to %s can't be read: it has %d faults", asked, error.error_count())


def _decision(answer: types.Result | None) -> bool | None:
    """What a person has decided, or None: a form that was sent without its one field approves nothing, nor denies."""
    if not isinstance(answer, types.ElicitResult) or answer.action == "cancel":
        return None
    if answer.action == "decline":
        return False
    approve = (answer.content or {}).get("approve")
    return approve if isinstance(approve, bool) else None


async def _never_approves() -> bool:
    return False


def _question_text(question: QuestionFields) -> str:
    """A question as text, completely.

    A question about a call has `tool`, `arguments`, `filled`, `announced` and `why`; one of a step `message` and
    `details`.

    A program's message may be the agent's: each of its lines is prefixed, so that it can't be mistaken for the text
    that follows.
    """
    if "tool" in question:
        lines = [f"Allow the call of {escape_name(str(question['tool']))}?"]
        content = question["arguments"]
    else:
        who = "A dry run of a script:" if "listed" in question else "A program asks:"
        lines = [who, *(f"> {line}" for line in escape_invisible(str(question["message"])).split("\n"))]
        content = question.get("details")
    if content:
        # JSON escapes newlines in its strings.
        lines.append(escape_invisible(json.dumps(content, ensure_ascii=False, indent=1)))
    if question.get("announced"):
        lines.append("Left to the tool, with the defaults that it announces:")
        lines.append(escape_invisible(json.dumps(question["announced"], ensure_ascii=False, indent=1)))
    whose = f" (the {question['origin']}'s)" if question.get("origin") else ""
    if question.get("program"):
        lines.append(f"Program: {escape_name(str(question['program']))}{whose}")
    if question.get("step"):
        lines.append(f"Step: {escape_name(str(question['step']))}")
    if question.get("why"):
        lines.append(f"Why: {escape_name(str(question['why']))}")
    if question.get("filled"):
        lines.append(f"Defaults of the tool, left out by the caller: {escape_name(', '.join(question['filled']))}")
    return "\n".join(lines)


def is_displayable(question: str) -> bool:
    """Whether a question is short enough to be displayed by a client."""
    return len(question) <= MAX_SHOWN_CHARS and question.count("\n") < MAX_SHOWN_LINES


def _sampling(request: SamplingRequest) -> types.CreateMessageRequestParams:
    hints = [types.ModelHint(name=name) for name in request.model_hints]
    return types.CreateMessageRequestParams(
        messages=[
            types.SamplingMessage(
                role="assistant" if message.role == "assistant" else "user",
                content=types.TextContent(text=message.text),
            )
            for message in request.messages
        ],
        system_prompt=request.system_prompt,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        model_preferences=types.ModelPreferences(hints=hints) if hints else None,
    )
