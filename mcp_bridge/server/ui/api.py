"""The API of the viewer's pages. What a principal may not see appears as unknown to it."""

from __future__ import annotations

import json
import logging
import math
from collections import OrderedDict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio.to_thread
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.approvals import decide, require_approver
from mcp_bridge.executions.decision_comments import check_text
from mcp_bridge.executions.sessions.cell import Cell
from mcp_bridge.executions.sessions.sessions import chain
from mcp_bridge.executions.status import effective_status
from mcp_bridge.host.pool_report import pool_reports
from mcp_bridge.kernel.language import program_parser as programs
from mcp_bridge.ledger.audit import execution_queries
from mcp_bridge.server.ui import page_data
from mcp_bridge.views.graph import draw
from mcp_bridge.views.graph_path import taken
from mcp_bridge.views.graph_svg import svg
from mcp_bridge.views.overview import STATUSES, Asking, Overview, progress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from mcp_bridge.governance.principals import Principal
    from mcp_bridge.server.ui.change_notifications import Live

logger = logging.getLogger(__name__)

PAGE = 50
"""Executions per page."""

MAX_ROWS = 200
"""Maximum timeline rows, or proofs, per page."""

MAX_OVERVIEWS = 64
"""Principals for which what was read last is remembered."""

MAX_QUERY_CHARS = 200
MAX_BODY_BYTES = 64 << 10

MAX_CELLS = 200
"""Maximum number of a session's earlier cells on the page of a cell."""

MAX_DRAWN_STEPS = 300
"""A graph of more steps is not useful."""

_STATUSES = {
    "bad_argument": 400,
    "bad_text": 400,
    "approver_needed": 403,
    "already_decided": 409,
    "not_suspended": 409,
    "too_large": 413,
    "too_many_viewers": 503,
    "not_recorded": 503,
    "database_unusable": 503,
}


class Viewer(NamedTuple):
    """Who looks at the viewer's pages.

    Attributes:
        principal: The principal: what it may see, and whether it decides.
        by: The name recorded with its decisions.
    """

    principal: Principal
    by: str


