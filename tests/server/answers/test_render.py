"""An execution as an answer, without any sandbox: how long it gets, and what of a guest's claims is believed."""

import base64
import contextlib
import json
import os
import tempfile
import threading
import tracemalloc
from pathlib import Path

import mcp_types as types
import pytest
import toon_format
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_clients import build_server

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import ArtifactWriter, Files
from mcp_bridge.executions.principal_artifacts import OwnFiles
from mcp_bridge.executions.record import ExecutionRecord
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.server.answers import displays, render
from mcp_bridge.server.answers.decoded_output import Printed
from mcp_bridge.settings import Settings

EXECUTION = "0123456789abcdef"
RECORD = "mcp-code-bridge/record"
FORMS = ["compact", "json", "toon"]

MAGIC = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF89a",
    "image/webp": b"RIFF\0\0\0\0WEBP",
}


def answer(record, tmp_path, **settings):
    return render.Answer(record, Settings(**settings), Files(Path(tmp_path)))


def artifact(number, name="file"):
    name = f"{name}{number}.bin"
    return {"name": name, "uri": f"artifact://{EXECUTION}/{name}", "path": f"/state/{name}", "size": number}


def read_back(shown):
    try:
        return json.loads(shown)
    except ValueError:
        return toon_format.decode(shown)


@pytest.mark.parametrize("form", FORMS)
def test_a_client_elsewhere_is_told_no_path_of_this_machine(form, tmp_path):
    record = ExecutionRecord(execution=EXECUTION, artifacts=[artifact(1)])
    here, there = answer(record, tmp_path, output=form), answer(render.for_elsewhere(record), tmp_path, output=form)
    assert "/state/" in here.text()
    assert "/state/" not in there.text() + json.dumps([there.record(9000), there.record_within(9000)])
    assert record.artifacts[0]["uri"] in there.text()


# --- the text ---

LONG = st.one_of(
    st.text(max_size=50),
    st.builds(
        lambda unit, times: unit * times,
        st.sampled_from(["a", "\0", "\n", '"', "😀", "x: [1]\n"]),
        st.integers(0, 9000),
    ),
    st.builds(lambda times: json.dumps([1e15] * times), st.integers(0, 3000)),
)
ERRORS = st.none() | st.fixed_dictionaries(
    {"code": st.just("script_error"), "type": st.text(max_size=200), "message": LONG, "line": st.none() | st.just(3)},
    optional={"traceback": LONG, "hint": st.just("Do less.")},
)
RECORDS = st.builds(
    ExecutionRecord,
    execution=st.just(EXECUTION),
    stdout=LONG.map(str.encode) | st.just(b"\xff" * 9000),
    stderr=LONG.map(str.encode),
    value=st.none() | LONG,
    error=ERRORS,
    artifacts=st.builds(
        lambda count, name: [artifact(n, name) for n in range(count)], st.integers(0, 40), st.text(max_size=200)
    ),
    notices=st.lists(LONG, max_size=3),
)


@hypothesis_settings(deadline=None, max_examples=120)
@given(record=RECORDS, form=st.sampled_from(FORMS), limit=st.sampled_from([1000, 5000]))
def test_no_record_gets_a_text_over_the_limit(record, form, limit):
    with tempfile.TemporaryDirectory() as directory:
        shown = answer(record, directory, output=form, max_output_chars=limit).text()
    assert len(shown) <= limit
    assert shown
    if form == "json":
        assert json.loads(shown)["status"] == record.status, "cut, and still a document"


@pytest.mark.parametrize("form", FORMS)
def test_of_many_artifacts_the_first_are_listed_and_the_others_counted(tmp_path, form):
    record = ExecutionRecord(EXECUTION, artifacts=[artifact(number) for number in range(1000)])
    shown = answer(record, tmp_path, output=form).text()
    assert "file19.bin" in shown
    assert "file20.bin" not in shown
    if form == "compact":
        assert shown.endswith(f"\n[… 980 more artifacts; the list of resources has artifact://{EXECUTION}/NAME]")
    else:
        assert read_back(shown)["more_artifacts"] == 980


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("forged", [{"traceback": ""}, {}, {"traceback": "t" * 50_000}])
def test_an_error_is_cut_with_and_without_a_traceback(tmp_path, form, forged):
    error = {"code": "script_error", "type": "E", "message": "m" * 50_000, "line": None, **forged}
    shown = answer(ExecutionRecord(EXECUTION, "error", 1, error=error), tmp_path, output=form).text()
    assert len(shown) < 2 * render.MAX_ERROR_CHARS
    assert "of 50" in shown
    if form == "compact" and not forged.get("traceback"):
        assert shown.startswith("[script_error] mmm")


