"""Reads a service's document, and those that it refers to, and has them compiled.

A document says what is called, and not where credentials go: without a `base_url` in the configuration, the addresses
that it names count only if they can be no one else's idea (`base_url_of`). What it refers to has its own origin, or its
own folder.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread
from pydantic import TypeAdapter

from mcp_bridge import large_json
from mcp_bridge.downstream.configuration.remote_entries import shown_origin, url_problem
from mcp_bridge.downstream.http.http_client import Attempt, RequestFailedError, failure_of, is_encoded, opened, refusal
from mcp_bridge.downstream.openapi.base_url import base_url_of, origin_of
from mcp_bridge.downstream.openapi.compiled_service import OperationPlan, Order, Outcome
from mcp_bridge.downstream.openapi.document_errors import UnusableDocumentError
from mcp_bridge.errors import BridgeError
from mcp_bridge.offload import on_thread
from mcp_bridge.workspace.folder_content import read_regular, why

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2

    from mcp_bridge.downstream.configuration.spec import OpenApiDocument, ServerSpec
    from mcp_bridge.downstream.openapi.compiled_service import Service

MAX_DOCUMENT_BYTES = 32 << 20
"""The most that a document has, together with all that it refers to."""

MAX_DOCUMENTS = 100

_MAX_ROUNDS = 10
"""How deep documents may refer to further documents."""

MAX_OUTCOME_BYTES = 64 << 20

_LOADER = """
import json, sys
sys.path[:] = json.loads(sys.stdin.buffer.readline())
from mcp_bridge.downstream.openapi.compiler import main
main()
"""

_order: TypeAdapter[Order] = TypeAdapter(Order)
_outcome: TypeAdapter[Outcome] = TypeAdapter(Outcome)
_plan: TypeAdapter[OperationPlan] = TypeAdapter(OperationPlan)
_decoder = json.JSONDecoder()


class Found(NamedTuple):
    """A service and the address that its operations are called at."""

    service: Service
    base_url: str


class DocumentReader:
    """Reads the document of one server.

    Args:
        spec: The server, with variables expanded.
        client: The client of its connection, whose requests carry the server's credentials; None if the service's
            address isn't known before its document.
        public: A client without credentials; None for a document in a file.
        hide: Hides the service's credentials in a text.
    """

    def __init__(
        self,
        spec: ServerSpec,
        client: httpx2.AsyncClient | None,
        public: httpx2.AsyncClient | None,
        hide: Callable[[str], str],
    ) -> None:
        assert spec.openapi is not None  # of this type
        self._spec = spec
        self._document: OpenApiDocument = spec.openapi
        self._client = client
        self._public = public
        self._hide = hide
        self._left = 0

    async def read(self) -> Found:
        """The service, as its document describes it now.

        Raises:
            UnusableDocumentError: The document can't be read, or used.
            BridgeError: From the authentication.
        """
        self._left = MAX_DOCUMENT_BYTES
        main = self._document.location if self._document.is_remote else Path(self._document.location).as_uri()
        texts = {main: await self._text(main, main)}
        refused: dict[str, str] = {}
        for _ in range(_MAX_ROUNDS):
            order = Order(
                server=self._spec.name,
                main=main,
                documents=texts,
                refused=refused,
                operations=self._document.operations,
                own_headers=frozenset(name.lower() for name in self._spec.headers),
                base_url=self._spec.url,
            )
            outcome = await compile_order(order)
            if outcome.service is not None:
                return Found(outcome.service, base_url_of(self._spec, outcome.service))
            if outcome.problem is not None:
                raise UnusableDocumentError(f"{self._name} {outcome.problem}.", "Mend the document.")
            for uri in outcome.missing:
                if (refusal_ := self._why_not(uri, main)) is None and len(texts) >= MAX_DOCUMENTS:
                    refusal_ = f"is beyond the {MAX_DOCUMENTS} documents that are read"
                if refusal_ is not None:
                    refused[uri] = refusal_
                    continue
                try:
                    texts[uri] = await self._text(uri, main)
                except UnusableDocumentError as error:
                    refused[uri] = f"can't be read: {error.reason}"
        raise UnusableDocumentError(f"{self._name} refers to documents more than {_MAX_ROUNDS} levels deep.")

    @property
    def _name(self) -> str:
        """The document, for scripts: the name of its file, or its origin."""
        if self._document.is_remote:
            return f"the document at {shown_origin(self._document.location)}"
        return Path(self._document.location).name

    def _why_not(self, uri: str, main: str) -> str | None:
        """Why a document that another refers to isn't read, or None."""
        if self._document.is_remote:
            same = url_problem(uri) is None and origin_of(uri) == origin_of(main)
            return None if same else "is at another address than the document, and isn't read"
        if not uri.startswith("file:///"):
            return "is no file in the document's folder, and isn't read"
        if self._spec.comes_with_folder:
            return "is another file: the document of a folder's entry has to be one file, which is trusted with it"
        try:
            inside = _path(uri).resolve().is_relative_to(_path(main).resolve().parent)
        except (OSError, RuntimeError, ValueError):
            inside = False
        return None if inside else "is outside of the document's folder, and isn't read"

    async def _text(self, uri: str, main: str) -> str:
        """The text of a document.

        Raises:
            UnusableDocumentError: It can't be read.
        """
        name = self._name if uri == main else f"the document {uri.rpartition('/')[2][:80]!r}"
        if self._document.is_remote:
            data = await self._fetched(uri, name)
        else:
            data = await anyio.to_thread.run_sync(self._file, _path(uri), name)
        self._left -= len(data)
        if self._left < 0:
            raise _too_large(name)
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise UnusableDocumentError(f"{name} is not UTF-8.") from None

    def _file(self, path: Path, name: str) -> bytes:
        try:
            data = read_regular(path, max(0, self._left))
        except OSError as error:
            reason = f"{name} can't be read: {why(error)}."
            raise UnusableDocumentError(reason, "Check openapi.", {"file": str(path)}) from None
        if self._spec.comes_with_folder and self._spec.scripts.get(str(path)) != hashlib.sha256(data).hexdigest():
            raise UnusableDocumentError(f"{name} isn't what was trusted any more.", "`mcp-bridge trust` asks again.")
        return data

    async def _fetched(self, url: str, name: str) -> bytes:
        # The operator's credentials are the service's. A document elsewhere is public, or has no use for them.
        ours = self._spec.url is not None and origin_of(url) == origin_of(self._spec.url)
        client = self._client if ours else self._public
        assert client is not None  # of a remote document
        attempt = Attempt()
        headers = {"accept": "application/json, application/yaml;q=0.9, */*;q=0.5"}
        data = bytearray()
        try:
            async with opened(
                client, "GET", url, headers=headers, attempt=attempt, hide=self._hide, setting="openapi"
            ) as response:
                if not response.is_success:
                    raise RequestFailedError(refusal(response, "", in_session=False))
                if is_encoded(response):
                    raise UnusableDocumentError(f"{name} is sent encoded, which wasn't asked for.")
                async for chunk in response.aiter_raw():
                    data += chunk
                    if len(data) > self._left:
                        raise _too_large(name)
        except RequestFailedError as error:
            reason = f"{name} can't be had: the server {error.failure.reason}."
            raise UnusableDocumentError(reason, "Check openapi.") from None
        except (BridgeError, UnusableDocumentError):
            raise
        except Exception as error:  # noqa: BLE001 - the library's, and of the authentication
            reason = f"{name} can't be had: the server {failure_of(error, attempt).reason}."
            raise UnusableDocumentError(reason, "Check openapi.") from None
        return bytes(data)