class Api:
    """The routes under `/api`.

    Args:
        live: Notifies of changes.
        viewer_of: Tells who a request is from.
        can_rebuild: Whether sessions are rebuilt.
    """

    def __init__(self, live: Live, viewer_of: Callable[[Request], Viewer], *, can_rebuild: bool = True) -> None:
        self._can_rebuild = can_rebuild
        self._live = live
        self._viewer_of = viewer_of
        self._overviews: OrderedDict[tuple[str, bool, bool], Overview] = OrderedDict()

    def _overview(self, request: Request) -> Overview:
        """What the request's principal may see; the same object for a while, because it remembers what it has read."""
        principal = self._viewer_of(request).principal
        key = principal.name, principal.may_see_all, principal.may_approve
        found = self._overviews.pop(key, None) or Overview(self._live.database, principal)
        self._overviews[key] = found
        if len(self._overviews) > MAX_OVERVIEWS:
            self._overviews.popitem(last=False)
        return found

    def routes(self) -> list[Route]:
        """All routes."""
        one = "/api/executions/{id}"
        get = {
            "/api/executions": self.executions,
            one: self.execution,
            f"{one}/entries": self.entries,
            f"{one}/entries/{{sequence}}": self.entry,
            f"{one}/proofs": self.proofs,
            f"{one}/graph": self.graph,
            "/api/sessions": self.sessions,
            "/api/approvals": self.approvals,
            "/api/events": self.events,
            "/api/pools": self.pools,
        }
        routes = [Route(path, _answering(work), methods=["GET"]) for path, work in get.items()]
        return [*routes, Route("/api/approvals/{id}", _answering(self.decide), methods=["POST"])]

    async def executions(self, request: Request) -> Response:
        """A page of the list of executions."""
        asked = request.query_params
        query = asked.get("query", "")
        if len(query) > MAX_QUERY_CHARS:
            raise _bad(f"query: at most {MAX_QUERY_CHARS} characters")
        page = await self._overview(request).page(
            Asking(
                tuple(query.lower().split()),
                _among(asked.getlist("status"), frozenset(STATUSES), "status"),
                _among(asked.getlist("kind"), frozenset({"script", "program"}), "kind"),
                _number(asked.get("since"), "since"),
            ),
            _cursor(asked.get("before")),
            PAGE,
        )
        before = None if page.before is None else f"{page.before[0]!r}:{page.before[1]}"
        rows = [page_data.summary(row, counted) for row, counted in page.rows]
        return JSONResponse({"executions": rows, "before": before, "searched": page.searched})

    async def sessions(self, request: Request) -> Response:
        """The sessions, the one used last first."""
        listed = await self._overview(request).sessions(can_rebuild=self._can_rebuild)
        return JSONResponse({"sessions": [page_data.listed_session(each) for each in listed]})

    async def pools(self, request: Request) -> Response:
        """The warm pools of the bridges that use this state directory, for principals that may see all."""
        if not self._viewer_of(request).principal.may_see_all:
            return JSONResponse({"pools": []})
        found = await anyio.to_thread.run_sync(pool_reports, self._live.database.path.parent)
        return JSONResponse({"pools": [asdict(report) for report in found]})

    async def execution(self, request: Request) -> Response:
        """An execution without its timeline."""
        mine = self._overview(request)
        row = await mine.with_decisions(await mine.execution(request.path_params["id"]))
        counted = await execution_queries.counts(self._live.database, [row.id])
        place, before = Cell.of(row), []
        if place is not None:
            cells = [cell async for cell in chain(mine.store, row.principal, place.previous, MAX_CELLS)]
            before = [await mine.as_recorded(cell) for cell in cells]
        left = await mine.is_left_behind(row)
        entries, rows = await mine.entries(row), await mine.rows(row)
        return await _rendered(
            lambda: page_data.execution(row, entries, rows, counted[row.id], before, left_behind=left)
        )

    async def entries(self, request: Request) -> Response:
        """A page of an execution's timeline."""
        mine = self._overview(request)
        row = await mine.execution(request.path_params["id"])
        offset = _integer(request.query_params.get("offset", "0"), "offset")
        limit = min(_integer(request.query_params.get("limit", str(MAX_ROWS)), "limit"), MAX_ROWS)
        rows, status = await mine.rows(row), effective_status(row)
        return await _rendered(lambda: page_data.timeline_page(rows, offset=offset, limit=limit, status=status))

    async def entry(self, request: Request) -> Response:
        """The timeline row of an entry, uncut."""
        mine = self._overview(request)
        row = await mine.execution(request.path_params["id"])
        sequence = _integer(request.path_params["sequence"], "sequence")
        rows, status = await mine.rows(row), effective_status(row)

        def found() -> dict[str, Any]:
            page = page_data.timeline_page(rows, offset=0, limit=1, status=status, whole=sequence)
            if not page["rows"]:
                raise BridgeError("unknown_entry", "The execution has no such entry.")
            one: dict[str, Any] = page["rows"][0]
            return one

        return await _rendered(found)

    async def proofs(self, request: Request) -> Response:
        """The proofs that entries of an execution are in the log, which the page itself verifies."""
        mine = self._overview(request)
        row = await mine.execution(request.path_params["id"])
        sequences = [_integer(text, "sequence") for text in request.query_params.getlist("sequence")]
        if not 0 < len(sequences) <= MAX_ROWS:
            raise _bad(f"sequence: 1 to {MAX_ROWS} of them")
        return JSONResponse(page_data.proofs(await mine.evidence(row, sequences)))

    async def graph(self, request: Request) -> Response:
        """The program's graph with the path that was taken."""
        mine = self._overview(request)
        row = await mine.execution(request.path_params["id"])
        if row.kind != "program":
            raise BridgeError("unknown_program", "This execution is of no program.")
        try:
            program = programs.unbundle(row.bundle)
        except (ValueError, KeyError, TypeError):
            raise BridgeError("unknown_program", "The program of this execution can't be read any more.") from None
        if len(program.steps) > MAX_DRAWN_STEPS:
            raise BridgeError("too_large", f"A program of {len(program.steps)} steps is too large for a picture.")
        entries = await mine.entries(row)

        def drawn() -> str:
            done = progress(row, entries)
            return svg(draw(program), taken(program, done.steps, done.waiting, effective_status(row)))

        return Response(await anyio.to_thread.run_sync(drawn), media_type="image/svg+xml")

    async def approvals(self, request: Request) -> Response:
        """Open approvals, oldest first; then decided ones, latest first. With `count`, the number of open ones."""
        counted = "count" in request.query_params
        rows = await self._overview(request).questions(open_only=counted)
        waiting = [row for row in rows if row.status == "open"]
        if counted:
            return JSONResponse({"open": len(waiting)})
        decided = [row for row in reversed(rows) if row.status != "open"]
        viewer = self._viewer_of(request)
        told = [page_data.question(row, viewer.principal) for row in (*waiting, *decided[:PAGE])]
        may = viewer.principal.may_approve
        return JSONResponse({"approvals": told, "open": len(waiting), "by": viewer.by, "may_decide": may})

    async def decide(self, request: Request) -> Response:
        """Approve or deny, as `mcp-bridge approvals`."""
        viewer, mine = self._viewer_of(request), self._overview(request)
        execution, _, effect = request.path_params["id"].rpartition(".")
        body = await _body(request)
        approved, comment = body.get("approved"), body.get("comment")
        if not isinstance(approved, bool) or not isinstance(comment, str | None) or not body.keys() <= _DECISION:
            raise _bad("a decision is an object of approved, true or false, and comment, a text")
        asked = await mine.question(execution, _integer(effect, "id"))
        require_approver(viewer.principal)
        comment = (comment or "").strip() or None
        check_text(comment, "comment")
        if approved and not page_data.is_uncut(asked):
            raise BridgeError(
                "too_large",
                "The question is too large to be shown whole here, and isn't approved unseen.",
                hint="`mcp-bridge approvals show` has all of it.",
            )
        await decide(mine.store, asked, approved=approved, by=viewer.by, comment=comment)
        now = await mine.question(execution, asked.approval.effect)
        return JSONResponse(page_data.question(now, viewer.principal))

    async def events(self, _: Request) -> Response:
        """A stream of change notifications."""
        if self._live.is_full:
            raise BridgeError("too_many_viewers", "Too many viewers are open.")
        # nginx would collect the stream before it passes anything on.
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(self._live.events(), media_type="text/event-stream", headers=headers)


