"""Images: what a script shows as one is one, once, and of a size that a client takes."""

import base64
import json
import os

import anyio
import pytest
from execution_fixtures import lines, printed

from mcp_bridge.guest.values import images
from mcp_bridge.host.engine_setup import prepare
from mcp_bridge.server.answers import displays
from mcp_bridge.wire.messages import MAX_IMAGE_BYTES

pytestmark = pytest.mark.timeout(180)


def kinds(record):
    return [next(iter(shown)) for shown in record.displays]


def image_sizes(record):
    return [len(base64.b64decode(shown["image/png"])) for shown in record.displays if "image/png" in shown]


# --- what tools give ---


@pytest.mark.parametrize(
    "shown",
    [
        "r",
        "display(r)",
        "r[1]",
        "display(r[1])",
        "{'logo': r[1], 'n': 1}",
        "[(1, [r[1]])]",
        "display(*r)",
        "await everything.get_tiny_image.raw()",
        "base64.b64decode(r[1]['data'])",
        "[base64.b64decode(r[1]['data'])]",
        "display(r, r[1])\nr",
    ],
)
async def test_a_tools_image_is_an_image_however_it_is_shown_and_once(sandboxes, everything_server, shown):
    code = f"import base64\nfrom mcp.servers import everything\nr = await everything.get_tiny_image()\n{shown}"
    record = await sandboxes.run(code, everything_server)
    text = printed(record) + (record.value or "")
    (image,) = displays.checked(record.displays)
    assert isinstance(image, displays.Image)
    assert image.mime_type == "image/png"
    assert image.data[:40] not in text, "its base64 is nothing to read"
    assert text == "" or f"<image/png, {image.size} bytes>" in text or "MCP logo" in text


async def test_a_tools_image_that_is_printed_is_one_line_and_has_everything(sandboxes, everything_server):
    record = await sandboxes.run(
        """
import base64, copy, json, pickle
from mcp.servers import everything
r = await everything.get_tiny_image()
print(r)
print(r[1], f"{r[1]}", str(r[0]) == r[0])
raw = await everything.get_tiny_image.raw()
print(raw["content"][1])
data = base64.b64decode(r[1]["data"])
print(data[:4], json.loads(json.dumps(r[1])) == dict(r[1]), pickle.loads(pickle.dumps(r)) == r, copy.deepcopy(r) == r)
gzipped = await everything.gzip_file_as_resource(name="a.gz", data="data:text/plain,hello", outputType="resource")
print(gzipped)
r[1].pop("data")
print(r[1])
display(raw)
""",
        everything_server,
    )
    short = "<image/png, 4033 bytes; display(it) shows it, ['data'] is its base64>"
    out = lines(record)
    assert out[0] == f"[\"Here's the image you requested:\", {short}, 'The image above is the MCP logo.']"
    assert out[1:3] == [f"{short} {short} True", short]
    assert out[3] == "b'\\x89PNG' True True True"
    assert "application/gzip" in out[4]
    assert len(out[4]) < 200
    assert out[5] == "{'type': 'image', 'mime_type': 'image/png'}"
    assert kinds(record) == ["image/png"]


async def test_what_stands_around_an_image_is_text_and_what_has_none_is_what_it_was(sandboxes, everything_server):
    record = await sandboxes.run(
        """
from mcp.servers import everything
from collections import OrderedDict
class Odd(dict):
    def __repr__(self): return "odd"
r = await everything.get_tiny_image()
r.append(Odd(a=1))
itself = []
itself.append(itself)
display(itself, {"mime_type": "image/png", "data": None}, {"type": "image"}, OrderedDict(a=1), None)
r
""",
        everything_server,
    )
    shown = ["[[...]]", "{'mime_type': 'image/png', 'data': None}", "{'type': 'image'}"]
    assert [line for line in lines(record) if "OrderedDict" not in line] == [*shown, "None"]
    assert record.value.startswith('["Here\'s the image you requested:", <image/png, ')
    assert record.value.endswith("'The image above is the MCP logo.', odd]")


