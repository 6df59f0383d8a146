"""What is left in /workspace/out is kept at the end, and what `display` makes of tables and documents."""

import base64
import hashlib

import pytest
from execution_fixtures import lines, printed

from mcp_bridge.server import resources

pytestmark = pytest.mark.xdist_group("left files")


def kept(record):
    return {row["name"]: (row["size"], row["sha256"]) for row in record.artifacts}


def digest(data):
    return (len(data), hashlib.sha256(data).hexdigest())


async def test_what_is_left_in_the_folder_is_kept_with_its_type_size_hash_and_expiry(sandboxes):
    code = """
import os
os.makedirs("/workspace/out/plots/deep")
open("/workspace/out/report.csv", "w").write("a,b\\n")
open("/workspace/out/plots/deep/p.txt", "w").write("x" * 2_000_000)
open("/workspace/out/page.html", "w").write("<p>")
raise ValueError("an error keeps what is there")
"""
    async with sandboxes.open() as bridge:
        record = await bridge.run(code)
        assert record.status == "error"
        assert kept(record) == {
            "report.csv": digest(b"a,b\n"),
            "plots__deep__p.txt": digest(b"x" * 2_000_000),
            "page.html": digest(b"<p>"),
        }
        listed = {
            row.name: row
            for row in (await resources.listed(bridge)).resources
            if str(row.uri).startswith("artifact://")
        }
        assert {name: (row.mime_type, row.size) for name, row in listed.items()} == {
            "report.csv": ("text/csv", 4),
            "plots__deep__p.txt": ("text/plain", 2_000_000),
            "page.html": ("text/html", 3),
        }
        row = listed["report.csv"]
        assert row.meta[resources.SHA256_META] == digest(b"a,b\n")[1]
        assert row.annotations.last_modified < row.meta[resources.EXPIRES_META]
        content = await resources.read(bridge, str(row.uri))
        assert (content.text, content.mime_type) == ("a,b\n", "text/csv")
        assert content.meta[resources.SHA256_META] == digest(b"a,b\n")[1]


async def test_artifacts_are_listed_that_are_kept_for_longer_than_dates_go(sandboxes):
    ledger = sandboxes.settings.ledger.model_copy(update={"keep_files_days": 1e9})
    async with sandboxes.open(ledger=ledger) as bridge:
        await bridge.run(
            'import os\nos.makedirs("/workspace/out", exist_ok=True)\nopen("/workspace/out/a.txt", "w").write("a")'
        )
        [row] = [row for row in (await resources.listed(bridge)).resources if row.name == "a.txt"]
        assert resources.EXPIRES_META not in row.meta
        assert resources.SHA256_META in row.meta


async def test_links_fifos_sockets_and_sparse_files_are_not_kept_and_that_is_said(sandboxes):
    code = """
import os, socket
os.makedirs("/workspace/out/folder")
out = "/workspace/out/"
open(out + "good", "w").write("good")
os.symlink("/etc/passwd", out + "link")
os.symlink("/etc", out + "folder-link")
os.mkfifo(out + "fifo")
s = socket.socket(socket.AF_UNIX); s.bind(out + "socket")
open(out + "sparse", "wb").truncate(1 << 40)
open(out + "a__b", "w").write("x"); os.makedirs(out + "a"); open(out + "a/b", "w").write("y")
open(out + "bad\\nname", "w").write("x")
"""
    async with sandboxes.open() as bridge:
        record = await bridge.run(code)
        printed(record)
        assert set(kept(record)) == {"good", "a__b"}
        told = record.stderr.decode()
        for line in (
            "[not kept: /workspace/out/link: it is a link]",
            "[not kept: /workspace/out/folder-link: it is a link]",
            "[not kept: /workspace/out/fifo: it is no regular file]",
            "[not kept: /workspace/out/socket: it is no regular file]",
            "[not kept: /workspace/out/sparse: it is sparse",
            "[not kept: /workspace/out/a/b: another file has the name 'a__b']",
            "bad_artifact_name",
        ):
            assert line in told, (line, told)


