"""The tools of every server: from the running server, from the cache, or by starting a server never listed before."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from mcp_bridge import fair_share
from mcp_bridge.downstream.catalog.argument_check import ArgumentCheck, ArgumentError
from mcp_bridge.downstream.catalog.listing_cache import ListingStore
from mcp_bridge.downstream.catalog.resource_tools import ResourceTool
from mcp_bridge.downstream.client.server_errors import first_line
from mcp_bridge.downstream.client.server_status import ServerStatus
from mcp_bridge.downstream.search.index import InvalidIndexError, InvertedIndex, tools_key
from mcp_bridge.downstream.search.index_cache import IndexStore
from mcp_bridge.downstream.search.meaning_search import MeaningSearch
from mcp_bridge.downstream.search.search import Hit, SearchIndex, ordered
from mcp_bridge.downstream.search.vectors import FUSION_CANDIDATES
from mcp_bridge.downstream.search.words import split
from mcp_bridge.errors import BridgeError
from mcp_bridge.near_names import did_you_mean, is_misspelt
from mcp_bridge.offload import is_large, on_blocking_thread, on_thread

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from mcp_bridge.downstream.catalog.bound_tool import BoundTool
    from mcp_bridge.downstream.catalog.tools import Listing, ToolInfo
    from mcp_bridge.downstream.client.fleet import Fleet
    from mcp_bridge.downstream.client.server_calls import DownstreamServer
    from mcp_bridge.downstream.client.supervised_server import SupervisedServer
    from mcp_bridge.downstream.search.vectors import Embedder

LOCAL = "local"
"""The server name under which the host's own tools are listed."""

_SMALL_FILE_BYTES = 256 << 10

# For a wrong name: how many characters of it are looked at, and how many tools are named.
_NAME_CHARS, _MEANT = 200, 3

# Up to so many tools are saved on the event loop, and more on a thread.
_FEW_TOOLS = 200

# How long a search waits for servers that were never listed. They continue to start in the background.
LISTING_WAIT = 10.0


def starts_at_once(processors: int | None) -> int:
    """How many servers are started ahead, or for searches, at the same time.

    On few processors, many would compete until the start_timeout of each is over.

    Args:
        processors: How many the machine has; None if that isn't known.
    """
    return min(8, 2 * (processors or 1))


_STARTS_AT_ONCE = starts_at_once(os.cpu_count())


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The hits of a search, and a plain-language notice for each server that could not be searched."""

    hits: list[Hit]
    notices: list[str]


class LocalTools(Protocol):
    """The tools that run in the host."""

    def listing(self) -> Listing:
        """The tools, as a server lists them."""

    def bind(self, name: str) -> BoundTool:
        """The tool of this name or alias.

        Raises:
            BridgeError: `unknown_tool`.
        """


class _ListingAttempt:
    """A background attempt to list a server's tools, shared by the searches that wait for it."""

    def __init__(self) -> None:
        self.done = anyio.Event()