BEHIND_DATA = {
    "python": "image = b'\\x89PNG\\r\\n\\x1a\\n\\0\\0\\0\\rIHDR\\0\\0\\0\\1\\0\\0\\0\\1' + bytes(100)\n"
    "display({'rows': [[1, 2.5, 'x', None, True]] * 5000, 'chart': image})",
    "javascript": "const data = Buffer.concat([Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB', 'base64'), Buffer.alloc(100)]).toString('base64')\n"
    "display({ rows: Array.from({ length: 5000 }, () => [1, 2.5, 'x', null, true]), "
    "chart: { mime_type: 'image/png', data } })",
}


async def test_an_image_behind_much_data_is_an_image(bilingual):
    record = await bilingual.run(BEHIND_DATA[bilingual.language])
    assert record.status == "success", record.error
    assert kinds(record) == ["image/png"]
    assert "iVBOR" not in printed(record)


async def test_things_in_a_list_are_not_asked_for_more_than_they_have(sandboxes, everything_server, time_server):
    """A server's module is asked for its tools by any attribute; a class of the script's may raise."""
    record = await sandboxes.run(
        """
from mcp.servers import everything, time
class Raises:
    def __getattr__(self, name): raise RuntimeError(name)
    def __repr__(self): return "raises"
class Rich:
    def _repr_png_(self): raise ValueError("no picture")
    def __repr__(self): return "rich"
[everything, time, Raises(), Rich()]
""",
        everything_server,
        time_server,
    )
    assert record.value == "[<MCP server 'everything'>, <MCP server 'time'>, raises, rich]"
    assert record.calls == 0


# --- what is too large ---


async def test_an_image_that_is_too_large_is_kept_and_the_line_says_why_it_is_not_shown(sandboxes):
    large = "b'\\x89PNG\\r\\n\\x1a\\n\\0\\0\\0\\rIHDR\\0\\0\\0\\1\\0\\0\\0\\1' + bytes(5_000_000)"
    record = await sandboxes.run(f"display({large})\ndisplay([{large}])\n{large}\n")
    (shown,) = displays.checked(record.displays)
    assert isinstance(shown, displays.Text)
    assert shown.text.startswith(
        "[image/png of 5000024 bytes not shown, since the limit is 4194304 bytes, and Pillow, which scales, "
    )
    assert '(the operator\'s setting `profile = "data"` brings it)' in shown.text
    assert shown.text.endswith(f": artifact://{record.execution}/display-1.png]")
    assert [(row["name"], row["size"]) for row in record.artifacts] == [("display-1.png", 5_000_024)]
    # Larger than a frame of the channel may be.
    record = await sandboxes.run("display(b'\\xff\\xd8\\xff' + bytes(20_000_000))\nprint('went on')", memory=512 << 20)
    assert lines(record) == ["went on"]
    assert kinds(record) == ["text/plain"]


def test_an_image_in_lines_of_base64_is_sent_without_them():
    data = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1" + bytes(images.HEAD_CHARS)
    in_lines = base64.encodebytes(data).decode()
    assert images.fitting("image/png", in_lines) == {"image/png": base64.b64encode(data).decode()}


HEADERS = {
    "png": "89504e470d0a1a0a0000000d4948445200002328000000030800000000",
    "jpeg": "ffd8ffe000104a46494600010100000100010000ffc0001108000323280100",
    "gif": "47494638396128230300800000",
    "webp lossy": "524946461e000000574542505650382012000000d001009d012a28230300000000000000",
    "webp lossless": "524946461e0000005745425056503" + "84c120000002f27a30000000000000000000000000000",
    "webp extended": "524946461e00000057454250565038580a00000000000000272300020000",
    "jpeg without a size": "ffd8ffe0616263",
    "png of eight bytes": "89504e470d0a1a0a",
    "gif of no pixels": "47494638396100000300800000",
}
"""Images that clients' models refuse: of 9000 pixels by 3, and what has no size."""


