"""`run_python` over stdio and HTTP with settings of its own, and bytes on stdio's wire for what no client does."""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import anyio
import mcp_types as types
import pytest
import toon_format
from bridge_fixtures import COMMAND, OVER_BOTH, children, descendants, is_gone, until
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from kept_files import kept_files
from mcp import Client
from mcp.shared.message import SessionMessage
from mcp_clients import build_server
from servers.specs import faulty

from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.executions.artifacts import Files
from mcp_bridge.executions.record import ExecutionRecord
from mcp_bridge.sandbox.oci.engine import SUPERVISOR_LABEL
from mcp_bridge.server.answers import render
from mcp_bridge.server.messages import stdio
from mcp_bridge.settings import Settings

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("whole_ledgers")]

RECORD = "mcp-code-bridge/record"


def _socket_ends():
    return tuple(end.detach() for end in socket.socketpair())


async def run(client, code, **arguments):
    return await client.call_tool("run_python", {"code": code, **arguments})


def text(result):
    """The text of the first block, which every answer has."""
    assert isinstance(result.content[0], types.TextContent)
    return result.content[0].text


# --- the tool ---


@pytest.mark.filterwarnings("ignore:open_binary is deprecated:DeprecationWarning")  # of the tokenizer's own import
async def test_the_list_of_tools_is_at_most_200_tokens_as_on_the_wire(setup):
    from bpe_openai import get_encoding

    async with setup.wire() as wire:
        await wire.initialize()
        listed = (await wire.answer(await wire.ask("tools/list")))["result"]
    rendered = json.dumps(listed, separators=(",", ":"), ensure_ascii=False)
    assert len(get_encoding("o200k_base").encode(rendered)) <= 200, rendered


async def test_a_fault_of_the_bridge_is_an_answer_without_its_inside_and_is_logged(caplog):
    class Broken:
        settings = Settings()

        def expected(self, *_arguments):
            return contextlib.nullcontext()

        def aliases(self):
            return []

        async def run(self, *_arguments, **_options):
            raise RuntimeError("the inside")

    async with Client(build_server(Broken())) as client:
        result = await run(client, "1")
    assert result.is_error
    assert text(result).startswith("[internal_error] ")
    assert "the inside" not in text(result)
    assert "the inside" in caplog.text


async def test_structured_content_can_be_had_always_or_never(configure):
    claude = types.Implementation(name="claude-code", version="2.1")
    async with configure(structured="always").over("http").client(client_info=claude) as client:
        assert (await run(client, "1")).structured_content["status"] == "success"
    async with configure(structured="never").client() as client:
        for code in ("1", ""):
            result = await run(client, code)
            assert result.structured_content is None
            assert RECORD not in (result.meta or {})


ROWS = [{"id": number, "name": f"row {number}", "ok": number % 2 == 0} for number in range(20)]


async def test_output_is_json_or_toon_where_configured_so(configure):
    code = f"import json\nprint(json.dumps({ROWS!r}))"
    async with configure(output="json").client() as client:
        assert json.loads(text(await run(client, code))) == {"status": "success", "stdout": ROWS}
        failed = json.loads(text(await run(client, "print('a')\n1/0")))
        assert failed["status"] == "error"
        assert failed["error"]["type"] == "ZeroDivisionError"
    async with configure(output="toon").over("http").client() as client:
        shown = text(await run(client, code))
        assert len(shown) < len(json.dumps({"status": "success", "stdout": ROWS}, separators=(",", ":")))
        assert toon_format.decode(shown) == {"status": "success", "stdout": ROWS}


def rendered(printed, tmp_path, output="toon"):
    record = ExecutionRecord("0" * 16, stdout=printed.encode())
    return render.Answer(record, Settings(output=output), Files(tmp_path)).text()


def read_back(shown):
    """The data in an answer's text, whichever of the two forms it has."""
    try:
        return json.loads(shown)
    except ValueError:
        return toon_format.decode(shown)


