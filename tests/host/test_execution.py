"""One script from request to record: values, errors, exits, time-outs, memory, calls, files; and nothing left behind."""

import asyncio
import json
import sys
from pathlib import Path

import anyio
import pytest
from echoing_server import echoing, tool
from execution_fixtures import lines, printed, until
from servers.specs import faulty

from mcp_bridge.downstream.client import supervised_server
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.erasure_with_files import erase
from mcp_bridge.host import guest_bundle
from mcp_bridge.host.request_handlers import Requests
from mcp_bridge.ledger.log.payloads import RequestOutcome, understood

MEETING = ServerSpec(
    name="meeting", command=sys.executable, args=(str(Path(__file__).parents[1] / "support/servers" / "meeting.py"),)
)


@pytest.fixture
async def bridge(sandboxes):
    """For tests that need no server: the engine's cost is theirs, the bridge's is shared."""
    return Runs(sandboxes)


class Runs:
    def __init__(self, sandboxes):
        self._sandboxes = sandboxes

    async def all(self, *codes, **options):
        """Several scripts at once, each in its own sandbox; their records in order."""
        records = [None] * len(codes)

        async with self._sandboxes.open() as bridge, asyncio.TaskGroup() as tasks:

            async def one(place, code):
                records[place] = await bridge.run(code, **options)

            for place, code in enumerate(codes):
                tasks.create_task(one(place, code))
        return records


# --- values ---

VALUES = {
    "1 + 1": "2",
    "x = 1": None,
    "None": None,
    "'text'": "'text'",
    "print('a')": None,
    "x = 3\nx": "3",
    "import asyncio\nawait asyncio.sleep(0, 'awaited')": "'awaited'",
    "async def f():\n    return 7\nawait f()": "7",
    "[await f() for f in [__import__('asyncio').sleep]][0:0] if 0 else 5": "5",
    "if True:\n    5": None,
    "def f():\n    return 1": None,
    "'a\\ud800'": "'a\\ud800'",
    "class Odd:\n    def __repr__(self): return 'a\\ud800'\nOdd()": "a\\ud800",
    "# only a comment\n": None,
    "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    return 'run'\nasyncio.run(main())": "'run'",
    "async with __import__('contextlib').AsyncExitStack() as s: pass\n4": "4",
    "async for x in (i async for i in (j async for j in __import__('mcp').nothing)) if 0 else (): pass": ...,
    "__name__": "'__main__'",
    "import __main__\n__main__.__dict__ is globals()": "True",
    "import sys\nsys.argv": "['script']",
}


async def test_the_last_expressions_value_is_shown(bridge):
    cases = {code: value for code, value in VALUES.items() if value is not ...}
    records = await bridge.all(*cases)
    for record, (code, value) in zip(records, cases.items(), strict=True):
        assert (code, record.status, record.value) == (code, "success", value), record.error


async def test_a_long_value_is_cut_in_the_middle_and_says_so(bridge):
    plain, control, wide = await bridge.all(
        "'x' * 20_000_000", "'\\x00' * 9_000_000", "type('T', (), {'__repr__': lambda s: '\\x01\\u20ac' * 4_500_000})()"
    )
    for record in (plain, control, wide):
        assert record.status == "success", record.error
        assert "characters cut" in record.value
    assert plain.value.startswith("'xxx")
    assert plain.value.endswith("xxx'")


# --- errors ---


async def test_an_exception_is_told_with_type_message_line_and_the_users_frames_only(bridge):
    plain, library, coroutine, local = await bridge.all(
        "def f():\n    return 1 / 0\n\nprint('x')\nf()",
        "import json\n\njson.loads('{')",
        "import asyncio\nasync def f():\n    await asyncio.wait_for(asyncio.sleep(9), 0.01)\nawait f()",
        "open('/tmp/m.py', 'w').write('def g():\\n    raise KeyError(7)\\n')\nimport sys\nsys.path.append('/tmp')\nimport m\nm.g()",
    )
    assert plain.exit_code == 1
    assert plain.error["code"] == "script_error"
    assert (plain.error["type"], plain.error["message"]) == ("ZeroDivisionError", "division by zero")
    assert plain.error["line"] == 2
    # Python 3.14 marks the call, too.
    assert plain.error["traceback"].replace("    f()\n    ~^^\n", "    f()\n") == (
        "Traceback (most recent call last):\n"
        '  File "<script>", line 5, in <module>\n'
        "    f()\n"
        '  File "<script>", line 2, in f\n'
        "    return 1 / 0\n"
        "           ~~^~~\n"
        "ZeroDivisionError: division by zero"
    )
    assert library.error["type"] == "JSONDecodeError"
    assert library.error["line"] == 3
    assert "decoder.py" not in library.error["traceback"]
    assert (coroutine.error["type"], coroutine.error["line"]) == ("TimeoutError", 3)
    assert "tasks.py" not in coroutine.error["traceback"]
    assert (local.error["type"], local.error["message"], local.error["line"]) == ("KeyError", "7", 5)
    assert '"/tmp/m.py", line 2, in g' in local.error["traceback"]
    for record in (plain, library, coroutine, local):
        assert record.status == "error"
        assert "<bridge>" not in record.error["traceback"]
        assert "importlib" not in record.error["traceback"]


ODD_ERRORS = {
    "raise ExceptionGroup('several', [ValueError('a'), KeyError('b')])": ("ExceptionGroup", "several (2 sub-exceptions)"),
    "try:\n    1 / 0\nexcept Exception as e:\n    raise RuntimeError('second') from e": ("RuntimeError", "second"),
    "e = ValueError('noted')\ne.add_note('a note')\nraise e": ("ValueError", "noted\na note"),
    "class Bad(Exception):\n    def __str__(self): raise TypeError\nraise Bad": ("Bad", "<exception str() failed>"),
    "class Bad(Exception):\n    def __str__(self): return 7\nraise Bad": ("Bad", "<exception str() failed>"),
    "class Bad(Exception):\n    __notes__ = 7\nraise Bad('m')": ("Bad", "m"),
    "def f(): f()\nf()": ("RecursionError", "maximum recursion depth exceeded"),
    "raise ValueError('a\\ud800')": ("ValueError", "a\\ud800"),
    "raise ValueError('x' * 50_000_000)": ("ValueError", ...),
    "raise KeyboardInterrupt('mine')": ("KeyboardInterrupt", "mine"),
    "raise BaseException('base')": ("BaseException", "base"),
    "raise GeneratorExit": ("GeneratorExit", ""),
    "import asyncio\nraise asyncio.CancelledError": ("CancelledError", ""),
    "import asyncio\nasyncio.current_task().cancel()\nawait asyncio.sleep(1)": ("CancelledError", ""),
    "e = None\nfor n in range(5000):\n    f = ValueError(n)\n    f.__context__ = e\n    e = f\nraise e": ("ValueError", "4999"),
    "class M(type):\n    __name__ = property(lambda c: 1 / 0)\nclass E(Exception, metaclass=M): pass\nraise E('m')": ("E", "m"),
    "class E(Exception): line = 'no number'\nraise E": ("E", ""),
    "import sys\nsys.setrecursionlimit(50)\ndef f(): f()\nf()": ("RecursionError", ...),
    "exec('1 / 0')": ("ZeroDivisionError", "division by zero"),
    "import asyncio\nawait asyncio.gather(*[asyncio.to_thread(int, 'a') for _ in range(3)])": ("ValueError", ...),
    "import nonexistent_module": (
        "ModuleNotFoundError",
        "No module named 'nonexistent_module'\n"
        "The image has the standard library only. More comes with the operator's setting `packages`.",
    ),
    "assert False, 'claim'": ("AssertionError", "claim"),
    "class R:\n    def __repr__(self): raise OSError('shown')\nR()": ("OSError", "shown"),
    "import traceback\ntraceback.TracebackException = None\n1 / 0": ("ZeroDivisionError", "division by zero"),
    # Later versions look for a similar name among these.
    "globals()[1] = 2\nzzz": ("NameError", ...),
}  # fmt: skip


