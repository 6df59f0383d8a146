"""Every server's tools, running or not: listed live, from the cache, or by starting those never seen."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import anyio

from mcp_bridge import fair_share
from mcp_bridge.downstream.catalog.aliases import did_you_mean, nearest
from mcp_bridge.downstream.catalog.arguments import ArgumentCheck, ArgumentError
from mcp_bridge.downstream.catalog.search import Hit, SearchIndex
from mcp_bridge.downstream.catalog.store import ListingStore
from mcp_bridge.downstream.client.failures import first_line, refusal
from mcp_bridge.downstream.client.status import ServerStatus
from mcp_bridge.errors import BridgeError
from mcp_bridge.offload import is_large, on_thread, on_waiting_thread

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from mcp_bridge.downstream.catalog.tools import Listing, ToolInfo
    from mcp_bridge.downstream.client.fleet import Fleet
    from mcp_bridge.downstream.client.supervisor import DownstreamServer

LOCAL = "local"
"""The name under which the tools that run in the host are listed."""

_SMALL_FILE_BYTES = 256 << 10

# Fewer are indexed and kept at once, and more on a thread.
_FEW_TOOLS = 200

# What a search waits for servers whose tools nobody has listed yet; they go on starting behind it.
LISTING_WAIT = 10.0

# Servers that searches start at the same time.
_STARTS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found, and which servers it could not look into, in plain words."""

    hits: list[Hit]
    notices: list[str]


class _Look:
    """One attempt to have a server list its tools; it goes on behind the searches that began it or wait for it."""

    def __init__(self) -> None:
        self.done = anyio.Event()