async def test_what_is_deep_or_has_no_name_is_told_and_what_may_not_be_read_is_kept(bilingual):
    code = {
        "python": """
import os
os.chdir("/workspace/out")
for name, depth in (("a", 20), ("b", 21)):
    folder = "/".join([name] * depth)
    os.makedirs(folder)
    open(folder + "/file", "w").write("x")
os.mkdir("locked"); open("locked/f", "w").write("f"); os.chmod("locked", 0)
open("closed", "w").write("c"); os.chmod("closed", 0)
open(b"\\xff", "w").write("x")
""",
        "javascript": """
const fs = require("fs");
process.chdir("/workspace/out");
for (const [name, depth] of [["a", 20], ["b", 21]]) {
  const folder = Array(depth).fill(name).join("/");
  fs.mkdirSync(folder, { recursive: true });
  fs.writeFileSync(`${folder}/file`, "x");
}
fs.mkdirSync("locked"); fs.writeFileSync("locked/f", "f"); fs.chmodSync("locked", 0);
fs.writeFileSync("closed", "c"); fs.chmodSync("closed", 0);
fs.writeFileSync(Buffer.from([0xff]), "x");
""",
    }
    async with bilingual.open() as opened:
        record = await opened.run(code)
        printed(record)
        names = {"__".join([*["a"] * 20, "file"]): digest(b"x"), "locked__f": digest(b"f"), "closed": digest(b"c")}
        assert kept(record) == names
        assert sorted(record.stderr.decode().splitlines()) == [
            "[not kept: /workspace/out/\\udcff: [bad_artifact_name] its name isn't UTF-8]",
            f"[not kept: /workspace/out/{'/'.join(['b'] * 21)}: folders nest deeper than 20]",
        ]
        nothing = {"python": "import os; os.rmdir('out')", "javascript": "require('fs').rmdirSync('out')"}
        assert (await opened.run(nothing)).stderr == b""


async def test_a_cell_is_told_of_what_is_not_kept_only_if_it_is_new_or_has_changed(both):
    make = """
import os
os.mkfifo("/workspace/out/fifo")
os.symlink("/etc/passwd", "/workspace/out/link")
open("/workspace/out/" + "n" * 255, "w").close()
with open("/workspace/out/sparse", "w") as file: file.truncate(1 << 30)
"""
    change = "os.unlink('/workspace/out/link'); os.symlink('/etc/hosts', '/workspace/out/link')"
    async with both.open() as bridge:
        told = [(await bridge.run(code, session="s")).stderr.decode() for code in (make, "1", change)]
        assert told[0].count("[not kept: ") == 4
        assert told[1] == ""
        assert told[2] == "[not kept: /workspace/out/link: it is a link]\n"


async def test_the_limits_of_artifacts_hold_for_what_is_left(sandboxes):
    code = """
import os
open("/workspace/out/a", "wb").write(bytes(800_000))
open("/workspace/out/b", "wb").write(bytes(800_000))
open("/workspace/out/c", "wb").write(bytes(10))
"""
    async with sandboxes.open(max_artifact_size=1 << 20) as bridge:
        record = await bridge.run(code)
        assert record.status == "success"
        assert set(kept(record)) == {"a"}
        assert "artifact_too_large" in record.stderr.decode()
        many = "for n in range(1003): open(f'/workspace/out/{n:04}', 'w').close()"
        record = await bridge.run(many)
        assert (record.status, len(record.artifacts)) == ("success", 1000)
        assert "more than 1000 files" in record.stderr.decode()


LEFT = "open('/workspace/out/a.csv', 'w').write('partial'); open('/workspace/out/b.csv', 'w').write('x')\n"

TAKEN = {
    "time-out": ("while True: pass", "timeout"),
    "no memory left": ("b = b'x' * (2 << 30)\nb", "out_of_memory"),
    "exit": ("import os; os._exit(3)", "killed"),
    "exit as if it were well": ("import os; os._exit(0)", "killed"),
}


@pytest.mark.parametrize("end", TAKEN)
async def test_files_that_go_with_the_sandbox_are_counted_in_a_notice(sandboxes, end):
    code, status = TAKEN[end]
    seconds = 1 if status == "timeout" else 60
    async with sandboxes.open() as bridge:
        record = await bridge.run(LEFT + f"artifact('/workspace/out/b.csv', 'kept.csv')\n{code}", timeout=seconds)
        assert (record.status, [row["name"] for row in record.artifacts]) == (status, ["kept.csv"]), record.error
        assert any(
            notice.startswith("2 files in /workspace/out were lost with the sandbox") for notice in record.notices
        )
        record = await bridge.run(code, timeout=seconds)
        assert (record.status, [notice for notice in record.notices if "/workspace/out" in notice]) == (status, [])