HALF_OPTIONAL = [{"id": number, **({"note": "some note"} if number % 2 else {"other": 1})} for number in range(20)]


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ('{"a":1.0}', {"a": 1.0}),
        ("[1.0,2.0,3.0,4.0]", [1.0, 2.0, 3.0, 4.0]),
        ('{"a":{},"b":[],"c":""}', {"a": {}, "b": [], "c": ""}),
        ("{}", {}),
        ("[]", []),
        ('[{"a":NaN},{"a":NaN}]', '[{"a":NaN},{"a":NaN}]'),
        ('["true","null","1","1.0","- x"," x "]', ["true", "null", "1", "1.0", "- x", " x "]),
        ('{"a":12345678901234567890123}', {"a": 12345678901234567890123}),
        (json.dumps(HALF_OPTIONAL), HALF_OPTIONAL),
        ("plain text", "plain text"),
        ("[not json", "[not json"),
    ],
)
def test_toon_never_changes_a_value_and_is_never_longer_than_json(tmp_path, printed, expected):
    shown = rendered(printed, tmp_path)
    back = read_back(shown)["stdout"]
    assert json.dumps(back, sort_keys=True) == json.dumps(expected, sort_keys=True)
    assert len(shown.encode()) <= len(rendered(printed, tmp_path, "json").encode())


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(value=st.lists(JSON_VALUES, max_size=5) | st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=5))
def test_whatever_is_printed_as_json_comes_back_from_the_shorter_form(tmp_path, value):
    back = read_back(rendered(json.dumps(value), tmp_path))["stdout"]
    assert json.dumps(back, sort_keys=True) == json.dumps(value, sort_keys=True)


@OVER_BOTH
async def test_long_output_is_cut_in_the_middle_and_kept_whole(configure):
    setup = configure(max_output_chars=2000)
    async with setup.client() as client:
        result = await run(client, "print('begin' + 'x' * 50_000 + 'end')")
        shown = text(result)
        assert len(shown) < 2500
        assert shown.startswith("beginxxx")
        assert shown.endswith("xxxend")
        assert "of 50009 characters cut" in shown
        # What it names is what the next script can write.
        named = re.search(r"; (runtime\.output\('[0-9a-f]{16}'\)) has all of it", shown)[1]
        read = await run(client, f"whole = {named}\nprint(len(whole), whole[:6], whole[-4:-1], await {named} == whole)")
        assert text(read) == "50009 beginx end True"
        kept = list((setup.state_dir / "outputs").rglob("*.txt"))
        assert [path.stat().st_mode & 0o077 for path in kept] == [0]
        value = text(await run(client, "'v' * 50_000"))
        assert len(value) <= 2000
        assert "of 50002 characters cut" in value
        named = re.search(r"; (runtime\.output\(.*?\)) has all of it", value)[1]
        assert text(await run(client, f"len({named})")) == "50002"
        unknown = text(await run(client, "runtime.output('0123456789abcdef')"))
        assert (
            "The execution '0123456789abcdef' has no stored output 'stdout'. Only output that an answer had" in unknown
        )
    async with configure(max_output_chars=2000, structured="always").client() as client:
        result = await run(client, "print('begin' + 'x' * 50_000 + 'end')")
        assert len(result.structured_content["stdout"]) == 50_009, "programs get all of it"


@OVER_BOTH
async def test_an_output_of_many_megabytes_is_read_whole_by_the_next_script(configure):
    async with configure(max_output_size="32m").client() as client:
        code = "import zlib\ntext = ''.join(f'{n} ø\\n' for n in range(500_000))\n"
        shown = text(await run(client, code + "print(text, end='')"))
        named = re.search(r"; (runtime\.output\(.*?\)) has all of it", shown)[1]
        assert text(await run(client, code + f"{named} == text")) == "True"


async def test_when_the_client_goes_away_the_run_ends_and_the_process_with_it(setup):
    async with setup.wire() as wire:
        await wire.initialize()
        await wire.started("while True: pass", timeout=100)
        assert len(await setup.containers(wire.pid)) == 1
        wire.process.stdin.close()
        assert await wire.ended(10) == 0
        assert wire.answers == {}, "nobody is there who would read one"
        assert await setup.containers(wire.pid) == []
        assert "Traceback" not in await wire.errors()