class Catalog:
    """The tools of a fleet."""

    def __init__(self, fleet: Fleet, state_dir: Path | None = None) -> None:
        """Look over a fleet's servers.

        Args:
            fleet: The servers.
            state_dir: Listings are kept in its directory `catalog`; None keeps nothing.
        """
        self._fleet = fleet
        self._local: tuple[ToolInfo, ...] = ()
        self._store = ListingStore(state_dir / "catalog") if state_dir else None
        self._tools: dict[str, tuple[ToolInfo, ...]] = {}
        self._looked_up: set[str] = set()
        self._index: SearchIndex | None = None
        self._indexing = anyio.Lock()
        self._saving = anyio.Lock()
        self._looks: dict[str, _Look] = {}
        self._places = anyio.Semaphore(_STARTS_AT_ONCE)
        # Servers that a search has waited for since they last listed their tools; none is waited for twice.
        self._tried: set[str] = set()
        self._ahead: set[str] = set()
        self._reasons: dict[str, str] = {}
        fleet.add_listener(self._on_listing)

    def add_local(self, tools: tuple[ToolInfo, ...]) -> None:
        """List tools that run in the host, as the server `local`, which is in no fleet."""
        self._local = tools
        if tools:
            self._tools[LOCAL] = tools
            self._index = None

    def servers(self) -> list[ServerStatus]:
        """Every configured server; the tool count comes from the cache where it doesn't run."""
        out = []
        for status in self._fleet.statuses():
            known = self._known(self._fleet.servers[status.name])
            count = status.tool_count if status.tool_count is not None else (None if known is None else len(known))
            out.append(replace(status, tool_count=count))
        if self._local:
            out.append(ServerStatus(LOCAL, LOCAL, "ready", len(self._local), None, None, None, 1, "[tools]", "config"))
        return out

    def start_ahead(self, names: Iterable[str]) -> None:
        """Have servers started behind the caller, which will use them soon: side by side, and a few at once."""
        for name in names:
            server = self._fleet.servers.get(name)
            if server is None or server.running or name in self._ahead or refusal(server.spec) is not None:
                continue
            self._ahead.add(name)
            self._fleet.start_soon(self._start_ahead, server)

    async def start_all(self) -> None:
        """Start every server that can be, a few at once; `servers` then says of each whether it works."""
        async with anyio.create_task_group() as tasks:
            for server in self._fleet.servers.values():
                if refusal(server.spec) is None:
                    tasks.start_soon(self._start_ahead, server)

    async def _start_ahead(self, server: DownstreamServer) -> None:
        try:
            async with self._places:
                await server.start_ahead()
        finally:
            self._ahead.discard(server.spec.name)

    async def tools(self, server: str) -> tuple[ToolInfo, ...]:
        """A server's tools: live while it runs, else as cached, else it is started.

        Raises:
            BridgeError: `unknown_server`; or, when it must be started, `server_start_failed` or `server_unavailable`.
        """
        if server == LOCAL and self._local:
            return self._local
        found = self._fleet.server(server)
        if found.running:
            return await found.tools()
        await self._load(found)
        known = self._known(found)
        return await found.tools() if known is None else known

    async def tool(self, server: str, name: str) -> ToolInfo:
        """One tool, by its name or alias.

        Raises:
            BridgeError: `unknown_server`, `unknown_tool`, or as `tools`.
        """
        if server == LOCAL and self._local:
            return _named(self._local, name) or _unknown_local(self._local, name)
        found = self._fleet.server(server)
        await self._load(found)
        if not found.running and (tool := _named(self._known(found) or (), name)):
            return tool
        # The cache may be old: a name it doesn't have is for the server itself to deny.
        return await found.find_tool(name)

    async def faults(self, tool: ToolInfo, arguments: dict[str, Any]) -> list[str]:
        """What is wrong with some of the arguments of a call that isn't made; none where they can't be checked."""
        if tool.server == LOCAL:
            check = ArgumentCheck(tool.input_schema)
        else:
            check = self._fleet.server(tool.server).argument_check(tool)
        try:
            return await check.faults_of_part(arguments)
        except ArgumentError:
            return []

    def listed_tool(self, server: str, name: str) -> ToolInfo | None:
        """One tool, by its name or alias, as it was last listed; None if it wasn't. No server is started for it."""
        if server == LOCAL and self._local:
            return _named(self._local, name)
        found = self._fleet.servers.get(server)
        return None if found is None else _named(self._known(found) or (), name)

    async def search(
        self,
        query: str,
        limit: int = 10,
        *,
        strict: bool = False,
        servers: Collection[str] | None = None,
        wait: float = LISTING_WAIT,
    ) -> SearchResult:
        """Search the tools of all servers, running or not.

        Args:
            query: Plain words; see `SearchIndex.search`.
            limit: At most so many hits.
            strict: Only tools that have every word.
            servers: Only those of these configured names; others are neither started nor mentioned.
            wait: Seconds to wait for servers that were never listed, and that no search has waited for before.

        Returns:
            The hits, and a notice for each server that should have been looked into and could not be. One that can't
            be started as it is configured is passed over in silence.
        """
        chosen = [server for name, server in self._fleet.servers.items() if servers is None or name in servers]
        chosen = [server for server in chosen if refusal(server.spec) is None]
        for server in chosen:
            await self._load(server)
        notices = await self._list_missing(chosen, wait)
        names = {server.spec.name for server in chosen}
        if servers is None or LOCAL in servers:
            names.add(LOCAL)
        index = await self._ready_index()
        search = functools.partial(index.search, strict=strict, allowed=lambda tool: tool.server in names)
        hits = await on_thread(search, query, limit) if len(index) > _FEW_TOOLS else search(query, limit)
        return SearchResult(hits, [*notices, *self._fleet.missing])

    async def _list_missing(self, servers: list[DownstreamServer], wait: float) -> list[str]:
        missing = [server for server in servers if server.stale or self._known(server) is None]
        looks = {server.spec.name: self._look(server) for server in missing}
        untried = looks.keys() - self._tried
        with anyio.move_on_after(wait):
            for name in untried:
                await looks[name].done.wait()
        unlisted = sorted(server.spec.name for server in missing if self._known(server) is None)
        unchanged = {server.spec.name for server in missing if server.stale}
        self._tried |= untried & unchanged.union(unlisted)
        notice = "server {!r} was not searched: it has not listed its tools yet."
        return [self._reasons.get(name, notice.format(name)) for name in unlisted]

    def _look(self, server: DownstreamServer) -> _Look:
        """Have a server list its tools, behind the caller; once, however many ask."""
        name = server.spec.name
        look = self._looks.get(name)
        if look is None:
            look = _Look()
            try:
                self._fleet.start_soon(self._list, server, look)
            except BridgeError as error:
                self._reasons[name] = f"not searched: {first_line(error.message)}"
                look.done.set()
            else:
                self._looks[name] = look
        return look

    async def _list(self, server: DownstreamServer, look: _Look) -> None:
        name = server.spec.name
        try:
            async with self._places:
                await server.tools()
        except BridgeError as error:
            # That it isn't tried again yet says less than why it failed.
            if error.details.get("reason") != "backoff" or name not in self._reasons:
                self._reasons[name] = f"not searched: {first_line(error.message)}"
        finally:
            del self._looks[name]
            look.done.set()

    async def _load(self, server: DownstreamServer) -> None:
        """Read a cached listing on a thread, where it is large."""
        name, store = server.spec.name, self._store
        if name in self._tools or name in self._looked_up or store is None or server.spec.problem is not None:
            return
        key = server.spec.fingerprint()
        if store.size(key) > _SMALL_FILE_BYTES:
            cached = await on_thread(store.load, key, name, server.alias)
            if name not in self._tools and name not in self._looked_up:
                self._looked_up.add(name)
                if cached is not None:
                    self._tools[name] = cached
                    self._index = None

    def _known(self, server: DownstreamServer) -> tuple[ToolInfo, ...] | None:
        name = server.spec.name
        if name not in self._tools and name not in self._looked_up:
            if self._store is not None and self._store.size(server.spec.fingerprint()) > _SMALL_FILE_BYTES:
                # `_load` reads it, for whoever wants the tools and not their number alone.
                return None
            self._looked_up.add(name)
            if self._store is not None and server.spec.problem is None:
                cached = self._store.load(server.spec.fingerprint(), name, server.alias)
                if cached is not None:
                    self._tools[name] = cached
                    self._index = None
        return self._tools.get(name)

    def _on_listing(self, server: DownstreamServer, listing: Listing) -> None:
        name = server.spec.name
        self._tried.discard(name)
        self._reasons.pop(name, None)
        if self._tools.get(name) == listing.tools:
            return
        self._tools[name] = listing.tools
        self._index = None
        if self._store is not None:
            if len(listing.tools) < _FEW_TOOLS and not any(is_large(tool.input_schema) for tool in listing.tools):
                self._store.save(server.spec.fingerprint(), listing.tools)
            else:
                self._fleet.start_soon(self._save, self._store, server, listing)

    async def _save(self, store: ListingStore, server: DownstreamServer, listing: Listing) -> None:
        async with self._saving:
            if self._tools.get(server.spec.name) is listing.tools:
                await on_waiting_thread(store.save, server.spec.fingerprint(), listing.tools)

    async def _ready_index(self) -> SearchIndex:
        # Before the lock: every search waits for it.
        await fair_share.turn()
        async with self._indexing:
            index = self._index
            if index is None:
                tools = [tool for tools in self._tools.values() for tool in tools]
                listed = dict(self._tools)
                with fair_share.billed(fair_share.current.get()):
                    index = SearchIndex(tools) if len(tools) < _FEW_TOOLS else await on_thread(SearchIndex, tools)
                if listed.keys() == self._tools.keys() and all(listed[name] is self._tools[name] for name in listed):
                    # Else a server has listed its tools meanwhile: the next search sees them.
                    self._index = index
            return index


def _named(tools: tuple[ToolInfo, ...], name: str) -> ToolInfo | None:
    """By name, or else by alias."""
    for attribute in ("name", "alias"):
        for tool in tools:
            if getattr(tool, attribute) == name:
                return tool
    return None


def _unknown_local(tools: tuple[ToolInfo, ...], name: str) -> NoReturn:
    close = nearest(name, [tool.name for tool in tools])
    raise BridgeError(
        "unknown_tool",
        f"server {LOCAL!r} has no tool {name[:100]!r}.",
        hint=did_you_mean(close, [tool.name for tool in tools]),
        server=LOCAL,
        tool=name[:100],
        nearest=close,
    )