async def test_a_cell_that_is_interrupted_keeps_its_own_files_and_the_next_one_does_not(sandboxes):
    async with sandboxes.open() as bridge:
        record = await bridge.run(f"{LEFT}while True: pass", session="s", timeout=1)
        assert (record.status, record.session.get("interrupted")) == ("timeout", True)
        assert kept(record) == {"a.csv": digest(b"partial"), "b.csv": digest(b"x")}
        assert not any("/workspace/out" in notice for notice in record.notices)
        record = await bridge.run("open('/workspace/out/c.csv', 'w').close()", session="s")
        assert kept(record) == {"c.csv": digest(b"")}
        many = "for number in range(1003): open(f'/workspace/out/f{number:04}', 'w').close()"
        record = await bridge.run(many)
        assert len(record.artifacts) == 1000
        assert record.stderr.decode().splitlines() == [
            "[not kept: /workspace/out/f1000: there are more than 1000 files]",
            "[not kept: 2 more files of /workspace/out]",
        ]


MANY = {
    "python": "for number in range(900): open(f'/workspace/out/{number:03}', 'w').write('x' * 9000)\nwhile True: pass",
    "javascript": "import { writeFileSync } from 'node:fs'\nfor (let number = 0; number < 900; number += 1)"
    " writeFileSync(`/workspace/out/${String(number).padStart(3, '0')}`, 'x'.repeat(9000))\nwhile (true) {}",
}


async def test_a_cell_that_ends_its_sandbox_tells_that_what_earlier_ones_have_left_is_kept(sandboxes):
    async with sandboxes.open() as bridge:
        assert set(kept(await bridge.run(LEFT, session="s"))) == {"a.csv", "b.csv"}
        record = await bridge.run("open('out/c', 'w').close(); import os; os._exit(0)", session="s")
        assert any(
            notice.startswith(
                "3 files in /workspace/out were lost with the sandbox, except what earlier cells had left"
            )
            for notice in record.notices
        )


@pytest.mark.parametrize("language", MANY)
async def test_a_cell_that_is_interrupted_again_while_it_keeps_files_refuses_none_of_them(both, language):
    async with both.open() as bridge:
        record = await bridge.run(MANY[language], session="s", timeout=1.5, language=language)
        assert (record.status, record.session.get("interrupted")) == ("timeout", True), record.error
        assert b"script_timeout" not in record.stderr
        rest = await bridge.run("1", session="s", language=language)
        assert rest.status == "success", rest.error
        assert len(kept(record)) + len(kept(rest)) == 900
        await bridge.end_session("s")


async def test_a_cell_keeps_what_is_new_or_has_changed(sandboxes):
    async with sandboxes.open() as bridge:

        async def cell(code):
            return set(kept(await bridge.run(code, session="s")))

        first = "open('out/a', 'w').write('1'); open('out/b', 'w').write('1')"
        assert await cell(first) == {"a", "b"}
        assert await cell("1") == set()
        assert await cell("open('out/b', 'w').write('22'); open('out/c', 'w').write('3')") == {"b", "c"}
        assert await cell("open('out/d', 'w').write('4'); artifact('out/d')") == {"d"}
        assert await cell("raise ValueError") == set()
        await bridge.end_session("s")