async def test_at_the_end_of_input_what_is_done_is_answered_and_what_was_under_way_is_not():
    def closed(number):
        error = types.ErrorData(code=types.CONNECTION_CLOSED, message="Connection closed")
        return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=number, error=error))

    def done(number):
        return SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=number, result={}))

    read_send, read_receive = anyio.create_memory_object_stream(0)
    write_send, write_receive = anyio.create_memory_object_stream(0)
    reading, writing = os.pipe()
    with read_receive, write_receive:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stdio._write, writing, write_receive, read_send)
            # As on a signal: the client is there. What is taken has been written when the next is.
            await write_send.send(closed(1))
            await write_send.send(done(2))
            read_send.close()
            await write_send.send(closed(3))
            await write_send.send(done(4))
            write_send.close()
    os.close(writing)
    with os.fdopen(reading) as lines:
        assert [json.loads(line)["id"] for line in lines] == [1, 2, 4]


@pytest.mark.parametrize("ends", [os.pipe, _socket_ends], ids=["a pipe", "a socket"])
async def test_a_client_that_reads_late_gets_everything_in_order_and_nobody_waits_for_it(ends):
    write_send, write_receive = anyio.create_memory_object_stream(0)
    read_send, read_receive = anyio.create_memory_object_stream(0)
    reading, writing = ends()
    sizes = [10, 3000, 100_000, 3000, 10, 400_000, *[2000] * 100]
    read = bytearray()

    def take():
        while chunk := os.read(reading, 5000):
            read.extend(chunk)

    async def send():
        for number, size in enumerate(sizes, start=1):
            answer = types.JSONRPCResponse(jsonrpc="2.0", id=number, result={"text": "x" * size})
            await write_send.send(SessionMessage(answer))
        write_send.close()

    async def write():
        await stdio._write(writing, write_receive, read_send)
        os.close(writing)

    with write_receive, read_receive, read_send:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            tasks.start_soon(send)
            # The client takes none of it, and the loop goes on.
            await anyio.wait_all_tasks_blocked()
            await anyio.to_thread.run_sync(take)
    os.close(reading)
    rows = [json.loads(line) for line in read.splitlines()]
    assert [(row["id"], len(row["result"]["text"])) for row in rows] == list(enumerate(sizes, start=1))


@pytest.mark.parametrize("ends", [os.pipe, _socket_ends], ids=["a pipe", "a socket"])
async def test_an_answer_for_a_client_that_is_gone_ends_the_connection(ends):
    write_send, write_receive = anyio.create_memory_object_stream(0)
    read_send, read_receive = anyio.create_memory_object_stream(1)
    reading, writing = ends()
    os.close(reading)
    with write_send, write_receive, read_receive:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stdio._write, writing, write_receive, read_send)
            await write_send.send(SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=1, result={})))
        assert read_receive.statistics().open_send_streams == 0
    os.close(writing)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_a_signal_during_a_run_ends_container_servers_and_process(configure, time_server, memory_server, number):
    setup = configure(time_server, memory_server)
    async with setup.wire() as wire:
        await wire.initialize()
        calls = "from mcp.servers import time, memory\nawait time.get_current_time('UTC')\nawait memory.read_graph()\n"
        await wire.answer(await wire.call(calls))
        await wire.started("while True: pass", timeout=100)
        everything = descendants(wire.pid)
        # Without an engine there is no client, and the supervisor is nobody's child.
        assert len(everything) >= 3 - (setup.engine.name == "oci"), "two servers and the engine's client"
        wire.process.send_signal(number)
        assert await wire.ended(10) == 0
        assert await setup.containers(wire.pid) == []
        await until(lambda: all(is_gone(pid) for pid in everything), 5)
        assert "Traceback" not in await wire.errors()


async def test_a_signal_before_the_first_message_ends_it_too(setup):
    async with setup.wire() as wire:
        await wire.initialize()
        wire.process.send_signal(signal.SIGTERM)
        assert await wire.ended(10) == 0