async def test_a_traceback_that_nobody_could_wait_for_has_its_ends(bridge):
    deep = "import sys\nsys.setrecursionlimit(30_000)\ndef f(n): return f(n + 1)\n"
    plain, cause = await bridge.all(
        f"{deep}f(0)", f"{deep}try: f(0)\nexcept RecursionError as exc: raise ValueError('deep') from exc"
    )
    assert (plain.error["type"], plain.error["line"]) == ("RecursionError", 3)
    assert plain.error["message"] == "maximum recursion depth exceeded"
    assert (cause.error["type"], cause.error["message"], cause.error["line"]) == ("ValueError", "deep", 5)
    noted = f"{deep}try: f(0)\nexcept RecursionError as exc:\n    exc.__notes__ = NOTES\n    raise"
    for odd in await bridge.all(*(noted.replace("NOTES", notes) for notes in ("('a',)", "None"))):
        assert (odd.error["type"], odd.error["message"]) == ("RecursionError", plain.error["message"])
    for record, first in ((plain, "f(0)"), (cause, "try: f(0)")):
        assert f'File "<script>", line 4, in <module>\n    {first}' in record.error["traceback"]
        assert " calls in the middle are left out of the traceback)" in record.error["traceback"]


async def test_odd_exceptions_are_told_as_well_as_they_can_be(bridge):
    records = await bridge.all(*ODD_ERRORS)
    for record, (code, (kind, message)) in zip(records, ODD_ERRORS.items(), strict=True):
        assert (code, record.status) == (code, "error")
        assert record.exit_code == 1
        assert record.error["type"] == kind, code
        assert message is ... or record.error["message"] == message, code
        assert len(record.error["message"]) < 50_000
        assert len(record.error["traceback"]) < 50_000
        assert "<bridge>" not in record.error["traceback"]
        assert code in {"raise GeneratorExit"} or isinstance(record.error["line"], int), code


async def test_chains_and_groups_show_every_exceptions_user_frames(bridge):
    chain, group = await bridge.all(*list(ODD_ERRORS)[1::-1])
    assert "ZeroDivisionError" in chain.error["traceback"]
    assert "direct cause" in chain.error["traceback"]
    assert chain.error["line"] == 4
    assert "ValueError: a" in group.error["traceback"]
    assert "KeyError: 'b'" in group.error["traceback"]


BAD_SYNTAX = {
    "x = 1\ny = = 2": (2, "y = = 2\n        ^"),
    "def f():\nreturn 1": (2, "return 1\n    ^"),
    "print('a": (1, "print('a\n          ^"),
    "if True:\n\tx = 1\n        y = 2": (3, None),
    "x = 1\n\n  y": (3, None),
    "a = 'é' +": (1, "a = 'é' +\n             ^"),
    "return 5": (1, None),
    "f(**{'a': 1}, *[1])": (1, None),
    "await = 3": (1, None),
    "x = 0777": (1, None),
    "\x00": (None, None),
    "(" * 300: (None, None),
}


async def test_a_syntax_error_names_its_line_and_points_at_the_place(bridge):
    records = await bridge.all(*BAD_SYNTAX)
    for record, (code, (line, shown)) in zip(records, BAD_SYNTAX.items(), strict=True):
        assert (code, record.status, record.exit_code) == (code, "error", 1)
        if line is not None:
            assert record.error["code"] == "syntax_error", code
            assert record.error["line"] == line, code
            assert f'File "<script>", line {line}' in record.error["traceback"]
        assert shown is None or shown in record.error["traceback"], record.error["traceback"]
        assert "<bridge>" not in record.error["traceback"]


# --- exits ---

EXITS = {
    "sys.exit()": ("success", 0),
    "sys.exit(None)": ("success", 0),
    "sys.exit(0)": ("success", 0),
    "exit(3)": ("exit", 3),
    "raise SystemExit(255)": ("exit", 255),
    "sys.exit(-1)": ("exit", 255),
    "sys.exit(True)": ("exit", 1),
    "sys.exit('text')": ("exit", 1),
    "sys.exit([1])": ("exit", 1),
    "sys.exit(10 ** 100)": ("success", 0),
    "await __import__('asyncio').sleep(0); sys.exit(4)": ("exit", 4),
    "import threading; threading.Thread(target=sys.exit, args=(9,)).start()": ("success", 0),
    "os._exit(0)": ("killed", 1),
    "os._exit(5)": ("killed", 5),
    "os.kill(os.getpid(), signal.SIGKILL)": ("killed", 137),
    "os.kill(os.getpid(), signal.SIGTERM)": ("killed", 143),
    "import ctypes; ctypes.string_at(0)": ("killed", 139),
    "os.abort()": ("killed", 134),
    "signal.alarm(1); signal.pause()": ("killed", 142),
    "x = [0] * (1 << 60)": ("out_of_memory", 1),
    "raise MemoryError('mine')": ("out_of_memory", 1),
    "raise type('ArrayMemoryError', (MemoryError,), {})('a library has its own')": ("out_of_memory", 1),
    "import errno, os\nraise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))": ("out_of_memory", 1),
    "class E(OSError):\n    errno = property(lambda self: 1 / 0)\nraise E()": ("error", 1),
}


async def test_every_way_out_is_reported_as_what_it_is(bridge):
    records = await bridge.all(*(f"import os, sys, signal\nprint('before')\n{code}" for code in EXITS))
    for record, (code, (status, exit_code)) in zip(records, EXITS.items(), strict=True):
        assert (code, record.status, record.exit_code) == (code, status, exit_code), record.error
        assert (record.error is None) == (status == "success")
        assert record.stdout == b"before\n", code
    by_code = dict(zip(EXITS, records, strict=True))
    assert by_code["sys.exit('text')"].stderr == b"text\n"
    assert by_code["os.kill(os.getpid(), signal.SIGKILL)"].error["code"] == "interpreter_killed"
    assert "SIGSEGV" in by_code["import ctypes; ctypes.string_at(0)"].error["message"]
    assert by_code["os._exit(5)"].error["code"] == "interpreter_exited"
    assert by_code["raise MemoryError('mine')"].error["code"] == "out_of_memory"


async def test_ten_gigabytes_are_out_of_memory_whoever_notices(sandboxes):
    record = await sandboxes.run("""
print("before", flush=True)
import mmap
areas = []
while True:
    area = mmap.mmap(-1, 64 << 20)
    for place in range(0, len(area), 4096):
        area[place] = 1
    areas.append(area)
""")
    assert record.status == "out_of_memory", record.error
    assert record.error["code"] == "out_of_memory"
    assert record.stdout == b"before\n"


async def test_a_killed_child_is_no_fault_of_the_scripts(bilingual):
    code = {
        "python": """
import subprocess, sys
child = subprocess.run([sys.executable, "-c", "x = []\\nwhile 1: x.append(bytearray(b'x' * (8 << 20)))"])
print(child.returncode)
""",
        "javascript": """
import { spawnSync } from "node:child_process";
const child = spawnSync("python3", ["-c", "x = []\\nwhile 1: x.append(bytearray(b'x' * (8 << 20)))"]);
console.log(child.status ?? -require("node:os").constants.signals[child.signal]);
""",
    }
    record = await bilingual.run(code)
    assert lines(record) in ([["-9"], ["1"]])


async def test_a_script_that_leaves_after_a_child_was_killed_for_memory_is_not_out_of_memory_itself(bilingual):
    code = {
        "python": """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", "x = []\\nwhile 1: x.append(bytearray(b'x' * (8 << 20)))"])
os._exit(6)
""",
        "javascript": """
require("child_process").spawnSync("python3", ["-c", "x = []\\nwhile 1: x.append(bytearray(b'x' * (8 << 20)))"]);
process.reallyExit(6);
""",
    }
    record = await bilingual.run(code)
    assert (record.status, record.exit_code) == ("killed", 6)


# --- time ---


OVER = {
    "busy": "while True: pass",
    "sleep": "import time; time.sleep(100)",
    "await": "import asyncio; await asyncio.sleep(100)",
    "c": "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
    "thread": "import threading; threading.Thread(target=threading.Event().wait).start()",
    "signals": "import signal\nfor n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n  except (OSError, ValueError): pass\nwhile True: pass",
    "except": "try:\n  while True: pass\nexcept BaseException: pass\nwhile True: pass",
    "repr": "class R:\n  def __repr__(s):\n    while True: pass\nR()",
    "atexit": "import atexit\n@atexit.register\ndef f():\n  while True: pass",
    "child": "import subprocess; subprocess.run(['python3', '-c', 'while True: pass'])",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
}  # fmt: skip