async def test_images_that_models_refuse_are_kept_as_files_and_said_to_be(bilingual):
    show = {"python": "display(bytes.fromhex('{}'))\n", "javascript": "display(Buffer.from('{}', 'hex'));\n"}
    code = "".join(show[bilingual.language].format(header) for header in HEADERS.values())
    record = await bilingual.run(code)
    assert printed(record) == ""
    told = [shown["text/plain"] for shown in record.displays]
    for name, line in zip(HEADERS, told, strict=True):
        why = "its header can't be read" if " of " in name or "without" in name else "it has 9000x3"
        assert why in line, (name, line)
    assert [row["size"] for row in record.artifacts] == [len(bytes.fromhex(header)) for header in HEADERS.values()]


async def test_an_image_has_the_type_that_its_content_has(bilingual):
    record = await bilingual.run("display({'mime_type': 'image/jpeg', 'data': 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB'})")
    assert (printed(record), kinds(record)) == ("", ["image/png"])


BUNDLES = """
class Bundle:
    def __init__(self, bundle): self.bundle = bundle
    def _repr_mimebundle_(self, include=None, exclude=None):
        if self.bundle is None: raise ValueError("no bundle")
        return self.bundle
    def __repr__(self): return "Bundle()"
class Method(Bundle):
    def _repr_png_(self): return PNG, {"width": 1}
    def _repr_html_(self): return "<i>", {}
import base64
PNG = b"\\x89PNG\\r\\n\\x1a\\n\\0\\0\\0\\rIHDR\\0\\0\\0\\1\\0\\0\\0\\1"
display(
    Bundle({"image/png": PNG, "text/html": "<b>"}),
    Bundle(({"image/png": base64.encodebytes(PNG + b"1").decode()}, {})),
    Bundle({"text/markdown": "# title", "text/html": "<b>"}),
    Bundle({"image/svg+xml": "<svg/>"}),
    Bundle({"text/html": "<b>", "text/plain": "a chart"}),
    Bundle({"application/pdf": base64.b64encode(b"%PDF-1").decode()}),
    Bundle({"text/plain": "only text"}),
    Bundle({"application/json": {}}), Bundle(None), Bundle(7),
    Method({"text/html": "<b>"}),
)
"""


async def test_an_object_is_shown_by_its_bundle_and_by_its_methods_where_that_has_nothing(sandboxes):
    record = await sandboxes.run(BUNDLES)
    uri = f"artifact://{record.execution}/display"
    assert lines(record) == [
        "a chart",
        f"[text/html of 3 bytes: {uri}-1.html]",
        "Bundle()",
        f"[application/pdf of 6 bytes: {uri}-2.pdf]",
        "only text",
        *["Bundle()"] * 3,
    ]
    assert kinds(record) == ["image/png", "image/png", "text/markdown", "image/svg+xml"], "the last one is the first"


ALONE = """
import matplotlib.pyplot as plt
plt.bar([1, 2], [1, 2]); plt.title("B")
"""

SHOWS = """
import matplotlib.pyplot as plt
plt.plot([1, 3]); plt.title("A")
print(len(plt.get_fignums()), end=" "); plt.show(); print(len(plt.get_fignums()))
plt.bar([1, 2], [1, 2]); plt.title("B")
print(len(plt.get_fignums()), end=" "); plt.show(block=False); print(len(plt.get_fignums()))
plt.show()
plt.plot([5, 4]); plt.title("left open")
print(len(plt.get_fignums()))
"""
"""Three figures, of which the second is the one that `ALONE` draws."""