async def test_after_kill_9_the_container_ends_by_itself(configure, time_server):
    setup = configure(time_server)
    async with setup.wire() as wire:
        await wire.initialize()
        await wire.answer(await wire.call("from mcp.servers import time\nawait time.get_current_time('UTC')"))
        servers = children(wire.pid)
        await wire.started("while True: pass", timeout=100)
        assert len(await setup.containers(wire.pid)) == 1
        wire.process.kill()
        await wire.process.wait()
        # Not one frame comes any more, but process 1 sees the end of its input.
        await setup.no_container_of(wire.pid, 20)
        await until(lambda: all(is_gone(pid) for pid in servers), 10)


async def test_what_kill_9_left_behind_is_swept_at_the_next_start(setup):
    async with setup.wire() as wire:
        await wire.initialize()
        await wire.started("while True: pass", timeout=100)
        (container,) = await setup.containers(wire.pid)
        # The engine's client is stopped: the container can't see the end of its input. Or the supervisor is, which would
        # remove the container.
        clients = [pid for pid in descendants(wire.pid) if b"--cidfile" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        if setup.engine.name == "oci":
            described = json.loads((setup.state_dir / "oci/containers" / container.id / "config.json").read_text())
            clients = [int(described["annotations"][SUPERVISOR_LABEL].split(":")[1])]
        for client in clients:
            os.kill(client, signal.SIGSTOP)
        try:
            wire.process.kill()
            await wire.process.wait()
            assert [row.id for row in await setup.containers(wire.pid)] == [container.id]
            async with setup.client() as client:
                assert text(await run(client, "1")) == "1"
                await setup.no_container_of(wire.pid, 20)
        finally:
            for client in clients:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(client, signal.SIGKILL)


# --- size and number ---


@OVER_BOTH
async def test_a_megabyte_of_line_code_argument_and_result_arrives_whole(configure, everything_server):
    setup = configure(everything_server, max_output_chars=3_000_000)
    big = 1_000_000
    async with setup.client() as client:
        assert text(await run(client, f"print('x' * {big})")) == "x" * big
        assert text(await run(client, f"len({'y' * big!r})")) == str(big)
        assert text(await run(client, f"'é' * {big}")) == repr("é" * big)
        code = f"""
from mcp.servers import everything
import hashlib
sent = "".join(chr(97 + i % 26) for i in range({big}))
got = await everything.echo(message=sent)
print(len(got), hashlib.sha256(got.encode()).hexdigest())
"""
        sent = "".join(chr(97 + i % 26) for i in range(big))
        assert text(await run(client, code)) == f"{big + 6} {hashlib.sha256(f'Echo: {sent}'.encode()).hexdigest()}"


# --- the wire ---


async def test_nothing_but_messages_reaches_the_wire_and_rubbish_from_the_client_is_survived(configure):
    setup = configure(faulty("garbage"), log_level="debug")
    async with setup.wire() as wire:
        await wire.initialize()
        half_right = b'{"jsonrpc":"2.0","id":[],"method":1}'
        for rubbish in (b"{not json", b"\xff\xfe\x00", b"[]", b"{}", b'"text"', b"", half_right):
            await wire.send(rubbish)
        await wire.send({"jsonrpc": "2.0", "id": 77, "result": {}})
        code = """
import os
_ = os.write(1, b"raw\\n")
print('{"jsonrpc": "2.0"}')
from mcp.servers import faulty
await faulty.echo("x")
"""
        answer = await wire.answer(await wire.call(code))
        assert answer["result"]["content"][0]["text"] == 'raw\n{"jsonrpc": "2.0"}\n\'x\''
        unknown = await wire.answer(await wire.ask("no/such/method"))
        assert unknown["error"]["code"] == types.METHOD_NOT_FOUND
        # `read` has decoded every line so far; here, that each is a message and nothing else.
        assert all(json.loads(line)["jsonrpc"] == "2.0" for line in wire.lines)
        wire.process.stdin.close()
        assert await wire.ended(10) == 0


def _call_text(arguments, number="2", more=""):
    """A call of run_python as it goes over the wire, its arguments given as JSON."""
    params = f'{{"name":"run_python","arguments":{arguments}{more}}}'
    return f'{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{params}}}'


MODERN = json.dumps(
    {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "a-test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
)

UNREADABLE = {
    "a huge integer": (_call_text(f'{{"code":"1","timeout":{"9" * 5000}}}'), -32700, 2),
    "deep": (_call_text(f'{{"code":"1","x":{"[" * 3000}{"]" * 3000}}}'), -32700, 2),
    "not UTF-8": (_call_text('{"code":"\udcff"}', '"an \\u0069d"'), -32700, "an id"),
    "the id last": ('{"params":{"id":8,"x":[tru],"y":"}"},"method":"tools/call","id":9}', -32700, 9),
    "no end": ('{"id":4,"method":"tools/call","params":{"a":"', -32700, 4),
    "a huge id": (_call_text("{}", "9" * 5000), -32700, None),
    "no JSON": ("{not json", -32700, None),
    "a surrogate as id": (_call_text("{}", '"\\ud83d"'), -32600, None),
    "a surrogate in the params": (_call_text("{}", more=',"x":"\\ud83d"'), -32600, 2),
    "a batch": (f"[{_call_text('{}')}]", -32600, None),
    "a text": ('"text"', -32600, None),
    "nothing in it": ("{}", -32600, None),
    "no version": ('{"id":2,"method":"tools/list"}', -32600, 2),
    "params as a list": ('{"jsonrpc":"2.0","id":2,"method":"tools/list","params":[1]}', -32600, 2),
    "an id that is none": (_call_text("{}", "1.5"), -32600, None),
    "what we fail at": ('{"jsonrpc":"2.0","id":3,"method":"tools/call","params":null,"x":"\\ud800"}', -32600, 3),
}


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_what_cannot_be_read_is_answered_with_its_id_and_logged(setup, era):
    more = f',"_meta":{MODERN}' if era == "modern" else ""
    async with setup.wire() as wire:
        if era == "legacy":
            await wire.initialize()
        for name, (line, code, number) in UNREADABLE.items():
            await wire.send(line.encode("utf-8", "surrogateescape"))
            answer = await wire.answer(number)
            assert answer["error"]["code"] == code, name
        for arguments in ('{"code":"print(\'\\ud83d\')"}', '{"code":"1","idempotency_key":"\\uDC00"}', '{"\\ud83d":1}'):
            await wire.send(_call_text(arguments, '"x"', more).encode())
            result = (await wire.answer("x"))["result"]
            assert result["isError"]
            assert result["content"][0]["text"].startswith("[bad_text] ")
        # No request, and no answer: CRLF, blank lines, and notifications and answers that can't be read.
        for quiet in (
            b"\r",
            b"  ",
            b'{"jsonrpc":"2.0","method":"notifications/x","params":{"a":"\xff"}}',
            b'{"id":77,"result":{}}',
            b'{"jsonrpc":"2.0","id":5,"result":{"a":' + b"9" * 5000 + b"}}",
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}',
        ):
            await wire.send(quiet)
        await wire.send(b"\xef\xbb\xbf" + _call_text('{"code":"1+1"}', "7", more).encode() + b"\r")
        assert (await wire.answer(7))["result"]["content"][0]["text"] == "2"
        assert wire.answers == {}
        wire.process.stdin.close()
        assert await wire.ended(10) == 0
        errors = await wire.errors()
    assert "a message of the client is " in errors
    assert "print" not in errors


async def test_a_cancellation_counts_with_half_an_emoji_in_its_reason(setup):
    async with setup.wire() as wire:
        await wire.initialize()
        number = await wire.started("while True: pass", timeout=100)
        assert len(await setup.containers(wire.pid)) == 1
        reason = f'{{"requestId":{number},"reason":"\\ud83d"}}'
        await wire.send(f'{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{reason}}}'.encode())
        await setup.no_container_of(wire.pid)


@contextlib.asynccontextmanager
async def delivered(clock=lambda: 0.0):
    """What delivers lines, and the streams of messages and of answers. Nothing is delivered without being received."""
    read_send, read_receive = anyio.create_memory_object_stream(8)
    write_send, write_receive = anyio.create_memory_object_stream(8)
    with read_send, read_receive, write_send, write_receive:
        delivery = stdio._Delivery(read_send, write_send, asyncio.get_running_loop(), clock)
        yield delivery, read_receive, write_receive


async def test_a_line_above_the_limit_is_refused_or_ends_a_question_and_the_next_one_is_read(monkeypatch):
    monkeypatch.setattr(stdio, "MAX_LINE_BYTES", 100_000)
    reading, writing = os.pipe()
    long = b"x" * 150_000
    sent = (
        b'{"jsonrpc":"2.0","id":3,"x":"' + long + b'"}\n{"jsonrpc":"2.0","id":77,"result":{"x":"' + long + b'"}}\n'
        b'{"result":{"id":5,"x":"' + long + b'"}}\n{"jsonrpc":"2.0","id":4,"method":"ping"}\n'
    )
    async with delivered() as (delivery, messages, answers), anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, stdio._read, reading, delivery)
        await anyio.to_thread.run_sync(stdio._write_all, writing, sent)
        os.close(writing)
        refused = (await answers.receive()).message
        assert (refused.id, refused.error.code) == (3, types.INVALID_REQUEST)
        # Its id is that of a question of ours: the client may have a request with the same.
        settled = (await messages.receive()).message
        assert (settled.id, settled.error.code) == (77, types.INVALID_REQUEST)
        assert (await messages.receive()).message.id == 4
        with pytest.raises(anyio.EndOfStream):
            await messages.receive()
        assert answers.statistics().current_buffer_used == 0
    os.close(reading)