class Catalog:
    """The tools of a fleet."""

    def __init__(self, fleet: Fleet, state_dir: Path | None = None, embedder: Embedder | None = None) -> None:
        """Open the catalog of a fleet.

        Args:
            fleet: The servers.
            state_dir: Its subdirectory `catalog` caches listings and the search index; None disables both caches.
            embedder: The model that tells what queries and tools mean; None searches by words alone.
        """
        self._fleet = fleet
        self._local: LocalTools | None = None
        self._store = ListingStore(state_dir / "catalog") if state_dir else None
        self._indexes = IndexStore(state_dir / "catalog") if state_dir else None
        vectors = IndexStore(state_dir / "catalog", "vectors") if state_dir else None
        self._meaning = None if embedder is None else MeaningSearch(embedder, vectors, fleet.start_soon)
        self._tools: dict[str, tuple[ToolInfo, ...]] = {}
        self._changes: dict[str, int] = {}
        self._looked_up: set[str] = set()
        self._index: SearchIndex | None = None
        self._indexing = anyio.Lock()
        self._saving = anyio.Lock()
        self._looks: dict[str, _ListingAttempt] = {}
        self._places = anyio.Semaphore(_STARTS_AT_ONCE)
        # Servers that a search has waited for since their last listing; no search waits for them again.
        self._tried: set[str] = set()
        self._ahead: set[str] = set()
        self._reasons: dict[str, str] = {}
        fleet.add_listener(self._on_listing)

    def add_local(self, local: LocalTools) -> None:
        """List tools that run in the host as the server `local`, which is not in the fleet."""
        if tools := local.listing().tools:
            self._local = local
            self._tools[LOCAL] = tools
            self._index = None

    def servers(self) -> list[ServerStatus]:
        """The status of every configured server; a server that isn't running has the cached tool count."""
        out = []
        for status in self._fleet.statuses():
            known = self._cached_tools(self._fleet.servers[status.name])
            count = status.tool_count if status.tool_count is not None else (None if known is None else len(known))
            out.append(replace(status, tool_count=count))
        if self._local is not None:
            count = len(self._tools[LOCAL])
            out.append(ServerStatus(LOCAL, LOCAL, "ready", count, None, None, None, 1, "[tools]", "config"))
        return out

    def start_ahead(self, names: Iterable[str]) -> None:
        """Start servers in the background, a few at a time, because they will be used soon."""
        for name in names:
            server = self._fleet.servers.get(name)
            if server is None or server.running or name in self._ahead or server.configuration_error() is not None:
                continue
            self._ahead.add(name)
            self._fleet.start_soon(self._start_ahead, server)

    async def start_all(self) -> None:
        """Start every server that can be started, a few at a time; `servers` then tells which of them work."""
        async with anyio.create_task_group() as tasks:
            for server in self._fleet.servers.values():
                if server.configuration_error() is None:
                    tasks.start_soon(self._start_ahead, server)

    async def _start_ahead(self, server: DownstreamServer) -> None:
        try:
            async with self._places:
                await server.start_ahead()
        finally:
            self._ahead.discard(server.spec.name)

    async def tools(self, server: str) -> tuple[ToolInfo, ...]:
        """A server's tools: from the running server, else from the cache, else by starting it.

        Raises:
            BridgeError: `unknown_server`; or, when it must be started, `server_start_failed` or `server_unavailable`.
        """
        if server == LOCAL and self._local is not None:
            return self._tools[LOCAL]
        downstream = self._fleet.server(server)
        if downstream.running:
            return await downstream.tools()
        await self._load(downstream)
        known = self._cached_tools(downstream)
        return await downstream.tools() if known is None else known

    def mark(self, server: str) -> int:
        """A mark of a server's tools as they are known now: it is another one once the server lists other tools."""
        downstream = self._fleet.servers.get(server)
        is_stale = downstream is not None and downstream.stale
        return 2 * self._changes.get(server, 0) + is_stale

    async def tool(self, server: str, name: str) -> ToolInfo:
        """One tool, by its name or alias.

        Raises:
            BridgeError: `unknown_server`, `unknown_tool`, or as `tools`.
        """
        return (await self.bind(server, name)).info

    async def bind(self, server: str, name: str) -> BoundTool:
        """One tool, by its name or alias, to be called.

        Raises:
            BridgeError: As `tool`.
        """
        try:
            return await self._bind(server, name)
        except BridgeError as exc:
            if exc.code == "unknown_tool":
                await self._add_meant(exc, server, name)
            raise

    async def _add_meant(self, error: BridgeError, server: str, name: str) -> None:
        """Name the tools that the words of a name find before those that are spelled like it, unless it is misspelt."""
        spelled: list[str] = error.details.get("nearest") or []
        if spelled and is_misspelt(name, spelled[0]):
            return
        # The words that all of them have say nothing.
        said = {*split(server), "server", "tool"}
        words = [word for word in split(name[:_NAME_CHARS]) if word not in said]
        if not words:
            return
        found = await self.search(" ".join(words), _MEANT, servers=[server], wait=0)
        close = list(dict.fromkeys([*(hit.tool.name for hit in found.hits if hit.score > 0), *spelled]))[:_MEANT]
        if close:
            error.hint, error.details["nearest"] = did_you_mean(close, close), close

    async def _bind(self, server: str, name: str) -> BoundTool:
        if server == LOCAL and self._local is not None:
            return self._local.bind(name)
        downstream = self._fleet.server(server)
        await self._load(downstream)
        if not downstream.running and (tool := _named(self._cached_tools(downstream) or (), name)):
            return downstream.bound(tool)
        # The cache may be outdated: only the server itself can tell that it has no such tool.
        return downstream.bound(await downstream.find_tool(name))

    async def faults(self, tool: ToolInfo, arguments: dict[str, Any]) -> list[str]:
        """The faults of some of a call's arguments; none if the arguments can't be checked. No call is made."""
        if tool.server == LOCAL:
            check = ArgumentCheck(tool.input_schema)
        else:
            check = self._fleet.server(tool.server).argument_check(tool)
        try:
            return await check.faults_of_part(arguments)
        except ArgumentError:
            return []

    def listed_tool(self, server: str, name: str) -> ToolInfo | None:
        """One tool by name or alias from the last listing; None if it isn't listed. Starts no server."""
        if server == LOCAL and self._local is not None:
            return _named(self._tools[LOCAL], name)
        downstream = self._fleet.servers.get(server)
        return None if downstream is None else _named(self._cached_tools(downstream) or (), name)

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
            query: Words; see `SearchIndex.search`.
            limit: The maximum number of hits.
            strict: Whether a tool must match every word.
            servers: Configured names to restrict the search to; other servers are neither started nor mentioned.
            wait: Seconds to wait for servers that were never listed and that no search has waited for.

        Returns:
            The hits, and a notice for each server that should have been searched and could not be. Servers that
            can't be started as configured get no notice.
        """
        chosen = [server for name, server in self._fleet.servers.items() if servers is None or name in servers]
        chosen = [server for server in chosen if server.configuration_error() is None]
        for server in chosen:
            await self._load(server)
        notices = await self._list_missing(chosen, wait)
        names = {server.spec.name for server in chosen}
        if servers is None or LOCAL in servers:
            names.add(LOCAL)
        index = await self._ready_index()
        by_meaning = self._meaning if not strict and query.strip() else None
        search = functools.partial(index.search, strict=strict, allowed=lambda tool: tool.server in names)
        hits = await on_thread(search, query, limit if by_meaning is None else FUSION_CANDIDATES)
        if by_meaning is not None:
            near, notice = await by_meaning.ranking(
                query, index.tools, lambda number: index.tools[number].server in names
            )
            notices += [notice] if notice is not None else []
            hits = index.fused(hits, near)[:limit]
        return SearchResult(hits, [*notices, *self._fleet.missing])

    async def _list_missing(self, servers: list[DownstreamServer], wait: float) -> list[str]:
        missing = [server for server in servers if server.stale or self._cached_tools(server) is None]
        looks = {server.spec.name: self._start_listing(server) for server in missing}
        untried = looks.keys() - self._tried
        with anyio.move_on_after(wait):
            for name in untried:
                await looks[name].done.wait()
        unlisted = sorted(server.spec.name for server in missing if self._cached_tools(server) is None)
        unchanged = {server.spec.name for server in missing if server.stale}
        self._tried |= untried & unchanged.union(unlisted)
        notice = "server {!r} was not searched: it has not listed its tools yet."
        return [self._reasons.get(name, notice.format(name)) for name in unlisted]

    def _start_listing(self, server: DownstreamServer) -> _ListingAttempt:
        """Begin to list a server's tools in the background, or join an attempt under way."""
        name = server.spec.name
        look = self._looks.get(name)
        if look is None:
            look = _ListingAttempt()
            try:
                self._fleet.start_soon(self._list, server, look)
            except BridgeError as error:
                self._reasons[name] = f"not searched: {first_line(error.message)}"
                look.done.set()
            else:
                self._looks[name] = look
        return look

    async def _list(self, server: DownstreamServer, look: _ListingAttempt) -> None:
        name = server.spec.name
        try:
            async with self._places:
                await server.tools()
        except BridgeError as error:
            # The backoff error says less than the failure that caused it.
            if error.details.get("reason") != "backoff" or name not in self._reasons:
                self._reasons[name] = f"not searched: {first_line(error.message)}"
        finally:
            del self._looks[name]
            look.done.set()

    async def _load(self, server: DownstreamServer) -> None:
        """Read a large cached listing on a thread."""
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

    def _cached_tools(self, server: DownstreamServer) -> tuple[ToolInfo, ...] | None:
        name = server.spec.name
        if name not in self._tools and name not in self._looked_up:
            if self._store is not None and self._store.size(server.spec.fingerprint()) > _SMALL_FILE_BYTES:
                # `_load` reads it when the tools are needed, and not their number alone.
                return None
            self._looked_up.add(name)
            if self._store is not None and server.spec.problem is None:
                cached = self._store.load(server.spec.fingerprint(), name, server.alias)
                if cached is not None:
                    self._tools[name] = cached
                    self._index = None
        return self._tools.get(name)

    def _on_listing(self, server: SupervisedServer, listing: Listing) -> None:
        name = server.spec.name
        self._tried.discard(name)
        self._reasons.pop(name, None)
        if self._tools.get(name) == listing.tools:
            return
        self._tools[name] = listing.tools
        self._changes[name] = self._changes.get(name, 0) + 1
        self._index = None
        if self._store is not None:
            if len(listing.tools) < _FEW_TOOLS and not any(is_large(tool.input_schema) for tool in listing.tools):
                self._store.save(server.spec.fingerprint(), listing.tools)
            else:
                self._fleet.start_soon(self._save, self._store, server, listing)

    async def _save(self, store: ListingStore, server: SupervisedServer, listing: Listing) -> None:
        async with self._saving:
            if self._tools.get(server.spec.name) is listing.tools:
                await on_blocking_thread(store.save, server.spec.fingerprint(), listing.tools)

    async def _ready_index(self) -> SearchIndex:
        # Outside the lock, which every search waits for.
        await fair_share.turn()
        async with self._indexing:
            index = self._index
            if index is None:
                # Every other server has tools for its resources: they would take the places of others.
                found = (tool for tools in self._tools.values() for tool in tools)
                tools = [tool for tool in found if not isinstance(tool, ResourceTool)]
                listed = dict(self._tools)
                with fair_share.billed(fair_share.current.get()):
                    index = await self._made_index(tools)
                if listed.keys() == self._tools.keys() and all(listed[name] is self._tools[name] for name in listed):
                    # Otherwise a server has listed its tools meanwhile; the next search rebuilds the index.
                    self._index = index
            return index

    async def _made_index(self, tools: list[ToolInfo]) -> SearchIndex:
        """The index of tools: the one that was kept, or a new one, which is kept."""
        store = self._indexes
        if store is None:
            return await on_thread(SearchIndex, tools)
        key = await on_thread(tools_key, ordered(tools))
        kept = await on_blocking_thread(store.load, key)
        if kept is not None:
            try:
                return await on_thread(_decoded_index, tools, kept, key)
            except InvalidIndexError:
                await on_blocking_thread(store.discard, key)
        index = await on_thread(SearchIndex, tools)
        data = await on_thread(index.inverted.to_bytes, key)
        await on_blocking_thread(store.save, key, data)
        return index


def _decoded_index(tools: list[ToolInfo], data: bytes, key: str) -> SearchIndex:
    """An index from what was kept of it.

    Raises:
        InvalidIndexError: As `InvertedIndex.from_bytes`.
    """
    return SearchIndex(tools, InvertedIndex.from_bytes(data, key))


def _named(tools: tuple[ToolInfo, ...], name: str) -> ToolInfo | None:
    """The tool with this name, or else with this alias."""
    for attribute in ("name", "alias"):
        for tool in tools:
            if getattr(tool, attribute) == name:
                return tool
    return None