TABLES = """
import pandas as pd
rows = pd.DataFrame({"g": ["a", "b", "a"], "h": ["u", "v", "v"], "n": [1.5, 2.5, 11247.75]})
display(
    pd.DataFrame({"lat": [48.1374327], "epoch": [1767225600.5], "pct": [0.99999999]}),
    pd.DataFrame({"n": [1234567.89, 1234568.12], "third": [1 / 3, 2 / 3], "small": [1e-7, 1.0], "t": ["x", None]}),
    pd.DataFrame({"near": [0.25, 0.250000000001], "e": [float("nan"), float("inf")], "na": [pd.NA, 1]}),
    rows.groupby("g")["n"].agg(["sum"]),
    pd.crosstab(rows.g, rows.h),
    rows.groupby(["g", "h"]).agg({"n": ["sum", "max"]}),
    pd.DataFrame({"d": [1.0, 2.0]}, index=pd.date_range("2026-01-01", periods=2)),
    pd.DataFrame({"t": pd.to_datetime(["2026-01-01 00:00", "2026-01-01 12:30"])}),
    pd.DataFrame({"a": []}),
    pd.DataFrame(),
    pd.DataFrame(index=["only"]),
    pd.DataFrame({"t": [pd.Timestamp.min, pd.Timestamp("2026-01-01")]}),
)
with pd.option_context("display.max_rows", None, "display.max_columns", None, "display.max_colwidth", None):
    display(pd.DataFrame({"n": range(5010)}), pd.DataFrame({str(at): [1] for at in range(502)}))
    display(pd.DataFrame({"t": ["x" * 2000]}))
with pd.option_context("display.max_rows", 0):
    display(pd.DataFrame({"n": range(100)}))
with pd.option_context("display.max_rows", 4, "display.precision", 2):
    display(pd.DataFrame({"x": [number / 3 for number in range(10)]}))
with pd.option_context("display.float_format", "{:,.1f}".format):
    display(pd.DataFrame({"x": [1234567.891]}))
"""

TABLES_SHOWN = """\
   lat        epoch         pct
0  48.137433  1767225600.5  0.99999999
   n           third     small  t
0  1234567.89  0.333333  1e-07  x
1  1234568.12  0.666667  1.0    NaN
   near            e    na
0  0.25            NaN  <NA>
1  0.250000000001  inf  1
g  sum
a  11249.25
b  2.5
h  u  v
g
a  1  1
b  0  1
      n         n
g  h  sum       max
a  u  1.5       1.5
a  v  11247.75  11247.75
b  v  2.5       2.5
            d
2026-01-01  1.0
2026-01-02  2.0
   t
0  2026-01-01 00:00:00
1  2026-01-01 12:30:00
  a
[0 rows, 1 columns]
[0 rows, 0 columns]
only
[1 rows, 0 columns]
   t
0  1677-09-21 00:12:43.145224193
1  2026-01-01 00:00:00
   x
0  0.00
1  0.33
…
8  2.67
9  3.00
[10 rows, 1 columns]
   x
0  1,234,567.9
"""


async def shows_end_figures_and_tables_are_true(bridge):
    for session in (None, "shows"):
        record = await bridge.run(SHOWS, session=session)
        assert (record.status, kinds(record)) == ("success", ["image/png"] * 3), record.error
        assert len(set(image_sizes(record))) == 3
        assert record.stdout.decode() == "1 0\n1 1\n1\n"
        assert record.stderr == b"", "no word of a backend that shows nothing"
        assert record.displays[1]["image/png"] == (await bridge.run(ALONE)).displays[0]["image/png"]
    await bridge.end_session("shows")
    tables = await bridge.run(TABLES)
    assert tables.status == "success", tables.error
    text = printed(tables)
    begin, end = text.index("\n      n\n") + 1, text.index("   x\n0  0.00")
    bounded = text[begin:end].splitlines()
    assert bounded[5001:5003] == ["5009  5009", "[5010 rows, 1 columns]"]
    assert (len(bounded[5003].split()), bounded[5005]) == (500, "[1 rows, 502 columns]")
    assert bounded[5007] == f"0  {'x' * 999}…"
    assert bounded[5008:] == [
        "    n",
        *(f"{n}   {n}" for n in range(10)),
        *bounded[5019:5059],
        "99  99",
        "[100 rows, 1 columns]",
    ]
    assert text[:begin] + text[end:] == TABLES_SHOWN
    # A class and a format that make no text.
    cell = "class Cell:\n    def __str__(self): raise ValueError\n    __repr__ = __str__\n"
    odd = "pd.set_option('display.float_format', lambda value: 1 / 0)\npd.DataFrame({'x': [Cell()], 'y': [1.5]})"
    record = await bridge.run(f"import pandas as pd\n{cell}{odd}")
    assert (record.status, record.value) == ("success", "   x       y\n0  <Cell>  1.5"), record.error
    await shows_are_left_open(bridge)