DOCUMENTS = {
    "python": """
import base64
def block(mime, data, **more): return {"mime_type": mime, "data": base64.b64encode(data).decode(), **more}
display(b"%PDF-1.7 x", b"RIFF0000WAVEfmt ", "<!DOCTYPE html><p>", bytearray(b"ID3 song"))
display(block("audio/wav", b"sound", type="audio"))
display(["said", block("audio/mpeg", b"sung", type="audio")], {"inner": {"mimeType": "application/pdf", "blob": "JVBERg=="}})
display([{"name": "a", "n": 1}, {"name": "b" * 100, "n": 2.5}])
display([{"n": n} for n in range(100)])
display([{str(at): at for at in range(30)}] * 2)
display([{"a": 1}, {"b": "x  \\n y"}])
display([{"nested": [1]}, {"nested": [2]}], [{"a": 1}], "plain", block("application/zip", b"zip"))
""",
    "javascript": """
const block = (mime_type, data, more = {}) => ({ mime_type, data: Buffer.from(data).toString("base64"), ...more });
const song = Uint8Array.from(Buffer.from("ID3 song")).buffer;
display(Buffer.from("%PDF-1.7 x"), Buffer.from("RIFF0000WAVEfmt "), "<!DOCTYPE html><p>", song);
display(block("audio/wav", "sound", { type: "audio" }));
display(["said", block("audio/mpeg", "sung")], { inner: { mimeType: "application/pdf", blob: "JVBERg==" } });
display([{ name: "a", n: 1 }, { name: "b".repeat(100), n: 2.5 }]);
display(Array.from({ length: 100 }, (_, n) => ({ n })));
display(Array(2).fill(Object.fromEntries(Array.from({ length: 30 }, (_, at) => [`${at}`, at]))));
display([{ a: 1 }, { b: "x  \\n y" }]);
display([{ nested: [1] }, { nested: [2] }], [{ a: 1 }], "plain", block("application/zip", "zip"));
""",
}
NEITHER = {
    "python": [
        "[{'nested': [1]}, {'nested': [2]}]",
        "[{'a': 1}]",
        "plain",
        "{'mime_type': 'application/zip', 'data': 'emlw'}",
    ],
    "javascript": [
        "[ { nested: [ 1 ] }, { nested: [ 2 ] } ]",
        "[ { a: 1 } ]",
        "plain",
        "{ mime_type: 'application/zip', data: 'emlw' }",
    ],
}


async def test_documents_are_kept_and_named_and_tables_are_compact_text(bilingual):
    async with bilingual.open() as opened:
        record = await opened.run(DOCUMENTS)
        out = lines(record)
        uri = f"artifact://{record.execution}/display"
        assert out[:5] == [
            f"[application/pdf of 10 bytes: {uri}-1.pdf]",
            f"[audio/wav of 16 bytes: {uri}-2.wav]",
            f"[text/html of 18 bytes: {uri}-3.html]",
            f"[audio/mpeg of 8 bytes: {uri}-4.mp3]",
            f"[audio/wav of 5 bytes: {uri}-5.wav]",
        ]
        plain = [line.translate(str.maketrans("", "", " '")) for line in out[5:7]]
        assert plain == [
            f"[said,[audio/mpegof4bytes:{uri}-6.mp3]]",
            f"{{inner:[application/pdfof4bytes:{uri}-7.pdf]}}",
        ]
        assert out[7:10] == ["name" + " " * 58 + "n", "a" + " " * 61 + "1", "b" * 59 + "…  2.5"]
        rows = out[10:]
        assert rows[:3] == ["n", "0", "1"]
        assert rows[25:29] == ["24", "…", "75", "76"]
        assert rows[52] == "[100 rows, 1 columns]"
        assert rows[53].split() == [str(at) for at in range(20)]
        assert rows[55:57] == [rows[53], "[2 rows, 30 columns]"]
        assert rows[57:60] == ["a  b", "1", "   x y"]
        assert rows[60:] == NEITHER[opened.language]
        assert [artifact["name"] for artifact in record.artifacts] == [
            f"display-{number}" for number in ("1.pdf", "2.wav", "3.html", "4.mp3", "5.wav", "6.mp3", "7.pdf")
        ]
        sung, page = [await resources.read(opened.bridge, f"{uri}-{name}") for name in ("6.mp3", "3.html")]
        assert (base64.b64decode(sung.blob), sung.mime_type) == (b"sung", "audio/mpeg")
        assert (page.text, page.mime_type) == ("<!DOCTYPE html><p>", "text/html")


async def test_floats_of_a_table_that_differ_look_different(sandboxes):
    record = await sandboxes.run(
        """
display([{"sum": 1234567.89, "lat": 48.1374327, "third": 1 / 3, "small": 2.5e-9, "n": 1.0, "none": float("nan")},
         {"sum": 1234568.12, "lat": 48.13743271, "third": 2.0, "small": 0.0, "n": 10**20, "none": None}])
"""
    )
    assert [line.split() for line in lines(record)] == [
        ["sum", "lat", "third", "small", "n", "none"],
        ["1234567.89", "48.1374327", "0.333333", "2.5e-09", "1.0", "NaN"],
        ["1234568.12", "48.13743271", "2.0", "0.0", "100000000000000000000", "None"],
    ]