async def test_where_reading_fails_that_is_answered_and_the_next_line_is_read(monkeypatch, caplog):
    whole = stdio._decoded

    def failing(line):
        if b"SECRET" in line:
            raise TypeError(line)
        return whole(line)

    monkeypatch.setattr(stdio, "_decoded", failing)
    async with delivered() as (delivery, messages, answers):
        for line in (
            b'{"jsonrpc":"2.0","id":"a","method":"SECRET"}',
            b'{"jsonrpc":"2.0","id":5,"result":{"a":"SECRET"}}',
            b'{"jsonrpc":"2.0","method":"notifications/SECRET"}',
            b'{"jsonrpc":"2.0","id":4,"method":"ping"}',
        ):
            assert await anyio.to_thread.run_sync(delivery.take, line)
        refused = (await answers.receive()).message
        assert (refused.id, refused.error.code) == ("a", types.INTERNAL_ERROR)
        assert answers.statistics().current_buffer_used == 0
        assert (await messages.receive()).message.id == 4
    assert "TypeError" in caplog.text
    assert "SECRET" not in caplog.text


async def test_reading_ends_the_connection_even_where_it_fails(monkeypatch):
    reading, writing = os.pipe()
    os.write(writing, b"x\n")
    async with delivered() as (delivery, messages, _):
        monkeypatch.setattr(delivery, "take", lambda _line: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await anyio.to_thread.run_sync(stdio._read, reading, delivery)
        with pytest.raises(anyio.EndOfStream):
            await messages.receive()
    os.close(reading)
    os.close(writing)


async def test_lines_that_are_refused_are_logged_within_bounds(caplog):
    now = 5.0
    async with delivered(lambda: now) as (delivery, _, answers):

        async def refuse(count):
            for _ in range(count):
                assert await anyio.to_thread.run_sync(delivery.take, b"{")
                await answers.receive()
            return sum(record.message.startswith("a message of the client is ") for record in caplog.records)

        assert await refuse(1) == 1
        assert await refuse(20) == stdio.LOGGED_PER_MINUTE
        assert "further ones are not logged for a minute" in caplog.messages[-1]
        now += 59.9
        assert await refuse(1) == stdio.LOGGED_PER_MINUTE
        now += 0.1
        assert await refuse(1) == stdio.LOGGED_PER_MINUTE + 1


async def test_the_command_without_options_serves_too(setup):
    """The way in that clients use; it doesn't go through the option parser."""
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=setup.env | {"MCP_BRIDGE_CONFIG": str(setup.config)},
        cwd=setup.home,
    )
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    client = {"name": "t", "version": "1"}
    request["params"] = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
    with anyio.fail_after(30):
        process.stdin.write(json.dumps(request).encode() + b"\n")
        assert json.loads(await process.stdout.readline())["result"]["serverInfo"]["name"] == "mcp-code-bridge"
        process.stdin.close()
        assert await process.stdout.read() == b""
        assert await process.wait() == 0