async def test_threads_for_which_a_script_is_waited_until_its_time_is_up_are_named(bridge):
    code = """
import threading
for name in ("poller", "reader"):
    threading.Thread(target=threading.Event().wait, name=name).start()
threading.Thread(target=threading.Event().wait, name="background", daemon=True).start()
print("done")
"""
    record, busy = await bridge.all(code, "while True: pass", timeout=1)
    assert (record.status, record.stdout) == ("timeout", b"done\n")
    assert record.stderr.decode() == (
        "The code has run to its end, but 2 of its threads still run: poller, reader;"
        " let them end, or start them with daemon=True\n"
    )
    assert busy.stderr == b""


async def test_a_script_over_its_time_is_ended_and_leaves_no_container(bridge):
    for name, record in zip(OVER, await bridge.all(*OVER.values(), timeout=1), strict=True):
        assert (record.status, record.exit_code) == ("timeout", 124), name
        assert record.error["code"] == "script_timeout", name
        assert "1 s" in record.error["message"], name
        assert record.script_ms >= 1000, name


async def test_waiting_for_a_tool_is_not_the_scripts_time(bilingual):
    record = await bilingual.run(
        {
            "python": "from mcp.servers import faulty\nprint(await faulty.sleep(5))",
            "javascript": "console.log(await mcp.servers.faulty.sleep(5))",
        },
        faulty(),
        timeout=4,
    )
    assert printed(record) == "slept\n"
    assert record.script_ms < 4000
    assert record.duration_ms > 5000


async def test_a_call_to_a_server_that_does_not_start_fails_as_a_tool_that_fails(bilingual, monkeypatch):
    # The second call comes within the wait, however busy the machine is.
    monkeypatch.setattr(supervised_server, "BACKOFF_BASE", 30.0)
    record = await bilingual.run(
        {
            "python": "import mcp\nfrom mcp.servers import gone\nfor _ in range(2):\n"
            "    try: await gone.look(n=1)\n"
            "    except mcp.ToolError as exc: print(exc.server, exc.tool, exc.code)",
            "javascript": 'import { gone } from "mcp/servers";\nimport { ToolError } from "mcp";\nfor (const _ of [1, 2]) {\n'
            "  try { await gone.look({ n: 1 }); }\n"
            "  catch (error) { console.log(error.server, error.tool, error instanceof ToolError && error.code); }\n}",
        },
        ServerSpec(name="gone", command="/nonexistent/server"),
    )
    assert printed(record).splitlines() == ["gone look server_start_failed", "gone look server_unavailable"]


async def test_work_beside_a_waiting_call_is_bounded_by_the_wall(bilingual):
    record = await bilingual.run(
        {
            "python": "import asyncio\nfrom mcp.servers import faulty\ncall = asyncio.create_task(faulty.hang())\n"
            "await asyncio.sleep(0.1)\nwhile True: pass",
            "javascript": "const call = mcp.servers.faulty.hang();\n"
            "await new Promise((done) => setTimeout(done, 100));\nwhile (true) {}",
        },
        faulty(),
        timeout=3,
        wall_timeout=4.0,
    )
    assert (record.status, record.exit_code) == ("timeout", 124)
    assert record.error["code"] == "wall_timeout"


async def test_no_tool_is_called_after_the_time_is_up(bilingual):
    code = {
        "python": """
import asyncio
from mcp.servers import faulty
await faulty.echo("ready")
late = asyncio.create_task(faulty.hang())
await asyncio.sleep(0.5)
while True:
    pass
""",
        "javascript": """
await mcp.servers.faulty.echo({ text: "ready" });
const late = mcp.servers.faulty.hang();
await new Promise((done) => setTimeout(done, 500));
while (true) {}
""",
    }
    again = {
        "python": "from mcp.servers import faulty\nprint(await faulty.echo('again'), await faulty.cancelled())",
        "javascript": "const { faulty } = mcp.servers;\nconsole.log(await faulty.echo('again'), await faulty.cancelled())",
    }
    async with bilingual.open(faulty()) as bridge:
        assert (await bridge.run(code, timeout=2)).status == "timeout"
        # The call that was under way was taken back, and the server goes on.
        record = await bridge.run(again)
    said, cancelled = printed(record).split(maxsplit=1)
    assert (said, len(json.loads(cancelled))) == ("again", 1)


# --- many and large ---


async def test_three_hundred_concurrent_calls_complete(bilingual):
    code = {
        "python": """
import asyncio
from mcp.servers import faulty
results = await asyncio.gather(*(faulty.echo(f"call {n}") for n in range(300)))
print(results == [f"call {n}" for n in range(300)])
""",
        "javascript": """
const { faulty } = mcp.servers;
const numbers = [...Array(300).keys()];
const results = await Promise.all(numbers.map((n) => faulty.echo(`call ${n}`)));
console.log(results.every((text, n) => text === `call ${n}`) ? "True" : results);
""",
    }
    record = await bilingual.run(
        code,
        faulty(),
    )
    assert printed(record) == "True\n"
    assert record.calls == 300


async def test_parallel_calls_overlap_at_the_server(bilingual):
    code = {
        "python": """
import asyncio
from mcp.servers import meeting
print(await asyncio.gather(*(meeting.meet(20) for _ in range(20))))
from concurrent.futures import ThreadPoolExecutor
from mcp.sync.servers import meeting as blocking
with ThreadPoolExecutor(30) as pool:
    print(list(pool.map(blocking.meet, [30] * 30)))
""",
        "javascript": """
const { meeting } = mcp.servers;
for (const many of [20, 30]) console.log(await Promise.all(Array.from({ length: many }, () => meeting.meet(many))));
""",
    }
    record = await bilingual.run(
        code,
        MEETING,
    )
    assert ["".join(printed(record).split("'")).count(each) for each in ("20", "30")] == [20, 30]


async def test_calls_under_way_at_once_are_held_to_the_limit(bilingual):
    code = {
        "python": """
import asyncio
from mcp.servers import meeting
await asyncio.gather(*(meeting.meet(1) for _ in range(100)))
print(int(await meeting.most()) <= 4)
""",
        "javascript": """
const { meeting } = mcp.servers;
await Promise.all(Array.from({ length: 100 }, () => meeting.meet(1)));
console.log(await meeting.most() <= 4 ? "True" : "False");
""",
    }
    record = await bilingual.run(
        code,
        MEETING,
        max_in_flight=4,
    )
    assert printed(record) == "True\n"


async def test_five_calls_of_a_fifth_of_a_second_take_less_than_half_a_second_together(sandboxes):
    record = await sandboxes.run(
        """
import asyncio, time
from mcp.servers import faulty
await faulty.echo("started")
best = 9
for attempt in range(5):
    began = time.monotonic()
    await asyncio.gather(*(faulty.sleep(0.2) for _ in range(5)))
    best = min(best, time.monotonic() - began)
print(best)
""",
        faulty(),
    )
    assert 0.2 <= float(printed(record)) < 0.5


async def test_a_megabyte_passes_both_ways(bilingual):
    code = {
        "python": """
from mcp.servers import faulty
text = "".join(chr(0x3b1 + n % 24) for n in range(1 << 19)) + "x" * (1 << 20)
print(await faulty.echo(text) == text)
print(len(await faulty.big(1 << 20)))
print(await faulty.big(1 << 20) == "x" * (1 << 20))
""",
        "javascript": """
const { faulty } = mcp.servers;
const text = Array.from({ length: 1 << 19 }, (_, n) => String.fromCodePoint(0x3b1 + n % 24)).join("") + "x".repeat(1 << 20);
const big = await faulty.big(1 << 20);
for (const shown of [await faulty.echo(text) === text, big.length, big === "x".repeat(1 << 20)]) {
  console.log(shown === true ? "True" : shown);
}
""",
    }
    record = await bilingual.run(
        code,
        faulty(),
    )
    assert lines(record) == ["True", str(1 << 20), "True"]


async def test_what_is_too_large_or_no_json_is_an_error_that_the_script_can_catch(sandboxes):
    record = await sandboxes.run(
        """
from mcp.servers import faulty
from mcp import ToolError
import math
deep = []
for _ in range(100): deep = [deep]
for value in ("x" * (17 << 20), math.nan, object(), deep, "\\ud800", [1] * 2_000_000):
    try:
        print(await faulty.echo(value))
    except ToolError as exc:
        print(exc.code)
print(await faulty.echo("still here"))
""",
        faulty(),
    )
    assert lines(record) == [
        "frame_too_large", "not_json", "not_json", "frame_too_deep", "not_json", "frame_too_large", "still here",
    ]  # fmt: skip