def _too_large(name: str) -> UnusableDocumentError:
    limit = MAX_DOCUMENT_BYTES >> 20
    return UnusableDocumentError(
        f"{name} is larger than the {limit} MiB that a document may have, with all that it refers to.",
        "Have the service's authors split it, or keep what is wanted of it in a file.",
    )


def _path(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


async def compile_order(order: Order) -> Outcome:
    """Have documents compiled in a process of its own. Ended if cancelled.

    Raises:
        UnusableDocumentError: That takes too much memory or time.
    """
    asked = json.dumps(sys.path).encode() + b"\n" + await anyio.to_thread.run_sync(_order.dump_json, order)
    # Isolated: the folder that it is started in, and its environment, are nobody's word for what is imported.
    command = [sys.executable, "-I", "-c", _LOADER]
    process = await anyio.open_process(command, stderr=subprocess.DEVNULL, start_new_session=True)
    assert process.stdin is not None  # with pipes, by default
    assert process.stdout is not None  # likewise
    told = bytearray()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_sent, process, asked)
            async for chunk in process.stdout:
                told += chunk
                if len(told) > MAX_OUTCOME_BYTES:
                    break
        await process.wait()
    except (BrokenPipeError, anyio.BrokenResourceError):
        pass
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()
    try:
        return await on_thread(_decoded, bytes(told))
    except (ValueError, RecursionError):
        raise UnusableDocumentError(
            "its document can't be compiled: that takes more memory or time than a document may, or the process ended.",
            "Name the operations that are wanted, or keep what is wanted of the document in a file of its own.",
        ) from None


def _decoded(told: bytes) -> Outcome:
    """What the compiler has said, operation by operation: the library lets nobody else run while it decodes one value.

    Raises:
        ValueError: It isn't whole.
    """
    raw = large_json.loads(told, _decoder)
    service = raw.get("service") or {}
    tools, plans = service.pop("tools", []), service.pop("operations", {})
    outcome = _outcome.validate_python(raw)
    if outcome.service is None:
        return outcome
    operations = {name: _plan.validate_python(plan) for name, plan in plans.items()}
    return replace(outcome, service=replace(outcome.service, tools=tools, operations=operations))


async def _sent(process: Any, data: bytes) -> None:
    try:
        await process.stdin.send(data)
        await process.stdin.aclose()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        # It has ended; what it has told says why.
        return