def test_a_refusal_is_cut_too():
    shown = render.refusal(BridgeError("unknown_server", "x" * 50_000, hint="Use another."))
    assert len(shown) < render.MAX_ERROR_CHARS + 100
    assert shown.startswith("[unknown_server] ")
    assert shown.endswith("Use another.")


def test_an_error_and_artifacts_survive_long_output(tmp_path):
    error = {"code": "script_error", "message": "boom", "traceback": "Traceback\nBoom: boom"}
    record = ExecutionRecord(
        EXECUTION, "error", 1, b"o" * 99_999, b"e" * 99_999, "v" * 99_999, error, [], [artifact(1)]
    )
    shown = answer(record, tmp_path).text()
    assert "Boom: boom" in shown
    assert artifact(1)["uri"] in shown
    assert shown.count(f"runtime.output({EXECUTION!r}") == 3


# --- the record ---


def test_output_within_the_limit_is_whole_in_the_record_and_longer_output_says_how_to_read_it(tmp_path):
    record = ExecutionRecord(EXECUTION, stdout=b"a" * 2000, stderr=b"b" * 2001, value="c" * 2001)
    made = answer(record, tmp_path, max_output_chars=1000).record(2000)
    assert made["stdout"] == "a" * 2000
    for name in ("stderr", "value"):
        assert len(made[name]) <= 1000
        told = f"; runtime.output({EXECUTION!r}, {name!r}) has all of it, or output://{EXECUTION}/{name} …]"
        assert told in made[name]
        assert Files(tmp_path).read_output(EXECUTION, name, 0, 9999) == (
            {"stderr": "b", "value": "c"}[name] * 2001,
            None,
        )


def test_what_is_cut_in_text_and_record_is_kept_once(tmp_path, monkeypatch):
    kept = []
    save = Files.save_output
    monkeypatch.setattr(Files, "save_output", lambda *args: kept.append(args[2]) or save(*args))
    made = answer(ExecutionRecord(EXECUTION, stdout=b"\0" * 50_000), tmp_path, max_output_chars=1000, output="json")
    made.text()
    made.record(1000)
    assert kept == ["stdout.txt"]


def test_the_record_says_of_displays_what_they_are(tmp_path):
    shown = [{"image/png": base64.b64encode(MAGIC["image/png"]).decode()}, {"text/markdown": "# ø"}]
    made = answer(ExecutionRecord(EXECUTION, displays=shown), tmp_path).record(1000)
    assert made["displays"] == [{"mime_type": "image/png", "size": 8}, {"mime_type": "text/markdown", "size": 4}]


# --- the whole answer ---


class Bridge:
    """Answers every call with one record."""

    def __init__(self, record, directory, **settings):
        self.record = record
        self.settings = Settings(**settings)
        self.files = Files(directory)
        self.own_files = OwnFiles(self.files, self, "local")
        self.principal = LOCAL_PRINCIPAL
        self.expected = lambda *_: contextlib.nullcontext()

    async def owners(self, _executions):
        return {}

    async def ends(self, _executions):
        return {}

    def aliases(self):
        return ["git"]

    @property
    def programs(self):
        return self

    @property
    def library(self):
        return self

    @property
    def sessions(self):
        return self

    async def listed(self, _principal=None):
        return []

    async def are_there(self):
        return False

    async def run(self, *_arguments, **_options):
        return self.record


async def called(record, tmp_path, client="some-client", **settings):
    info = types.Implementation(name=client, version="1")
    async with Client(build_server(Bridge(record, tmp_path, **settings)), client_info=info) as connected:
        return await connected.call_tool("run_python", {"code": "1"})


@pytest.mark.parametrize("client", ["some-client", "claude-code", "codex-mcp-client"])
@pytest.mark.parametrize("mode", ["auto", "always"])
async def test_an_answer_to_20_megabytes_printed_is_small(tmp_path, client, mode):
    result = await called(ExecutionRecord(EXECUTION, stdout=b"x" * 20_000_000), tmp_path, client, structured=mode)
    assert len(result.model_dump_json()) < 200_000
    made = result.structured_content or result.meta[RECORD]
    assert "status" in made
    assert f"of 20000000 characters cut; runtime.output({EXECUTION!r}) has all of it" in result.content[0].text