async def test_calls_over_the_limits_are_refused_by_name_and_the_script_goes_on(bilingual):
    def code(size):
        return {
            "python": f"""
from mcp.servers import faulty
from mcp import ToolError
import asyncio
done = await asyncio.gather(*(faulty.echo("x" * {size}) for n in range(20)), return_exceptions=True)
errors = [exc for exc in done if isinstance(exc, ToolError)]
print(int(len(errors) >= 10), *{{exc.code for exc in errors}}, errors[0])
""",
            "javascript": f"""
import {{ ToolError }} from "mcp";
const calls = Array.from({{ length: 20 }}, () => mcp.servers.faulty.echo("x".repeat({size})));
const errors = (await Promise.allSettled(calls)).flatMap(({{ reason }}) => reason instanceof ToolError ? [reason] : []);
console.log(+(errors.length >= 10), ...new Set(errors.map(({{ code }}) => code)), errors[0].message);
""",
        }

    async with bilingual.open(faulty(), max_calls=10) as bridge:
        many = await bridge.run(code(1))
    async with bilingual.open(faulty(), max_call_size=100_000) as bridge:
        large = await bridge.run(code(20_000))
    assert printed(many).startswith(
        "1 too_many_calls This run has made 10 requests."
        " Go on in another run, make fewer calls, or have the operator raise max_calls."
    )
    assert printed(large).startswith("1 calls_too_large ")
    assert "pass less, or have the operator raise max_call_size" in printed(large)


async def test_a_script_that_goes_on_after_that_is_ended(bilingual):
    code = {
        "python": """
from mcp.sync.servers import faulty
while True:
    try: faulty.echo("again")
    except Exception: pass
""",
        "javascript": """
while (true) try { await mcp.servers.faulty.echo("again") } catch {}
""",
    }
    record = await bilingual.run(
        code,
        faulty(),
        max_calls=20,
    )
    assert record.status == "call_limit"
    assert record.error["code"] == "too_many_calls"
    assert record.calls < 20


# --- inside ---