_DECISION = {"approved", "comment"}


def _answering(work: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Wrap an endpoint so that errors become responses."""

    async def answer(request: Request) -> Response:
        try:
            return await work(request)
        except BridgeError as exc:
            status = 404 if exc.code.startswith("unknown_") else _STATUSES.get(exc.code, 500)
            if status == 500:  # noqa: PLR2004
                logger.warning("%s: %s", request.url.path, exc)
            return JSONResponse({"error": {"code": exc.code, "message": str(exc)}}, status)
        except Exception:
            logger.exception("%s failed", request.url.path)
            error = {"code": "internal_error", "message": "The viewer met an internal error; its log has more."}
            return JSONResponse({"error": error}, 500)

    return answer


async def _rendered(facts: Callable[[], dict[str, Any]]) -> Response:
    """Facts as JSON, both made off the event loop: of a large execution they take long, and others use the loop."""
    return await anyio.to_thread.run_sync(lambda: JSONResponse(facts()))


async def _body(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise _bad("the body has to be application/json")
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise BridgeError("too_large", f"A body has at most {MAX_BODY_BYTES} bytes.")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise _bad("the body is no JSON") from None
    if not isinstance(found, dict):
        raise _bad("the body is no object")
    return found


def _among(values: list[str], known: frozenset[str], name: str) -> frozenset[str]:
    if not known.issuperset(values):
        raise _bad(f"{name}: one of {', '.join(sorted(known))}")
    return frozenset(values)


def _integer(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):  # noqa: PLR2004 - below 2^53
        raise _bad(f"{name}: a whole number")
    return int(text)


def _number(text: str | None, name: str) -> float | None:
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _bad(f"{name}: seconds since 1970")
    return number


def _cursor(text: str | None) -> tuple[float, str] | None:
    if text is None:
        return None
    began, colon, ident = text.partition(":")
    started = _number(began, "before")
    if started is None or not colon or len(ident) > MAX_QUERY_CHARS:
        raise _bad("before: what another page gave")
    return started, ident


def _bad(message: str) -> BridgeError:
    return BridgeError("bad_argument", f"{message[0].upper()}{message[1:]}.")