@pytest.mark.parametrize("client", ["claude-code", "codex-mcp-client", "google-adk", "fastmcp"])
async def test_a_client_that_shows_structured_content_instead_of_the_text_gets_none(tmp_path, client):
    error = {"code": "script_error", "traceback": "Traceback"}
    for record in (ExecutionRecord(EXECUTION, value="5"), ExecutionRecord(EXECUTION, "error", error=error)):
        result = await called(record, tmp_path, client)
        assert result.structured_content is None
        assert result.meta[RECORD]["status"] == record.status
        assert [block.text for block in result.content] == ["Traceback" if record.error else "5"]


async def test_a_client_that_shows_meta_too_gets_the_text_alone(tmp_path):
    client, error = "@langchain/mcp-adapters", {"code": "script_error", "traceback": "Traceback"}
    for record in (ExecutionRecord(EXECUTION, value="5"), ExecutionRecord(EXECUTION, "error", error=error)):
        result = await called(record, tmp_path, client)
        assert (result.structured_content, RECORD in (result.meta or {})) == (None, False)
        assert [block.text for block in result.content] == ["Traceback" if record.error else "5"]
    # Refused before there is an execution.
    info = types.Implementation(name=client, version="1")
    async with Client(build_server(Bridge(None, tmp_path)), client_info=info) as connected:
        result = await connected.call_tool("run_python", {"code": 5})
    assert (result.structured_content, RECORD in (result.meta or {})) == (None, False)
    assert (await called(ExecutionRecord(EXECUTION), tmp_path, client, structured="always")).structured_content


@pytest.mark.parametrize("client", ["some-client", "fastmcp"])
async def test_a_megabyte_is_whole_for_programs_where_the_operator_says_so_and_the_model_would_not_read_it(
    tmp_path, client
):
    record = ExecutionRecord(EXECUTION, stdout=b"x" * (1 << 20))
    assert (await called(record, tmp_path, client, structured="always")).structured_content["stdout"] == "x" * (1 << 20)
    result = await called(record, tmp_path, "claude-code", structured="always")
    assert len(result.model_dump_json()) < 100_000


HUGE = [
    {"stdout": b"x" * 3_000_000},
    {"stderr": b"\xff" * 100_000, "value": '"' * 50_000},
    {"stdout": b"x" * 990},
    {"error": {"code": "script_error", "message": "m" * 40_000, "traceback": "t" * 40_000, "faults": ["f" * 9] * 999}},
    {"artifacts": [artifact(number) for number in range(1000)]},
    {"notices": ["n" * 900] * 50},
    {"stdout": b"x" * 700, "displays": [{"text/markdown": "d" * 400}] * 100},
    {"displays": [{"image/svg+xml": "<svg>" + "x" * 90_000}, {"application/pdf": "x"}] * 20},
]