# --- itself ---


async def test_a_bridge_started_by_a_bridge_refuses(setup):
    async with setup.wire(env={"MCP_BRIDGE_NESTED": "1"}) as wire:
        await wire.initialize()
        answer = await wire.answer(await wire.call("1"))
        assert answer["result"]["content"][0]["text"].startswith("[nested_bridge] ")
        assert children(wire.pid) == []
        wire.process.stdin.close()
        assert await wire.ended(20) == 4
        assert "nested_bridge" in await wire.errors()
    async with setup.wire(env={"MCP_BRIDGE_NESTED": "1", "MCP_BRIDGE_ALLOW_SELF_SERVER": "1"}) as wire:
        assert (await wire.initialize())["serverInfo"]["name"] == "mcp-code-bridge"


@OVER_BOTH
async def test_itself_in_a_clients_file_is_left_out(configure, time_server):
    setup = configure(client_configs=True)
    entries = {
        "bridge": {"command": COMMAND, "args": []},
        "uvx": {"command": "uvx", "args": ["mcp-code-bridge"]},
        "time": {"command": time_server.command, "args": list(time_server.args)},
    }
    (setup.home / ".mcp.json").write_text(json.dumps({"mcpServers": entries}))
    approved = {"projects": {str(setup.home.resolve()): {"enableAllProjectMcpServers": True}}}
    (setup.home / ".claude.json").write_text(json.dumps(approved))
    async with setup.client() as client:
        result = await run(client, "from mcp import runtime\nruntime.discovered_servers()")
        assert "time" in text(result)
        assert "bridge" not in text(result)
        assert "uvx" not in text(result)


