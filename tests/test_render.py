"""An execution as an answer, without any sandbox: how long it gets, and what of a guest's claims is believed."""

import base64
import json
import tempfile
from pathlib import Path

import mcp_types as types
import pytest
import toon_format
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from mcp import Client

from mcp_bridge.bridge.keep import ArtifactWriter, Files
from mcp_bridge.bridge.record import ExecutionRecord
from mcp_bridge.errors import BridgeError
from mcp_bridge.server import displays, render
from mcp_bridge.server.app import build_server
from mcp_bridge.settings import Settings

EXECUTION = "0123456789abcdef"
RECORD = "mcp-code-bridge/record"
FORMS = ["compact", "json", "toon"]
SLACK = render.NOTE_CHARS + 100
"""For the notes about cuts."""

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
    assert len(shown) <= limit + SLACK
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
        assert shown.endswith("\n[… 980 more artifacts]")
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
    assert shown.count("all of it: ") == 3


# --- the record ---


def test_output_within_the_limit_is_whole_in_the_record_and_longer_output_names_its_file(tmp_path):
    record = ExecutionRecord(EXECUTION, stdout=b"a" * 2000, stderr=b"b" * 2001, value="c" * 2001)
    made = answer(record, tmp_path, max_output_chars=1000).record(2000)
    assert made["stdout"] == "a" * 2000
    for name in ("stderr", "value"):
        assert len(made[name]) < 1300
        path = Path(made[name].partition("all of it: ")[2].partition(" …]")[0])
        assert path.read_text() == {"stderr": "b", "value": "c"}[name] * 2001


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
    assert "of 20000000 characters cut; all of it: " in made["stdout"]


async def test_a_megabyte_is_whole_for_programs_but_not_where_the_model_would_read_it(tmp_path):
    record = ExecutionRecord(EXECUTION, stdout=b"x" * (1 << 20))
    assert (await called(record, tmp_path)).structured_content["stdout"] == "x" * (1 << 20)
    for client, mode in (("claude-code", "auto"), ("claude-code", "always"), ("codex-mcp-client", "auto")):
        result = await called(record, tmp_path, client, structured=mode)
        assert len(result.model_dump_json()) < 100_000, client


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
    assert sum(len(block.text) for block in result.content) < 2000 + SLACK
    assert result.content[-1].text == "[… 97 more texts displayed: over 2000 characters]"
    assert result.content[0].text.startswith("<svg>xxx")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a table.csv", "text/csv"),
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
    assert isinstance(shown, displays.LeftOut)
    assert "base64" in str(shown)


def test_images_are_bounded_one_by_one_and_together():
    def image(size):
        return {"image/png": base64.b64encode(MAGIC["image/png"].ljust(size, b"\0")).decode()}

    limit = displays.MAX_IMAGE_BYTES
    large, *rest = displays.checked([image(limit + 1), *[image(limit)] * 4, image(8)])
    assert isinstance(large, displays.LeftOut)
    assert str(limit) in str(large)
    assert [type(shown) for shown in rest] == [displays.Image] * 4 + [displays.LeftOut]
    assert str(displays.MAX_IMAGES_BYTES) in str(rest[-1])


def test_other_binary_types_are_named_and_never_sent():
    claims = [{"application/pdf": "JVBERi0="}, {"image/tiff": "AAAA"}, {"x\x1b[31m" * 1000: "secret"}]
    for shown in displays.checked(claims):
        assert isinstance(shown, displays.LeftOut)
        assert "JVBERi0" not in str(shown)
        assert "secret" not in str(shown)
        assert "\x1b" not in str(shown)
        assert len(str(shown)) < 500
    texts = ["text/html", "text/markdown", "image/svg+xml", "application/json", "application/geo+json"]
    assert list(displays.checked([{mime: "text"} for mime in texts])) == [displays.Text("text")] * 5