async def test_numbers_of_a_table_that_differ_look_different_in_javascript(both):
    code = """
display([{ sum: 1234567.89, lat: 48.1374327, third: 1 / 3, small: 2.5e-9, near: 0.99999999, none: NaN },
         { sum: 1234568.12, lat: 48.13743271, third: 2, small: 0, near: 10 ** 20, none: null }]);
"""
    record = await both.run(code, language="javascript")
    assert [line.split() for line in lines(record)] == [
        ["sum", "lat", "third", "small", "near", "none"],
        ["1234567.89", "48.1374327", "0.333333", "2.5e-9", "0.99999999", "NaN"],
        ["1234568.12", "48.13743271", "2", "0", "100000000000000000000", "null"],
    ]


async def test_a_document_that_is_not_kept_is_said_to_be_not_and_a_large_one_is_whole(bilingual):
    code = {
        "python": """
page = "<html>" + "é" * 1_000_000
display(page)
display(page * 2)
""",
        "javascript": """
const page = "<html>" + "é".repeat(1_000_000);
display(page);
display(page.repeat(2));
""",
    }
    async with bilingual.open(max_artifact_size=3 << 20) as opened:
        record = await opened.run(code)
        whole, refused = lines(record)
        uri = f"artifact://{record.execution}/display"
        assert whole == f"[text/html of 2000006 bytes: {uri}-1.html]"
        assert refused.startswith("[text/html of 4000012 bytes not kept: [artifact_too_large] ")
        assert kept(record) == {"display-1.html": digest(("<html>" + "é" * 1_000_000).encode())}


async def test_what_has_no_bytes_of_a_document_is_displayed_as_it_is(bilingual):
    code = {
        "python": "display({'mime_type': 'audio/wav', 'data': 'A==='}, {'mime_type': 'application/pdf', 'data': ''})",
        "javascript": "display({mime_type: 'audio/wav', data: 'A==='}, {mime_type: 'application/pdf', data: ''})",
    }
    async with bilingual.open() as opened:
        record = await opened.run(code)
        assert (record.status, len(lines(record)), record.artifacts) == ("success", 2, []), record.error
        assert "undefined" not in record.stdout.decode()


async def test_a_document_is_kept_while_an_artifact_is_written(bilingual):
    code = {
        "python": """
import threading
open("/tmp/large.bin", "wb").write(bytes(9 << 20))
thread = threading.Thread(target=artifact, args=("/tmp/large.bin",))
thread.start()
display(b"%PDF-1")
thread.join()
""",
        "javascript": """
require("fs").writeFileSync("/tmp/large.bin", Buffer.alloc(9 << 20));
const kept = artifact("/tmp/large.bin");
for (let at = 0; at < 20; at += 1) await new Promise((resolve) => setImmediate(resolve));
display(Buffer.from("%PDF-1"));
await kept;
""",
    }
    async with bilingual.open() as opened:
        record = await opened.run(code)
        assert record.status == "success", record.error
        assert kept(record) == {"display-1.pdf": digest(b"%PDF-1"), "large.bin": digest(bytes(9 << 20))}


async def test_each_cell_of_a_session_displays_documents_and_a_replay_shows_the_same(bilingual):
    code = {"python": "display('<html>one')", "javascript": "display('<html>one')"}
    async with bilingual.open() as opened:
        for _ in range(2):
            record = await opened.run(code, session="s")
            assert lines(record) == [f"[text/html of 9 bytes: artifact://{record.execution}/display-1.html]"]
        await opened.bridge.end_session("s")
        record = await opened.run(code)
        stored = await opened.bridge.programs.store.execution(record.execution)
        assert (await opened.bridge.replay_execution(stored)).difference is None


async def test_objects_with_an_html_form_are_kept_beside_their_text(sandboxes):
    code = """
class Page:
    def _repr_html_(self): return "<b>page</b>"
class Model:
    def __repr__(self): return "Model()"
    def _repr_html_(self): return "<b>model</b>"
class Broken:
    def __repr__(self): return "Broken()"
    def _repr_html_(self): raise ValueError
display(Page(), Model(), Broken())
Model()
"""
    async with sandboxes.open() as bridge:
        record = await bridge.run(code)
        uri = f"artifact://{record.execution}/display"
        assert lines(record) == [
            f"[text/html of 11 bytes: {uri}-1.html]",
            "Model()",
            f"[text/html of 12 bytes: {uri}-2.html]",
            "Broken()",
        ]
        assert record.value == "Model()"
        assert len(record.artifacts) == 2
        page = await resources.read(bridge, f"{uri}-1.html")
        assert (page.text, page.mime_type) == ("<b>page</b>", "text/html")