# --- secrets ---


def command_lines_and_environments(pids):
    """What `ps` shows of these processes, and their environments."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = (Path(f"/proc/{pid}/cmdline").read_bytes(), Path(f"/proc/{pid}/environ").read_bytes())
    return found


async def test_no_secret_shows_in_processes_containers_logs_answers_or_files_left_behind(configure, tmp_path):
    secret = "s3cr3t-" + os.urandom(8).hex()
    headers = {"Authorization": secret}
    remote = ServerSpec(name="remote", type="http", url=f"http://127.0.0.1:9/{secret}", headers=headers)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    setup = configure(faulty(env={"TOKEN": secret}), remote)
    env = {"TMPDIR": str(temporary), "CLOUD_KEY": secret}
    async with setup.wire(env=env) as wire:
        await wire.initialize()
        code = """
from mcp import runtime
from mcp.servers import faulty
import os
assert len(await faulty.environment()) > 0
print(runtime.discovered_servers(), runtime.list_servers_sync(), dict(os.environ))
try:
    await runtime.call_tool("remote", "x", {})
except Exception as error:
    print(error)
"""
        shown = json.dumps(await wire.answer(await wire.call(code)))
        assert "remote" in shown
        assert secret not in shown
        number = await wire.started("while True: pass", timeout=100)
        (container,) = await setup.containers(wire.pid)
        engine = [setup.engine.choice.path, *setup.engine.choice.global_args]
        if setup.engine.name == "oci":
            inspected = (setup.state_dir / "oci/containers" / container.id / "config.json").read_bytes()
        else:
            argv = [*engine, "inspect", container.id]
            inspected = await anyio.to_thread.run_sync(lambda: subprocess.check_output(argv))
        assert secret.encode() not in inspected
        everyone = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        processes = command_lines_and_environments(everyone)
        assert not [pid for pid, (words, _) in processes.items() if secret.encode() in words]
        holders = [pid for pid, (_, environment) in processes.items() if secret.encode() in environment]
        ours = descendants(wire.pid)
        server = [pid for pid, (words, _) in processes.items() if b"faulty.py" in words and pid in ours]
        assert sorted(holders) == sorted([wire.pid, *server]), "only the bridge and the server that it is for"
        await wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
        wire.process.stdin.close()
        assert await wire.ended(10) == 0
        assert secret not in await wire.errors()
    assert list(temporary.iterdir()) == []
    assert secret in setup.config.read_text(), "where it belongs"
    for path, data in kept_files(setup.state_dir).items():
        assert secret.encode() not in data, path