async def shows_are_left_open(bridge):
    """By `pause` and a show that doesn't block: the figure is drawn on, and saved as it is in the end."""
    paused = """
import os, matplotlib.pyplot as plt
plt.plot([1, 3]); plt.pause(0.01); plt.show(block=False)
print(len(plt.get_fignums()), len(plt.gca().lines))
plt.plot([2, 2])
"""
    record = await bridge.run(paused)
    assert (record.status, printed(record), kinds(record)) == ("success", "1 1\n", ["image/png"]), record.error
    forked = """
import os
if not os.fork():
    import matplotlib.pyplot as plt
    plt.plot([1, 3]); plt.show(); os.write(1, b"shown"); os._exit(0)
os.wait()
"""
    record = await bridge.run(forked)
    assert (record.status, printed(record).strip()) == ("success", "shown"), record.stderr


LARGE_ONES = """
import io, os, resource, PIL.Image
def show(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    display(file.getvalue())
show(PIL.Image.new("RGBA", (8500, 4000)), "PNG")
show(PIL.Image.new("RGBA", (8500, 1880)), "PNG")
show(PIL.Image.new("L", (9000, 6000)), "JPEG")
show(PIL.Image.frombytes("I;16", (1600, 1600), os.urandom(1600 * 1600 * 2)), "PNG")
show(PIL.Image.new("L", (9000, 6000)), "JPEG", progressive=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""
"""Beyond what is scaled; the most that is; a JPEG, which is decoded at a half; colours of 16 bits; a progressive JPEG."""


async def wide_ones_and_what_cannot_be_drawn_are_told(bridge):
    large = await bridge.run(LARGE_ONES)
    assert large.status == "success", large.error
    told = [shown["text/plain"] for shown in large.displays if "text/plain" in shown]
    scaled = ("8500x1880 to 8000x1769", "9000x6000 to 4500x3000", "1600x1600 to ")
    for why, line in zip(("too much memory", *scaled, "too much memory"), told, strict=True):
        assert why in line, (why, line)
    assert int(printed(large)) < 300, "megabytes; a sandbox may have 512"
    wide = await bridge.run("import PIL.Image\ndisplay(PIL.Image.new('RGB', (12000, 300)))")
    assert kinds(wide) == ["image/png", "text/plain"]
    assert "scaled down from 12000x300 to 8000x200" in wide.displays[1]["text/plain"]
    undrawn = r"plt.title(r'$\frac{$'); plt.figure(); plt.plot([1, 2]); print('drawn')"
    for end in ("", "\nplt.show(); print(plt.get_fignums())"):
        code = f"import matplotlib.pyplot as plt\nplt.plot([1])\nplt.figure(); {undrawn}{end}"
        record = await bridge.run(code, session="figures")
        assert (record.status, kinds(record)) == ("success", ["image/png"] * 2), record.error
        assert "[figure 2 can't be drawn: " in record.stderr.decode()
    record = await bridge.run("print('next')", session="figures")
    assert (record.status, kinds(record), record.stderr) == ("success", [], b"")


@pytest.mark.xdist_group("images")
@pytest.mark.timeout(500)
async def test_figures_are_shown_once_and_large_images_scaled_down(sandboxes, setup):
    """With the packages of the data profile, in the image that `mcp-bridge image build --profile data` has made."""
    # How the package index is reached is in the environment.
    outside = {name: os.environ[name] for name in os.environ.keys() - setup.env.keys() if "MCP_BRIDGE" not in name}
    words = ("image", "build", "--profile", "data", "--json")
    ended = await anyio.to_thread.run_sync(lambda: setup.run(*words, env=outside, timeout=400))
    assert ended.returncode == 0, ended.stderr
    settings = sandboxes.settings.model_copy(update={"profile": "data"})
    prepared = await prepare(settings)
    assert prepared.image.reference == json.loads(ended.stdout)["reference"]
    async with sandboxes.open(profile="data", timeout=60, memory=1 << 30, bounded=False) as bridge:
        bridge.sandboxes.prepared = prepared

        async def shown(code):
            record = await bridge.run("import io\nimport matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n" + code)
            assert record.status == "success", record.error
            return record

        once = ["", "display(fig)", "display(fig); display(fig)", "fig", "[fig, ax]", "display(fig)\nfig"]
        once += [
            "plt.savefig('/tmp/a.png', dpi=50)\nartifact('/tmp/a.png')",
            "plt.savefig('/tmp/a.png', dpi=50)\ndisplay(open('/tmp/a.png', 'rb').read())",
            "b = io.BytesIO()\nfig.savefig(b, format='png')\nb.getvalue()",
            "import PIL.Image\nfig.savefig('/tmp/a.png')\nplt.close(fig)\nPIL.Image.open('/tmp/a.png')",
        ]
        for code in once:
            assert kinds(await shown(code)) == ["image/png"], code
        assert kinds(await shown("plt.close(fig)\nfig.savefig('/tmp/a.png')")) == [], "not shown at all"
        two = await shown("plt.figure()\nplt.plot([1, 2])")
        assert len(image_sizes(two)) == 2
        changed = await shown("display(fig)\nax.plot([1, 2])")
        assert len(set(image_sizes(changed))) == 2, "it is another picture by then"

        noise = "import numpy as np, PIL.Image\nimage = PIL.Image.fromarray(np.random.randint(0, 255, (1500, 1500, 3), 'uint8'))\n"
        for last in ("image", "[image]", "b = io.BytesIO()\nimage.save(b, 'PNG')\nb.getvalue()"):
            record = await shown("plt.close('all')\n" + noise + last)
            picture, said = displays.checked(record.displays)
            assert isinstance(picture, displays.Image)
            assert picture.size <= MAX_IMAGE_BYTES
            assert "scaled down from 1500x1500 to " in said.text
        photo = noise + "b = io.BytesIO()\nimage.resize((4000, 4000)).save(b, 'JPEG', quality=100)\nb.getvalue()"
        record = await shown("plt.close('all')\n" + photo)
        assert kinds(record) == ["image/jpeg", "text/plain"]
        broken = await shown(
            "plt.close('all')\nb'\\x89PNG\\r\\n\\x1a\\n\\0\\0\\0\\rIHDR\\0\\0\\0\\1\\0\\0\\0\\1' + bytes(5_000_000)"
        )
        assert "it can't be scaled down" in broken.displays[0]["text/plain"]
        await wide_ones_and_what_cannot_be_drawn_are_told(bridge)

        table = await shown(
            "plt.close('all')\nimport pandas as pd\ndisplay(pd.DataFrame({'name': ['a', 'b'], 'n': [1, 2.5]}))\n"
            "pd.DataFrame({'n': range(100)})"
        )
        assert table.stdout.decode() == "   name  n\n0  a     1.0\n1  b     2.5\n"
        rows = table.value.splitlines()
        assert (rows[0], rows[1].split(), rows[26], rows[-1]) == ("    n", ["0", "0"], "…", "[100 rows, 1 columns]")
        failed = await bridge.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nraise ValueError")
        assert (failed.status, kinds(failed)) == ("error", ["image/png"])
        many = await shown("for number in range(24): plt.figure().text(0.5, 0.5, str(number))")
        assert len(kinds(many)) == 20
        assert many.stdout.decode() == "[5 more open figures: display(figure) shows one]\n"
        await shows_end_figures_and_tables_are_true(bridge)
        cell = await bridge.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])", session="s")
        assert kinds(cell) == ["image/png"]
        assert kinds(await bridge.run("1", session="s")) == []
        await bridge.end_session("s")