@pytest.mark.parametrize("client", ["pydantic-ai", "claude-code", "gemini-cli-mcp-client-bridge", "inspector-cli"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", HUGE, ids="+".join)
async def test_no_client_can_show_a_model_more_than_the_limit_in_whatever_form(tmp_path, client, form, what):
    record = ExecutionRecord(EXECUTION, "error" if "error" in what else "success", **what)
    result = await called(record, tmp_path, client, output=form, max_output_chars=1000)
    shown = sum(len(block.text) for block in result.content)
    parts = [result.structured_content, (result.meta or {}).get(RECORD)]
    assert shown <= 1000
    assert shown + sum(len(json.dumps(part, ensure_ascii=False)) for part in parts if part) <= 1000 + LEAST_RECORD
    if result.structured_content is not None:
        assert result.structured_content["execution"] == EXECUTION, "whole, or not instead of the text"


LEAST_RECORD = 80
"""An execution's id, status and exit code as JSON."""


@pytest.mark.parametrize("client", ["claude-code", "gemini-cli-mcp-client", "opencode"])
async def test_a_client_that_shows_no_image_of_a_failure_is_told_of_it(tmp_path, client):
    image = {"image/png": base64.b64encode(MAGIC["image/png"].ljust(90_000, b"\0")).decode()}
    error = {"code": "script_error", "type": "E", "message": "boom", "line": 1, "traceback": "E: boom"}
    failed = ExecutionRecord(EXECUTION, "error", 1, error=error, displays=[image])
    shown = await called(failed, tmp_path, client)
    assert [block.type for block in shown.content] == ["text", "text"]
    assert "image/png of 90000 bytes" in shown.content[1].text
    assert [block.type for block in (await called(failed, tmp_path)).content] == ["text", "image"]
    fine = ExecutionRecord(EXECUTION, displays=[image])
    assert [block.type for block in (await called(fine, tmp_path, client)).content] == ["image"]


async def test_no_output_is_said_only_where_there_is_none(tmp_path):
    image = {"image/png": base64.b64encode(MAGIC["image/png"]).decode()}
    for shown, kinds in (([image], ["image"]), ([{"text/markdown": "# a"}], ["text"]), ([], ["text"])):
        result = await called(ExecutionRecord(EXECUTION, displays=shown), tmp_path)
        assert [block.type for block in result.content] == kinds
        said = [block.text for block in result.content if block.type == "text"]
        assert ("(no output)" in said) == (not shown)


async def test_displayed_texts_are_within_the_limit_together(tmp_path):
    record = ExecutionRecord(EXECUTION, displays=[{"image/svg+xml": "<svg>" + "x" * 900}] * 100)
    result = await called(record, tmp_path, max_output_chars=2000)
    assert sum(len(block.text) for block in result.content) <= 2000
    where = f"runtime.output({EXECUTION!r}, 'displays') has all of it, or output://{EXECUTION}/displays"
    last = f"more texts displayed; {where} …]"
    assert result.content[-1].text.endswith(last)
    assert result.content[0].text.startswith("<svg>xxx")
    whole, _ = Files(tmp_path).read_output(EXECUTION, "displays", 0, 1_000_000)
    assert whole == "\n".join(["<svg>" + "x" * 900] * 100)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plot.png", "image/png"),
        ("a.tar.gz", "application/octet-stream"),
        ("nothing", "application/octet-stream"),
        ("data:,x", "application/octet-stream"),
    ],
)
async def test_a_resource_has_the_type_that_its_name_says(tmp_path, name, expected):
    bridge = Bridge(None, tmp_path)
    row = ArtifactWriter(bridge.files, EXECUTION, 100).write(name, b"1,2", first=True, last=True)
    async with Client(build_server(bridge)) as client:
        (read,) = (await client.read_resource(row["uri"])).contents
    assert (read.mime_type, base64.b64decode(read.blob)) == (expected, b"1,2")


async def test_artifacts_are_listed_and_text_is_read_as_text(tmp_path):
    bridge = Bridge(None, tmp_path, max_output_chars=1000)
    writer = ArtifactWriter(bridge.files, EXECUTION, 1 << 20)
    contents = {"a table.csv": "ø,2", "long.txt": "x" * 1001, "notes.md": "# é" * 300, "broken.txt": None}
    rows = {
        name: writer.write(name, b"\xff" if text is None else text.encode(), first=True, last=True)
        for name, text in contents.items()
    }
    async with Client(build_server(bridge)) as client:
        listed = {row.name: row for row in (await client.list_resources()).resources}
        read = {name: (await client.read_resource(row["uri"])).contents[0] for name, row in rows.items()}
        templates = [row.uri_template for row in (await client.list_resource_templates()).resource_templates]
    assert {name: (str(listed[name].uri), listed[name].size) for name in rows} == {
        name: (row["uri"], row["size"]) for name, row in rows.items()
    }
    assert listed["a table.csv"].mime_type == "text/csv"
    assert {"artifact://{execution}/{name}", "output://{execution}/{name}{?start}"} <= set(templates)
    assert read["a table.csv"].text == "ø,2"
    assert read["notes.md"].text == "# é" * 300
    # What is longer than an answer may be is a file for the client, and nothing for its model to read.
    assert base64.b64decode(read["long.txt"].blob) == b"x" * 1001
    assert base64.b64decode(read["broken.txt"].blob) == b"\xff"


async def test_of_many_artifacts_the_newest_are_listed(tmp_path):
    bridge = Bridge(None, tmp_path)
    for number in range(150):
        row = ArtifactWriter(bridge.files, f"{number:016x}", 100).write("a.txt", b"1", first=True, last=True)
        for path in (Path(row["path"]), Path(row["path"]).parent):
            os.utime(path, (1000 + number, 1000 + number))
    async with Client(build_server(bridge)) as client:
        first = await client.list_resources()
        # What is kept meanwhile moves nothing.
        ArtifactWriter(bridge.files, f"{999:016x}", 100).write("a.txt", b"1", first=True, last=True)
        second = await client.list_resources(cursor=first.next_cursor)
        for cursor in ("", "x", "W10=", "WzEsMl0=", "W251bGwsImEiXQ==", "é", "[1]", "a" * 9999):
            with pytest.raises(MCPError) as caught:
                await client.list_resources(cursor=cursor)
            assert caught.value.code == types.INVALID_PARAMS
    listed = [str(row.uri) for row in first.resources]
    assert "program-schema://v1" in listed
    assert [uri for uri in listed if uri.startswith("artifact://")] == [
        f"artifact://{number:016x}/a.txt" for number in range(149, 49, -1)
    ]
    assert [str(row.uri) for row in second.resources] == [
        f"artifact://{number:016x}/a.txt" for number in range(49, -1, -1)
    ]
    assert second.next_cursor is None


