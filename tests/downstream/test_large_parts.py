"""Large parts of messages go past the SDK, and arrive as small ones do."""

import json
from contextlib import contextmanager

import pytest
from downstream_calls import call_tool
from mcp_types import CallToolResult, ListToolsResult
from mcp_types.methods import validate_server_result
from pydantic import ValidationError
from servers.specs import faulty

from mcp_bridge import fair_share
from mcp_bridge.downstream.catalog.listing_limits import BoundedListing
from mcp_bridge.downstream.catalog.tool_results import convert
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.client.listed_tools import add_page
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.downstream.transports import large_parts, stdio_transport
from mcp_bridge.errors import BridgeError
from mcp_bridge.fair_share import Tenant

pytestmark = pytest.mark.timeout(120)

LARGE_TEXT = "x" * (large_parts.LARGE_CHARS + 1)
LARGE_LIST = list(range(large_parts.LARGE_VALUES + 1))

RESULTS = [
    {"content": [{"type": "text", "text": LARGE_TEXT}]},
    {"content": [{"type": "text", "text": LARGE_TEXT}], "isError": True},
    {"content": [{"type": "text", "text": "a"}], "structuredContent": {"list": LARGE_LIST, "none": None}},
    {"content": [], "structuredContent": {"result": LARGE_LIST}, "_meta": {"a": 1}},
    {
        "content": [
            {"type": "image", "data": "QUJD" * large_parts.LARGE_CHARS, "mimeType": "image/png"},
            {"type": "resource_link", "uri": "file:///a", "name": "a", "_meta": {"values": LARGE_LIST}},
            {"type": "resource", "resource": {"uri": "file:///a", "text": "t", "mimeType": "text/plain"}},
        ]
    },
]


def as_small(raw):
    """What the SDK makes of a result."""
    return CallToolResult.model_validate(raw, by_name=False)


@pytest.mark.parametrize("raw", RESULTS)
def test_a_result_whose_parts_were_detached_is_the_same(raw):
    before = json.dumps(raw)
    without = large_parts.detach(raw)
    assert json.dumps(raw) == before
    assert not large_parts.is_oversized(without), "this the SDK copies"
    validate_server_result("tools/call", "2025-11-25", without)
    result = as_small(without)
    whole = large_parts.reattach(result, large_parts.detached_parts(result), objects_only=True)
    assert whole == as_small(raw)
    assert whole.model_fields_set == as_small(raw).model_fields_set
    assert convert(whole) == convert(as_small(raw))
    assert json.loads(json.dumps(convert(whole)["raw"])) == raw


@pytest.mark.parametrize("raw", [{"content": []}, {"a": LARGE_TEXT}, [LARGE_TEXT], "x", {"content": LARGE_TEXT}])
def test_what_is_small_or_no_result_is_left_as_it_is(raw):
    assert large_parts.detach(raw) is raw


def test_a_mark_that_a_server_writes_is_text_like_any():
    (name,) = large_parts.detach({"content": LARGE_LIST})["_meta"]
    raw = {"content": [{"type": "text", "text": "a"}], "_meta": {name: "x"}}
    assert large_parts.detached_parts(as_small(raw)) == {}
    # And beside a real one, it is lost with it, and nothing else is.
    both = large_parts.detach(RESULTS[0] | {"_meta": {name: {"content": []}, "kept": 1}})
    result = as_small(both)
    assert large_parts.reattach(result, large_parts.detached_parts(result), objects_only=True).meta == {"kept": 1}


@pytest.mark.parametrize("block", [{"type": "text"}, {"type": "image", "text": LARGE_TEXT}, 7, None])
def test_content_that_is_none_is_refused_as_a_small_one_is(block):
    raw = {"content": [{"type": "text", "text": LARGE_TEXT}, block]}
    result = as_small(large_parts.detach(raw))
    with pytest.raises(ValidationError):
        large_parts.reattach(result, large_parts.detached_parts(result), objects_only=True)
    with pytest.raises(ValidationError):
        as_small(raw)


@pytest.mark.parametrize("structured", [LARGE_LIST, LARGE_TEXT])
def test_structured_content_is_an_object_where_it_is_one_in_a_small_result(structured):
    raw = {"content": [], "structuredContent": structured}
    result = as_small(large_parts.detach(raw))
    parts = large_parts.detached_parts(result)
    with pytest.raises(ValidationError):
        validate_server_result("tools/call", "2025-11-25", raw)
    with pytest.raises(ValidationError):
        large_parts.reattach(result, parts, objects_only=True)
    assert large_parts.reattach(result, parts, objects_only=False).structured_content == structured


def test_tools_of_a_large_page_are_the_same():
    tools = [{"name": f"t{n}", "inputSchema": {"type": "object"}, "description": "d" * 500} for n in range(1000)]
    page = ListToolsResult.model_validate(large_parts.detach({"tools": tools, "nextCursor": "n"}), by_name=False)
    assert page.tools == []
    assert page.next_cursor == "n"
    gathered = BoundedListing()
    add_page(gathered, page, ServerSpec(name="s"), "2025-11-25")
    assert gathered.tools == tools


# --- with a real server ---


@contextmanager
def asking():
    """A tenant for whom this task works: else nobody is taken down as having asked."""
    token = fair_share.current.set(Tenant())
    try:
        yield
    finally:
        fair_share.current.reset(token)


async def test_large_arguments_and_results_arrive_whole_and_nothing_is_left_behind(monkeypatch):
    seen, asked = [], []
    send, sent = stdio_transport.StdioTransport.track_request, stdio_transport._Sink._encoded

    def noted(self, number):
        send(self, number)
        asked.append(len(self._askers))

    def written(self, item):
        seen.append(len(str(item.message)))
        return sent(self, item)

    monkeypatch.setattr(stdio_transport.StdioTransport, "track_request", noted)
    monkeypatch.setattr(stdio_transport._Sink, "_encoded", written)
    async with Fleet([faulty("plain")]) as fleet:
        with asking():
            for text in ("é" * 400_000, '"\\\n' * 200_000, "small"):
                result = await call_tool(fleet, "faulty", "echo", {"text": text})
                assert convert(result)["value"] == text
        connection = fleet.servers["faulty"]._latest
        assert connection is not None
        assert max(asked) == 1
        assert connection.transport._askers == {}
    assert max(seen) < large_parts.LARGE_CHARS, "the SDK has seen a large one"


async def test_what_is_left_of_a_large_call_that_was_given_up_is_nothing():
    async with Fleet([faulty("plain", call_timeout=0.5)]) as fleet:
        with asking():
            for arguments in ({"text": LARGE_TEXT}, {}):
                with pytest.raises(BridgeError, match="no answer within"):
                    await call_tool(fleet, "faulty", "hang", arguments)
        connection = fleet.servers["faulty"]._latest
        assert connection is not None
        assert connection.transport._askers == {}