async def test_processes_threads_and_files_work_as_usual(bridge):
    codes = [
        """
import multiprocessing
def square(n): return n * n
with multiprocessing.Pool(4) as pool:
    print(pool.map(square, range(10)))
""",
        """
import os
if (pid := os.fork()) == 0:
    print("child", flush=True)
else:
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print("parent")
""",
        """
import os
if (pid := os.fork()) == 0:
    raise ValueError("in the child")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
        """
import os
from mcp import runtime
if (pid := os.fork()) == 0:
    try:
        runtime.list_memories_sync()
    except RuntimeError as exc:
        print(exc, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(runtime.list_memories_sync() is not None)
""",
        """
from pathlib import Path
import os
print(os.getcwd())
Path("mine.py").write_text("VALUE = 42\\ndef f(): return VALUE\\n")
import mine
print(mine.f())
Path("/tmp/a").write_text("b")
print(Path("/tmp/a").read_text(), sorted(os.listdir("/workspace"))[0:1] != [])
""",
        """
import asyncio
process = await asyncio.create_subprocess_exec("python3", "-c", "print(6 * 7)", stdout=asyncio.subprocess.PIPE)
print((await process.communicate())[0])
""",
        """
import threading
results = []
threads = [threading.Thread(target=results.append, args=(n,)) for n in range(50)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
print(sorted(results) == list(range(50)))
""",
        "import inspect\ndef f():\n    return 'own source'\nprint(inspect.getsource(f))",
        "import pickle\nclass C:\n    x = 1\nprint(pickle.loads(pickle.dumps(C())).x)",
        "from dataclasses import dataclass\n@dataclass\nclass D:\n    a: int\nprint(D(1))",
        "import typing\nclass A:\n    b: 'int'\nprint(typing.get_type_hints(A))",
    ]
    records = await bridge.all(*codes)
    assert lines(records[0]) == [str([n * n for n in range(10)])]
    assert lines(records[1]) == ["child", "0", "parent"]
    assert lines(records[2]) == ["1"]
    assert b"ValueError: in the child" in records[2].stderr
    assert "forked process" in lines(records[3])[0]
    assert lines(records[3])[1] == "True"
    assert lines(records[4]) == ["/workspace", "42", "b True"]
    assert lines(records[5]) == ["b'42\\n'"]
    assert lines(records[6]) == ["True"]
    assert "own source" in printed(records[7])
    assert lines(records[8]) == ["1"]
    assert lines(records[9]) == ["D(a=1)"]
    assert lines(records[10]) == ["{'b': <class 'int'>}"]


async def test_two_runs_share_nothing(bilingual):
    async with bilingual.open() as bridge:
        await bridge.run(
            {
                "python": "x = 1\nopen('/tmp/left', 'w').close()\nopen('/workspace/left.py', 'w').close()",
                "javascript": "globalThis.x = 1;\nfor (const at of ['/tmp/left', '/workspace/left.py']) require('fs').writeFileSync(at, '')",
            }
        )
        record = await bridge.run(
            {
                "python": "import os\nprint(int('x' in globals()), os.listdir('/tmp'), os.listdir('/workspace'))",
                "javascript": "const { readdirSync: ls } = require('fs');\nconsole.log(+('x' in globalThis), ls('/tmp'), ls('/workspace'))",
            }
        )
    assert printed(record).replace("[ ", "[").replace(" ]", "]") == "0 [] ['out']\n"


# --- display, progress, artifacts, memories ---


async def test_what_is_displayed_comes_as_what_it_is(bridge):
    record, bad = await bridge.all(
        """
class Shown:
    def __init__(self, method, value): setattr(type(self), method, lambda s: value)
class Markdown:
    def _repr_markdown_(self): return "# title"
class Image:
    def _repr_png_(self): return b"\\x89PNG\\r\\n\\x1a\\n\\0\\0\\0\\rIHDR\\0\\0\\0\\1\\0\\0\\0\\1rest"
display(Markdown(), Image(), "text", 7)
display(b"\\xff\\xd8\\xff\\xc0\\0\\x11\\x08\\0\\1\\0\\1jpeg")
Markdown()
""",
        "for n in range(200): display(type('M', (), {'_repr_markdown_': lambda s: 'x'})())",
    )
    assert lines(record) == ["text", "7"]
    assert [sorted(shown) for shown in record.displays] == [
        ["text/markdown"], ["image/png"], ["image/jpeg"], ["text/markdown"],
    ]  # fmt: skip
    assert record.value is None
    assert bad.status == "output_limit"
    assert "100 objects" in bad.error["message"]


async def test_progress_is_told_and_wrong_arguments_are_the_scripts_error(bilingual):
    told = []
    async with bilingual.open() as bridge:
        record = await bridge.run(
            {
                "python": """
progress(1)
progress(2.5, 10, "half")
progress(True + 2)
for wrong in (("a",), (1, "b"), (1, 2, 3), (10 ** 400,), (float("nan"),), (None,)):
    try:
        progress(*wrong)
    except (ValueError, TypeError) as exc:
        print(type(exc).__name__)
""",
                "javascript": """
progress(1);
progress(2.5, 10, "half");
progress(3);
for (const wrong of [["a"], [1, "b"], [1, 2, Symbol("c")], [Infinity], [NaN], [null]]) {
  try { progress(...wrong) } catch (error) { console.log(error.name) }
}
""",
            },
            progress=lambda *news: told.append(news),
        )
    assert told == [(1, None, None), (2.5, 10, "half"), (3, None, None)]
    assert len(lines(record)) == 6, record.stdout


async def test_artifacts_outlive_the_sandbox(bilingual, tmp_path):
    async with bilingual.open(state_dir=tmp_path) as bridge:
        record = await bridge.run(
            {
                "python": """
from pathlib import Path
import os
Path("small.txt").write_text("small")
Path("empty").write_text("")
Path("large.bin").write_bytes(os.urandom(3 << 20))
print(artifact("small.txt"), artifact("empty"), artifact("large.bin", name="other name.bin"))
print(artifact("small.txt", ".part-1"), artifact("empty", "stdout.txt"))
Path("small.txt").write_text("replaced")
artifact(Path("small.txt"))
import zlib
print(zlib.crc32(Path("large.bin").read_bytes()))
""",
                "javascript": """
import fs from "node:fs";
fs.writeFileSync("small.txt", "small");
fs.writeFileSync("empty", "");
fs.writeFileSync("large.bin", require("node:crypto").randomBytes(3 << 20));
console.log(`${await artifact("small.txt")} ${await artifact("empty")} ${await artifact("large.bin", "other name.bin")}`);
console.log(await artifact("small.txt", ".part-1"), await artifact("empty", "stdout.txt"));
fs.writeFileSync("small.txt", "replaced");
await artifact(new URL("file:///workspace/small.txt"), "small.txt");
console.log(require("node:zlib").crc32(fs.readFileSync("large.bin")));
""",
            }
        )
        out = lines(record)
        rows = {row["name"]: row for row in record.artifacts}
        assert {name: row["size"] for name, row in rows.items()} == {
            "small.txt": 8, "empty": 0, "other name.bin": 3 << 20, ".part-1": 5, "stdout.txt": 0,
        }  # fmt: skip
        assert bridge.bridge.files.read(rows["small.txt"]["uri"]).data == b"replaced"
        import zlib

        assert zlib.crc32(bridge.bridge.files.read(rows["other name.bin"]["uri"]).data) == int(out[2])
        assert out[0].split(" artifact://")[0] == rows["small.txt"]["uri"]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "files").rglob("*") if path.is_file()} == {0o600}


async def test_a_bad_artifact_is_refused_and_leaves_nothing(bilingual, tmp_path):
    async with bilingual.open(state_dir=tmp_path, max_artifact_size=1 << 20) as bridge:
        record = await bridge.run(
            {
                "python": """
from mcp import MCPError
open("f", "wb").write(b"x" * 1000)
open("large", "wb").write(b"x" * (2 << 20))
for path, name in [("f", "../up"), ("f", "/etc/x"), ("f", ".."), ("f", "a\\nb"), ("f", "x" * 300), ("f", "€" * 100),
                   ("f", "a\\\\b"), ("large", "large"), ("missing", "m"), ("/dev", "d"), ("f", 7), ("f", "\\ud800")]:
    try:
        print("kept", artifact(path, name))
    except Exception as exc:
        print(type(exc).__name__, getattr(exc, "code", ""))
""",
                "javascript": """
import fs from "node:fs";
fs.writeFileSync("f", "x".repeat(1000));
fs.writeFileSync("large", "x".repeat(2 << 20));
for (const [path, name] of [["f", "../up"], ["f", "/etc/x"], ["f", ".."], ["f", "a\\nb"], ["f", "x".repeat(300)], ["f", "€".repeat(100)],
                            ["f", "a\\\\b"], ["large", "large"], ["missing", "m"], ["/dev", "d"], ["f", 7], ["f", "\\ud800"]]) {
  try { console.log("kept", await artifact(path, name)) } catch (error) { console.log(error.name, error.code) }
}
""",
            }
        )
        out = lines(record)
    assert [line.split()[0] for line in out].count("kept") == 0, out
    assert out[:7] == ["MCPError bad_artifact_name"] * 7
    assert out[7] == "MCPError artifact_too_large"
    errors = {
        "python": ["FileNotFoundError ", "IsADirectoryError ", "MCPError bad_params", "MCPError not_json"],
        "javascript": ["Error ENOENT", "Error EISDIR", "MCPError bad_params", "MCPError not_json"],
    }
    assert out[8:] == errors[bilingual.language]
    assert record.artifacts == []
    assert [path for path in (tmp_path / "files").rglob("*") if path.is_file()] == []


LONG_INTEGERS = {
    "python": """
import sys
from mcp import MCPError, ToolError, runtime
from mcp.servers import odd
for most in (4300, 0, 10_000):
    sys.set_int_max_str_digits(most)
    for value in (10**4300, -(10**4300), [{"a": 10**5000}]):
        for call in (lambda: odd.take(value=value), lambda: runtime.save_memory("k", value)):
            try:
                await call()
            except (MCPError, ToolError) as exc:
                print(type(exc).__name__, exc.code, str(exc).rpartition(": ")[2])
    await runtime.save_memory("k", 10**4300 - 1)
    print(await runtime.load_memory("k") == 10**4300 - 1)
""",
    "javascript": """
import { odd } from "mcp/servers";
for (const _ of [1, 2, 3]) {
  for (const value of [10n ** 4300n, -(10n ** 4300n), [{ a: 10n ** 5000n }]]) {
    for (const call of [() => odd.take({ value }), () => runtime.save_memory("k", value)]) {
      try { await call() } catch (error) { console.log(error.name, error.code, error.message.split(": ").at(-1)) }
    }
  }
  await runtime.save_memory("k", 10n ** 4300n - 1n);
  console.log((await runtime.load_memory("k")) === 10n ** 4300n - 1n ? "True" : "False");
}
""",
}


async def test_an_integer_too_long_for_the_channel_is_an_error_that_the_script_can_catch(bilingual):
    async with bilingual.open(echoing(tool("take", {"value": {}}))) as opened:
        record = await opened.run(LONG_INTEGERS)
    told = "not_json an integer of more than 4300 digits; write it as text"
    assert lines(record) == [*([f"ToolError {told}", f"MCPError {told}"] * 3), "True"] * 3, record.error


async def test_memories_and_saved_tools_last_across_runs(sandboxes, tmp_path):
    async with sandboxes.open(state_dir=tmp_path) as bridge:
        first = await bridge.run("""
from mcp import runtime
await runtime.save_memory("k", {"a": 1})
print(await runtime.update_memory("k", {"b": [None, "€"]}))
runtime.save_memory_sync("none", None)
runtime.save_memory_sync("gone", 1)
print(runtime.delete_memory_sync("gone"), runtime.delete_memory_sync("gone"))
def double(n: int) -> int:
    "Twice."
    return 2 * n
print(await runtime.save_tool(double))
""")
        second = await bridge.run("""
from mcp import runtime
print(await runtime.load_memory("k"), runtime.load_memory_sync("missing", "default"))
print(runtime.load_memory_sync("none", "default"))
print(list(await runtime.list_memories()))
from mcp.tools import double
print(double(21))
import mcp.tools
try:
    mcp.tools.triple
except AttributeError as exc:
    print(exc)
try:
    from mcp.tools import duoble
except ImportError as exc:
    print(exc)
""")
        third = await bridge.run("""
from mcp import runtime, MCPError
for key, value in [("", 1), ("k" * 201, 1), (7, 1), ("big", "x" * (5 << 20)), ("o", object()), ("k" * 2000, 1)]:
    try:
        runtime.save_memory_sync(key, value)
    except MCPError as exc:
        print(exc.code)
""")
    assert lines(first) == ["{'a': 1, 'b': [None, '€']}", "True False", "double"]
    assert lines(second) == [
        "{'a': 1, 'b': [None, '€']} default",
        "None",
        "['k', 'none']",
        "42",
        "no saved tool 'triple'",
        "no saved tool 'duoble'; nearest: double: mcp.tools has what runtime.save_tool kept; "
        "for a server's tool write: from mcp.servers import NAME",
    ]
    assert lines(third) == ["bad_memory", "bad_memory", "bad_params", "bad_memory", "not_json", "bad_request"]


SAVED = {
    "lambda x: x": "could not get source code",
    "unnamed": "its `def` names, not '<lambda>'",
    "among[0]": "its source isn't that of a `def`",
    "print": "got builtin_function_or_method",
    "functools.partial(plain, 1)": "no attribute '__name__'",
    "'plain'": "no attribute '__name__'",
    "functools": "not an object of the type 'module'",
    "Own": "source code not available",
    "Own().method": "not a bound method",
    "made['dynamic']": "could not get source code",
    "runtime.search": "could not get source code",
    "faulty.echo": "source code not available",
    "inner()": "uses z of this script",
    "helped": "uses helper, y of this script",
    "importing": "save it again: from mcp.servers import faulty; import math as m.",
    "cached": "decorators, defaults and annotations use functools: no",
    "plain": None,
    "recursive": None,
    "Own.static": None,
    "given": None,
    "branching": "uses nowhere of this script",
    "of_module": None,
}


async def test_only_a_function_is_kept_and_what_it_would_miss_is_told(sandboxes, tmp_path):
    code = """
import functools, math as m
from mcp.servers import faulty
y = 3
made = {}
unnamed = lambda x: x
among = [
    lambda x: x]
exec("def dynamic(): return 1", made)
class Own:
    def method(self): return 1
    @staticmethod
    def static(): return "static"
def inner():
    z = 4
    def inner(): return z
    return inner
def helper(x): return x
def helped(): return helper(y)
async def importing(): return await faulty.echo(str(m.pi))
@functools.cache
def cached(): return 1
def plain(x=1, *more: int):
    import json
    global counted
    counted = [json.dumps(x) for x in more]
    class Inside:
        def said(self): return [Inside, __name__, more, counted, y2] if (y2 := sorted(more)) else counted
    return Inside().said()
def recursive(n=3): return [n, *recursive(n - 1)] if n else []
def given(): return [runtime, mcp, mcp_faulty, mcp_servers, LOADED_MCP_SERVERS, display, artifact, progress] and len
def branching(x=0): return nowhere if x else "branched"
def of_module(): return __file__, __annotations__, __doc__
for code in SAVED:
    try:
        print(code, await runtime.save_tool(eval(code)), sep="|")
    except (AttributeError, OSError, TypeError) as exc:
        print(code, exc, sep="|")
    print(code, file=sys.stderr)
""".replace("SAVED", repr(list(SAVED)))
    async with sandboxes.open(faulty(), state_dir=tmp_path) as bridge:
        record = await bridge.run(f"import sys{code}")
        assert record.error is None, record.error
        said = dict(line.split("|") for line in lines(record))
        notices = record.stderr.decode()
        for kept, told in SAVED.items():
            notice, _, notices = notices.partition(f"{kept}\n")
            assert (told is None) is (said[kept].isidentifier() and not notice), (kept, said[kept], notice)
            assert told is None or told in said[kept] + notice, (kept, said[kept], notice)
        used = await bridge.run("""
from mcp.tools import plain, recursive, static, given, branching
print(plain(), recursive(), static(), given(), branching())
""")
        assert lines(used) == ["[] [3, 2, 1] static <built-in function len> branched"], used.error
        for name in ("helped", "cached"):
            failed = await bridge.run(f"from mcp.tools import {name}\n{name}()")
            assert f"`{name}` is a function kept by `runtime.save_tool`" in failed.error["message"]


async def test_memories_changed_at_once_lose_nothing(bilingual, tmp_path):
    async with bilingual.open(state_dir=tmp_path) as bridge:
        record = await bridge.run(
            {
                "python": """
import asyncio
from mcp import runtime
await asyncio.gather(*(runtime.update_memory("k", {str(n): n}) for n in range(50)))
print(len(runtime.load_memory_sync("k")))
""",
                "javascript": """
await Promise.all([...Array(50).keys()].map((n) => runtime.update_memory("k", { [n]: n })));
console.log(Object.keys(await runtime.load_memory("k")).length);
""",
            }
        )
    assert printed(record) == "50\n"


async def test_functions_that_update_a_memory_at_once_are_all_applied(bilingual, tmp_path):
    code = {
        "python": """
import asyncio
made = await asyncio.gather(*(runtime.update_memory("n", lambda old: (old or 0) + 1) for _ in range(8)))
print([n - min(made) for n in sorted(made)] == list(range(8)))
""",
        "javascript": """
const made = await Promise.all([...Array(8).keys()].map(() => runtime.update_memory("n", (old = 0) => old + 1)));
made.sort((a, b) => a - b);
console.log(made.every((n, at) => n === made[0] + at));
""",
    }
    async with bilingual.open(state_dir=tmp_path) as opened:
        record = await opened.run(code)
        # Each is given what it has made itself.
        assert printed(record).lower() == "true\n"
        stored = await opened.bridge.programs.store.execution(record.execution)
        assert (await opened.bridge.replay_execution(stored)).difference is None
        await opened.all(*[code] * 3)
        read = {
            "python": "print(await runtime.load_memory('n'))",
            "javascript": "console.log(await runtime.load_memory('n'))",
        }
        assert printed(await opened.run(read)) == "32\n"


async def test_a_record_of_a_build_that_saved_what_a_function_gave_whatever_was_kept_is_repeated(
    bilingual, monkeypatch
):
    remember = Requests._memory

    def as_before(self, request):
        since = getattr(request, "since", None)
        return remember(self, request if since is None else request._replace(since=None))

    code = {
        "python": "print([await runtime.update_memory('n', lambda old: (old or 0) + 1) for _ in range(2)])",
        "javascript": "for (const _ of [1, 2]) console.log(await runtime.update_memory('n', (old = 0) => old + 1))",
    }
    async with bilingual.open() as opened:
        with monkeypatch.context() as patched:
            patched.setattr(Requests, "_memory", as_before)
            record = await opened.run(code)
        stored = await opened.bridge.programs.store.execution(record.execution)
        rows = [understood(row) for row in await opened.bridge.lifecycle.recorder.read(record.execution)]
        asked = [row.request.name for row in rows if isinstance(row, RequestOutcome)]
        assert asked == ["memory.load", "memory.save", "memory.load"] * 2
        assert (await opened.bridge.replay_execution(stored)).difference is None


async def test_a_function_that_updates_a_memory_is_given_what_others_keep_meanwhile(bilingual):
    code = {
        "python": """
import sys
times = []
def add(old):
    times.append(old)
    if len(times) == 1: runtime.save_memory_sync("n", 10)
    if len(times) == 2: runtime.delete_memory_sync("n")
    return (old or 0) + 1
print(await runtime.update_memory("n", add), times)
def never(old):
    runtime.save_memory_sync("n", old + 1)
    return 0
sys.modules["mcp_bridge.guest.runtime"].MAX_TIMES_APPLIED = 3
try: await runtime.update_memory("n", never)
except runtime.MCPError as exc: print(exc.code)
async def later(old): return 7
try: await runtime.update_memory("m", later)
except TypeError as exc: print(exc)
print(await runtime.load_memory("m"))
""",
        "javascript": """
await runtime.save_memory("n", null);
const times = [];
async function at_once(old) { return 7 }
try { await runtime.update_memory("m", at_once) } catch (error) { console.log(error.message) }
console.log(await runtime.load_memory("m") ?? "None");
""",
    }
    said = {
        "python": ["1 [None, 10, None]", "memory_busy"],
        "javascript": [],
    }
    async with bilingual.open() as opened:
        record = await opened.run(code)
        told = "update_memory() takes a plain function, not an asynchronous one"
        assert lines(record) == [*said[opened.language], told, "None"]
        stored = await opened.bridge.programs.store.execution(record.execution)
        assert (await opened.bridge.replay_execution(stored)).difference is None


async def test_a_memory_that_is_updated_is_given_as_it_is_kept_then(bilingual):
    code = {
        "python": """
import json
from mcp import runtime
made = [await runtime.update_memory("n", lambda old: (old or 0) + n) for n in (1, 2)]
made += [await runtime.update_memory("k", {name: 1}) for name in "ab"]
print(json.dumps([*made, await runtime.update_memory("k", 7), await runtime.load_memory("n")]))
try: await runtime.update_memory("k", lambda old: {}["no"])
except KeyError as exc: print("failed", await runtime.load_memory("k"))
""",
        "javascript": """
const made = [];
for (const n of [1, 2]) made.push(await runtime.update_memory("n", (old = 0) => old + n));
for (const name of "ab") made.push(await runtime.update_memory("k", { [name]: 1 }));
console.log(JSON.stringify([...made, await runtime.update_memory("k", 7), await runtime.load_memory("n")]));
try { await runtime.update_memory("k", (old) => old.no.no) }
catch (error) { console.log("failed", await runtime.load_memory("k")) }
""",
    }
    async with bilingual.open() as opened:
        record = await opened.run(code)
        said, failed = lines(record)
        assert json.loads(said) == [1, 3, {"a": 1}, {"a": 1, "b": 1}, 7, 3]
        assert failed == "failed 7"
        stored = await opened.bridge.programs.store.execution(record.execution)
        assert (await opened.bridge.replay_execution(stored)).difference is None


async def test_only_so_many_objects_are_displayed(bilingual):
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1"
    code = {
        "python": f"for n in range(200): display({png!r} + bytes([n]))",
        "javascript": f"for (let n = 0; n < 200; n++) display(Buffer.from([...{list(png)}, n]))",
    }
    record = await bilingual.run(code)
    assert (record.status, len(record.displays)) == ("output_limit", 100)
    assert "100 objects" in record.error["message"]


async def test_what_another_answer_had_to_cut_is_read_whole(bilingual, tmp_path):
    async with bilingual.open(state_dir=tmp_path) as opened:
        first = await opened.run({"python": "print('é€' * 9)", "javascript": "console.log('é€'.repeat(9))"})
        opened.bridge.files.save_output(first.execution, "stdout.txt", first.stdout * 20_000)
        code = {
            "python": "from mcp import runtime\nwhole = await runtime.output('ID')\nprint(len(whole), whole[:9])",
            "javascript": "const whole = await runtime.output('ID');\nconsole.log(whole.length, whole.slice(0, 9));",
        }
        reader = await opened.run(code[opened.language].replace("ID", first.execution))
        assert printed(reader) == "380000 é€é€é€é€é\n"
        store = opened.bridge.programs.store
        assert await store.holders(first.execution) == [reader.execution]
        assert (await opened.bridge.replay_execution(await store.execution(reader.execution))).difference is None
        gone = await opened.run(
            {"python": "runtime.output('0' * 16)", "javascript": "await runtime.output('0'.repeat(16))"}
        )
        assert "has no stored output 'stdout'. Only output that an answer had to cut" in gone.error["message"]


async def test_memories_last_across_runs_and_their_limits_are_errors(bilingual):
    async with bilingual.open() as opened:
        kept = {
            "python": """
from mcp import runtime
await runtime.save_memory("k", {"a": 1})
await runtime.update_memory("k", {"b": [None, "€"]})
await runtime.save_memory("gone", 1)
print(int(await runtime.delete_memory("gone")), int(await runtime.delete_memory("gone")))
for key, value in [("", 1), ("k" * 201, 1), ("big", "x" * (5 << 20)), ("k" * 5000, 1)]:
    try: await runtime.save_memory(key, value)
    except runtime.MCPError as exc: print(exc)
""",
            "javascript": """
await runtime.save_memory("k", { a: 1 });
await runtime.update_memory("k", { b: [null, "€"] });
await runtime.save_memory("gone", 1);
console.log(+await runtime.delete_memory("gone"), +await runtime.delete_memory("gone"));
for (const [key, value] of [["", 1], ["k".repeat(201), 1], ["big", "x".repeat(5 << 20)], ["k".repeat(5000), 1]]) {
  try { await runtime.save_memory(key, value) } catch (error) { console.log(error.message) }
}
""",
        }
        first, *refused = lines(await opened.run(kept))
        assert first == "1 0"
        keys = [f"A memory's key has 1 to 200 characters; this one {count}." for count in (0, 201)]
        longest = "memory.save: 'key' has 5000 characters; the limit is 4096."
        assert refused == [*keys, f"The memory 'big' is over {4 << 20} bytes.", longest]
        read = {
            "python": "import json\nfrom mcp import runtime\n"
            "print(json.dumps([await runtime.load_memory('k'), await runtime.load_memory('no', 'other'), "
            "list(await runtime.list_memories())]))",
            "javascript": "console.log(JSON.stringify([await runtime.load_memory('k'), "
            "await runtime.load_memory('no', 'other'), await runtime.list_memories()]))",
        }
        assert json.loads(printed(await opened.run(read))) == [{"a": 1, "b": [None, "€"]}, "other", ["k"]]


async def test_what_a_server_says_in_its_error_gets_no_advice_on_the_sandbox(both):
    failing = "import { ToolError } from 'mcp';\nthrow new ToolError('fetch failed', { server: 'a', tool: 'b' })"
    async with both.open() as bridge:
        errors = [
            json.dumps((await bridge.run(code, language="javascript")).error)
            for code in (failing, "await fetch('http://a.example')")
        ]
    assert ["fetch failed" in error for error in errors] == [True, True]
    assert ["the sandbox has no network" in error for error in errors] == [False, True]


async def test_javascript_reads_types_of_tools_in_typescript(both):
    word, option = {"type": "string"}, {"enum": ["a, b", "c"]}
    row = {
        "type": "object",
        "properties": {"list": {"type": "array", "items": word}, "n": {"type": ["integer", "null"]}},
    }
    types = {
        "rows": ({"type": "array", "items": row}, "object(list?: string[], n?: number | null)[]"),
        "table": ({"type": "array", "items": {"type": "array", "items": word}}, "string[][]"),
        "mixed": ({"type": "array", "items": {"type": ["string", "boolean"]}}, "(string | boolean)[]"),
        "options": ({"type": "array", "items": option}, "('a, b' | 'c')[]"),
        "by_name": (
            {"type": "object", "additionalProperties": {"type": "array", "items": word}},
            "{[name: string]: string[]}",
        ),
        "flag": ({"enum": [True, "x"]}, "true | 'x'"),
    }
    tools = [
        {"name": name, "inputSchema": {"type": "object", "properties": {"it": schema}, "required": ["it"]}}
        for name, (schema, _) in types.items()
    ]
    code = """
for (const detail of ["signature", "full"]) console.log(await runtime.describe("odd", detail));
for (const name of %s) console.log(await runtime.describe(`odd.${name}`));
"""
    async with both.open(echoing(*tools)) as bridge:
        shown = printed(await bridge.run(code % json.dumps(list(types)), language="javascript")).splitlines()
    expected = [f"await odd.{name}({{it: {text}}}): string | any[] | null" for name, (_, text) in types.items()]
    assert [line for line in shown if line.startswith("await ")] == expected * 3


async def test_a_script_reads_all_of_a_tool_and_what_a_call_needs_in_one_of_several_ways(bilingual):
    fields = {f"field_{number}": {"type": "integer"} for number in range(20)}
    content = {"content": {"type": "string", "description": "What is to be done."}}
    items = {"type": "array", "items": {"type": "object", "properties": content | fields, "required": ["content"]}}
    known = {"id": {"type": "string"}, "name": {"type": "string", "default": "n" * 50}}
    either = {"type": "object", "properties": known, "anyOf": [{"required": ["id"]}, {"required": ["name"]}]}
    server = echoing(
        {"name": "create", "inputSchema": {"type": "object", "properties": {"items": items}, "required": ["items"]}},
        {"name": "either", "inputSchema": either},
    )
    code = {
        "python": """
import io, contextlib
from mcp import runtime
from mcp.servers import odd
for name, detail in (("odd.create", "signature"), ("odd.create", "full"), ("odd.either", "full")):
    print(await runtime.describe(name, detail))
try: await odd.either()
except runtime.MCPError as exc: print(exc)
with contextlib.redirect_stdout(io.StringIO()) as said: help(odd.create)
assert 'await runtime.describe("odd.create", "full"); its JSON Schema: "schema"' in said.getvalue()
""",
        "javascript": """
import { odd } from 'mcp/servers';
for (const [name, detail] of [["odd.create", "signature"], ["odd.create", "full"], ["odd.either", "full"]]) {
  console.log(await runtime.describe(name, detail));
}
try { await odd.either() } catch (error) { console.log(error.message) }
""",
    }
    record = await bilingual.run(code, server)
    shown = printed(record)
    brief, full = shown.split("await odd.create(")[1:]
    assert "…" in brief.partition("\n")[0]
    assert '… all of it: await runtime.describe("odd.create", "full")' in brief
    assert "field_19?: " in full.partition("\n")[0]
    assert "items[].content: What is to be done." in full
    assert "n" * 50 in full
    assert "Give at least one of: id; name." in full
    assert "arguments: give at least one of: id; name" in full


WRONG = {
    "python": [
        "save_memory(7, 1)", "save_memory(None, 1)", "load_memory(['k'])", "delete_memory(2**70)", "list_memories(1)",
        "update_memory(True, {})", "search(7)", "search('x', 'many')", "search('x', 1.5)", "describe('faulty.echo', 'everything')", "describe(7)",
        "list_tools(7)", "end_session(7)", "output(7)", "call_tool('faulty', 'echo', ['text'])",
    ],
    "javascript": [
        "save_memory(7, 1)", "save_memory(null, 1)", "load_memory(['k'])", "delete_memory(2n ** 70n)", "list_memories(1)",
        "update_memory(true, {})", "search(7)", "search('x', 'many')", "search('x', 1.5)", "describe('faulty.echo', 'everything')", "describe(7)", "describe('faulty', { detail: 7 })",
        "list_tools(7)", "end_session(7)", "output(7)", "call_tool('faulty', 'echo', ['text'])",
        "load_memory()", "output()", "search('x', 2 ** 64)", "search('x', 1e300)", "output('0', 'stdout', 1).then(() => runtime.output('0', { name: 'stdout' }))",
    ],
}  # fmt: skip


async def test_what_a_function_of_the_runtime_can_not_take_is_an_error_that_the_script_can_catch(bilingual):
    """None of it is sent: to the host it would be no message, which ends the sandbox."""
    calls = WRONG[bilingual.language]
    code = {
        "python": "from mcp import runtime\nfor call in ("
        + ", ".join(f"lambda: runtime.{call}" for call in calls)
        + "):\n    try: print('done', await call())\n    except Exception as exc: print(getattr(exc, 'code', type(exc).__name__))",
        "javascript": "for (const call of ["
        + ", ".join(f"() => runtime.{call}" for call in calls)
        + "]) {\n  try { console.log('done', await call()) } catch (error) { console.log(error.code ?? error.name) }\n}",
    }
    record = await bilingual.run(code, faulty())
    refusals = {"bad_params", "unknown_output", *(["TypeError"] if bilingual.language == "python" else [])}
    told = dict(zip(calls, lines(record), strict=True))
    assert {call: what for call, what in told.items() if what not in refusals} == {}


# --- bad requests ---


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"code": ""}, "empty_code"),
        ({"code": " \n\t"}, "empty_code"),
        ({"code": "x" * (9 << 20)}, "code_too_large"),
        ({"code": "'\ud800'"}, "bad_code"),
        ({"code": "1", "timeout": 0}, "bad_timeout"),
        ({"code": "1", "timeout": -1}, "bad_timeout"),
        ({"code": "1", "timeout": 1e9}, "bad_timeout"),
        ({"code": "1", "timeout": float("nan")}, "bad_timeout"),
        ({"code": "1", "servers": ["faulti"]}, "unknown_server"),
    ],
    ids=["empty", "blank", "large", "surrogate", "zero", "negative", "long", "nan", "server"],
)
async def test_a_bad_request_is_refused_before_anything_starts(bilingual, options, code):
    async with bilingual.open(faulty()) as bridge:
        with pytest.raises(BridgeError) as caught:
            await bridge.run(**options)
        assert caught.value.code == code
        assert await bilingual.sandboxes.containers() == []


# --- together and taken back ---


async def test_twenty_runs_at_once_each_get_their_own_answer(bilingual):
    async with bilingual.open(faulty(), max_concurrent=20) as bridge:
        records = [None] * 20

        async def one(number):
            records[number] = await bridge.run(
                {
                    "python": f"from mcp.servers import faulty\nprint(await faulty.echo('run {number}'))\n{number}",
                    "javascript": f"console.log(await mcp.servers.faulty.echo('run {number}'));\n{number}",
                }
            )

        async with asyncio.TaskGroup() as tasks:
            for number in range(20):
                tasks.create_task(one(number))
    assert [printed(record) for record in records] == [f"run {number}\n" for number in range(20)]
    assert [record.value for record in records] == [str(number) for number in range(20)]
    assert len({record.execution for record in records}) == 20


async def test_processes_are_counted_by_sandbox(sandboxes):
    forks = """
import os, signal
children = []
try:
    while len(children) < 200:
        if (child := os.fork()) == 0:
            signal.pause()
        children.append(child)
except BlockingIOError:
    pass
print(len(children))
"""
    async with sandboxes.open(pids=48, max_concurrent=3) as bridge:
        records = [None] * 3

        async def one(number):
            records[number] = await bridge.run(forks)

        async with asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(one(number))
    assert all(30 < int(printed(record)) < 48 for record in records), records


async def test_a_sandbox_that_dies_before_the_script_is_no_fault_of_the_scripts(sandboxes, monkeypatch):
    monkeypatch.setattr(guest_bundle, "loader", lambda: "raise SystemExit(2)")
    async with sandboxes.open() as bridge:
        with pytest.raises(BridgeError, match="status 2 before the script began") as caught:
            await bridge.run("print('never')")
    assert caught.value.code == "sandbox_start_failed"


async def test_a_cancelled_run_leaves_no_container_wherever_it_was(bilingual):
    code = {
        "python": "from mcp.servers import faulty\nprint(await faulty.echo('a'))\nwhile True: pass",
        "javascript": "console.log(await mcp.servers.faulty.echo('a'));\nwhile (true) {}",
    }
    async with bilingual.open(faulty()) as bridge:
        for delay in (0, 0.001, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.7):
            with anyio.move_on_after(delay):
                await bridge.run(code)
            # `run` returns only when its container is gone.
            assert await bilingual.sandboxes.containers() == [], delay


async def test_a_run_cancelled_in_mid_call_takes_the_call_back(bilingual):
    told = asyncio.Event()
    async with bilingual.open(faulty()) as bridge:
        task = asyncio.create_task(
            bridge.run(
                {
                    "python": "import asyncio\nfrom mcp.servers import faulty\nawait faulty.echo('a')\n"
                    "call = asyncio.create_task(faulty.hang())\nawait asyncio.sleep(0.2)\nprogress(1)\nawait call",
                    "javascript": "const { faulty } = mcp.servers;\nawait faulty.echo('a');\nconst call = faulty.hang();\n"
                    "await new Promise((done) => setTimeout(done, 200));\nprogress(1);\nawait call",
                },
                progress=lambda *_: told.set(),
            )
        )
        await asyncio.wait_for(told.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        (ended,) = await bridge.bridge.lifecycle.store.executions(None, 10)
        assert ended.status == "cancelled"

        async def taken_back():
            record = await bridge.bridge.run("from mcp.servers import faulty\nprint(await faulty.cancelled())")
            return len(json.loads(printed(record))) == 1

        await until(taken_back)


async def test_leaving_the_bridge_ends_runs_under_way(bilingual):
    code = {"python": "progress(1)\nwhile True: pass", "javascript": "progress(1);\nwhile (true) {}"}
    started = asyncio.Event()
    with pytest.raises(ExceptionGroup) as caught:
        async with bilingual.open() as bridge, asyncio.TaskGroup() as tasks:
            tasks.create_task(bridge.run(code, progress=lambda *_: started.set()))
            await asyncio.wait_for(started.wait(), 30)
            raise RuntimeError("the server has to go")
    assert caught.group_contains(RuntimeError, match="has to go")
    assert await bilingual.sandboxes.containers() == []


async def test_who_reads_what_another_answer_had_to_cut_is_replayed_and_erased_with_it(sandboxes, tmp_path):
    async with sandboxes.open(state_dir=tmp_path) as bridge:
        first = await bridge.run("print('of the first')")
        bridge.files.save_output(first.execution, "stdout.txt", first.stdout)
        reader = await bridge.run(
            f"print(runtime.output({first.execution!r}), await runtime.output({first.execution!r}))"
        )
        assert printed(reader) == "of the first\n of the first\n\n"
        store = bridge.programs.store
        assert await store.holders(first.execution) == [reader.execution]
        bridge.files.save_output(reader.execution, "stdout.txt", "é€".encode() * 1000)
        anywhere = await bridge.run(f"""
from mcp_bridge.wire.messages import OutputRead
ask = runtime.output.__wrapped__.__self__._request
for start in (4999, 5000, 1 << 61, -1, 1 << 62, 10**30, "0", 1.5):
    try:
        print(start, ask(OutputRead({reader.execution!r}, "stdout", start)))
    except runtime.MCPError as exc:
        print(start, exc.code)
print(runtime.output({reader.execution!r})[1998:], repr(runtime.output({reader.execution!r})[5000:]))
""")
        assert lines(anywhere) == [
            "4999 {'text': '\\\\xac', 'next': None}",
            "5000 {'text': '', 'next': None}",
            f"{1 << 61} {{'text': '', 'next': None}}",
            "-1 unknown_output",
            f"{1 << 62} unknown_output",
            f"{10**30} bad_params",
            "0 bad_params",
            "1.5 bad_params",
            "é€ ''",
        ]
        assert (await bridge.replay_execution(await store.execution(reader.execution))).difference is None
        await erase(bridge._database, bridge.files, "execution", first.execution, by="me", reason=None)
        assert (await store.execution(reader.execution)).status == "erased"
        gone = await bridge.run(f"runtime.output({first.execution!r})")
        assert "has no stored output 'stdout'. Only output that an answer had to cut" in gone.error["message"]