@pytest.mark.parametrize("count", [100, 101, 1000])
async def test_all_artifacts_of_a_run_are_found_page_by_page_each_once(tmp_path, count):
    bridge = Bridge(None, tmp_path)
    for number in range(count):
        writer = ArtifactWriter(bridge.files, EXECUTION, 1 << 20)
        # Many have the same time.
        os.utime(writer.write(f"{number}.txt", b"1", first=True, last=True)["path"], (1000, 1000))
    found, pages, cursor = [], 0, None
    async with Client(build_server(bridge)) as client:
        while pages == 0 or cursor is not None:
            page = await client.list_resources(cursor=cursor)
            found += [row.name for row in page.resources if str(row.uri).startswith("artifact://")]
            pages, cursor = pages + 1, page.next_cursor
    assert sorted(found) == sorted(f"{number}.txt" for number in range(count))
    assert pages == -(-count // 100)


async def test_a_cut_output_is_read_part_by_part_as_a_resource(tmp_path):
    whole = "".join(f"{number} é\n" for number in range(2000))
    bridge = Bridge(ExecutionRecord(EXECUTION, stdout=whole.encode()), tmp_path, max_output_chars=3000)
    async with Client(build_server(bridge)) as client:
        shown = (await client.call_tool("run_python", {"code": "1"})).content[0].text
        assert f"runtime.output({EXECUTION!r})" in shown
        assert str(tmp_path) not in shown
        uri, parts = f"output://{EXECUTION}/stdout", []
        while uri:
            (read,) = (await client.read_resource(uri)).contents
            assert len(read.text) <= 3000
            text, _, following = read.text.partition("\n[… continues: ")
            parts.append(text)
            uri = following.removesuffix(" …]")
        assert "".join(parts) == whole
        assert len(parts) > 4
        for name in (f"{EXECUTION}/stderr", f"{EXECUTION}/../x", "zz/stdout", "/"):
            with pytest.raises(MCPError, match="has no stored output"):
                await client.read_resource(f"output://{name}")
        for start in ("start=-1", "start=x", "start=", "from=3"):
            with pytest.raises(MCPError, match=f"'{start}' is no position in an output"):
                await client.read_resource(f"output://{EXECUTION}/stdout?{start}")
        with pytest.raises(MCPError, match="There is no resource 'foo://x'"):
            await client.read_resource("foo://x")


NOT_TEXT = b"\xff\xfe" + "é€𝄞".encode() * 500 + b"\xe2\x82" + bytes(range(256)) * 20 + "𝄞".encode()[:3]


@pytest.mark.parametrize("data", [NOT_TEXT, NOT_TEXT[1:], NOT_TEXT[3:] * 3, b"\x80" * 5000, "€".encode() * 3000])
def test_of_what_was_printed_no_more_is_decoded_than_is_shown(data):
    whole, printed = data.decode("utf-8", "backslashreplace"), Printed(data)
    assert (len(printed), str(printed)) == (len(whole), whole)
    for count in (*range(40), 999, 1000, 1001, len(whole) - 1, len(whole), len(whole) + 5):
        assert printed.first(count) == whole[:count]
        assert printed.last(count) == whole[max(0, len(whole) - count) :]


@given(st.binary(max_size=60))
def test_the_length_of_what_was_printed_is_that_of_its_text(data):
    assert len(Printed(data)) == len(data.decode("utf-8", "backslashreplace"))


async def test_what_is_no_text_is_kept_as_its_bytes_and_answered_with_little_memory(tmp_path, monkeypatch):
    data = os.urandom(4 << 20)
    record = ExecutionRecord(EXECUTION, stdout=data)
    threads, plain = [], render.Answer
    monkeypatch.setattr(render, "Answer", lambda *given: (threads.append(threading.get_ident()), plain(*given))[1])
    tracemalloc.start()
    try:
        shown = await called(record, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < len(data)
    finally:
        tracemalloc.stop()
    assert threading.get_ident() not in threads, "not on the event loop"
    text = shown.content[0].text
    assert f"of {len(Printed(data))} characters cut; runtime.output({EXECUTION!r}) has all of it" in text
    assert (tmp_path / "outputs" / EXECUTION / "stdout.txt").read_bytes() == data
    part, following = Files(tmp_path).read_output(EXECUTION, "stdout", 0, 1000)
    assert text.startswith(part[:1000])
    assert 0 < following <= 1000


async def test_an_output_is_read_from_any_byte_of_it_and_from_no_other(tmp_path):
    whole = "é€𝄞".encode() * 1000
    Files(tmp_path).save_output(EXECUTION, "stdout.txt", whole)
    Files(tmp_path).save_output(EXECUTION, "stderr.txt", NOT_TEXT)
    uri = f"output://{EXECUTION}/stdout"
    async with Client(build_server(Bridge(None, tmp_path, max_output_chars=1000))) as client:

        async def read(address):
            (contents,) = (await client.read_resource(address)).contents
            return contents.text.partition("\n[… continues: ")

        async def read_on(address):
            parts = []
            while address:
                text, _, following = await read(address)
                assert len(text) <= 1000
                parts.append(text)
                address = following.removesuffix(" …]")
            return "".join(parts)

        assert await read_on(uri) == whole.decode()
        for start in (1, 3, 4, 6, 8, len(whole) - 2):
            # What is left of a character is shown as its bytes, and what follows is whole.
            assert await read_on(f"{uri}?start={start}") == whole[start:].decode("utf-8", "backslashreplace")
        assert await read_on(f"output://{EXECUTION}/stderr") == NOT_TEXT.decode("utf-8", "backslashreplace")
        for start in (len(whole), len(whole) + 1, 10**14):
            assert await read(f"{uri}?start={start}") == ("", "", "")
        for start in (-1, 10**15, 1 << 62, 10**40, "", "1.5", "1e3", "+1", "%31", "٣", "0x1", "1&start=2"):
            with pytest.raises(MCPError, match="is no position in an output"):
                await client.read_resource(f"{uri}?start={start}")


# --- what a guest says that it shows ---


@pytest.mark.parametrize("mime", MAGIC)
async def test_an_image_is_one_when_its_content_is_of_its_type(tmp_path, mime):
    others = [magic for kind, magic in MAGIC.items() if kind != mime]
    bodies = [base64.b64encode(data + b"...").decode() for data in (MAGIC[mime], *others, b"", b"<script>")]
    result = await called(ExecutionRecord(EXECUTION, displays=[{mime: body} for body in bodies]), tmp_path)
    assert [block.type for block in result.content] == ["image"] + ["text"] * 5
    assert (result.content[0].data, result.content[0].mime_type) == (bodies[0], mime)
    assert all(mime in block.text and "not of that type" in block.text for block in result.content[1:])


@pytest.mark.parametrize(
    "body", ["no base64!", "iVBORw0KGgo", "iVBORw0K\nGgo=", "iVBORw0KGgo=iVBORw0KGgo=", "ø", "\ud800"]
)
def test_what_is_no_base64_is_left_out(body):
    (shown,) = displays.checked([{"image/png": body}])
    assert isinstance(shown, displays.Omitted)
    assert "base64" in str(shown)


def test_images_are_bounded_one_by_one_and_together():
    def image(size):
        return {"image/png": base64.b64encode(MAGIC["image/png"].ljust(size, b"\0")).decode()}

    limit = displays.MAX_IMAGE_BYTES
    large, *rest = displays.checked([image(limit + 1), *[image(limit)] * 4, image(8)])
    assert isinstance(large, displays.Omitted)
    assert str(limit) in str(large)
    assert [type(shown) for shown in rest] == [displays.Image] * 4 + [displays.Omitted]
    assert str(displays.MAX_IMAGES_BYTES) in str(rest[-1])


def test_other_binary_types_are_named_and_never_sent():
    claims = [{"application/pdf": "JVBERi0="}, {"image/tiff": "AAAA"}, {"x\x1b[31m" * 1000: "secret"}]
    for shown in displays.checked(claims):
        assert isinstance(shown, displays.Omitted)
        assert "JVBERi0" not in str(shown)
        assert "secret" not in str(shown)
        assert "\x1b" not in str(shown)
        assert len(str(shown)) < 500
    texts = ["text/html", "text/markdown", "image/svg+xml", "application/json", "application/geo+json"]
    assert list(displays.checked([{mime: "text"} for mime in texts])) == [displays.Text("text")] * 5
