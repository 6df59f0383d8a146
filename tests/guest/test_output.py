"""Whatever writes to standard output or standard error, and however it ends: it arrives, whole and in order."""

import pytest
from execution_fixtures import lines, printed


async def test_python_c_and_child_processes_print_in_the_order_of_their_writes(sandboxes):
    record = await sandboxes.run("""
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None)
for number in range(30):
    print("python", number)
    libc.printf(b"c %d\\n", number)
    os.write(1, b"write %d\\n" % number)
    libc.puts(b"puts")
    if number % 10 == 0:
        subprocess.run([sys.executable, "-c", f"print('child', {number})"], check=True)
        if (pid := os.fork()) == 0:
            print("fork", number)
            os._exit(0)
        os.waitpid(pid, 0)
""")
    expected = []
    for number in range(30):
        expected += [f"python {number}", f"c {number}", f"write {number}", "puts"]
        if number % 10 == 0:
            expected += [f"child {number}", f"fork {number}"]
    assert lines(record) == expected


async def test_bytes_arrive_as_they_were_written(bilingual):
    code = {
        "python": r"""
import os, time
print("\n\n a \n")
print("no newline", end="")
print("\r\x00\x1b[31m", end="\n")
for byte in "ø€😀".encode():
    os.write(1, bytes([byte]))
    time.sleep(0.01)
os.write(1, b"\n\xff\xfe\xc3(\n")
os.write(1, "€".encode()[:2])
""",
        "javascript": r"""
const { writeSync } = require("node:fs");
console.log("\n\n a \n");
process.stdout.write("no newline");
process.stdout.write("\r\x00\x1b[31m\n");
for (const byte of Buffer.from("ø€😀")) {
  writeSync(1, Buffer.from([byte]));
  await new Promise((done) => setTimeout(done, 10));
}
writeSync(1, Buffer.from("\n\xff\xfe\xc3(\n", "latin1"));
writeSync(1, Buffer.from("€").subarray(0, 2));
""",
    }
    record = await bilingual.run(code)
    assert record.stdout == (
        b"\n\n a \n\nno newline\r\x00\x1b[31m\n" + "ø€😀".encode() + b"\n\xff\xfe\xc3(\n" + "€".encode()[:2]
    )
    assert "\\xff\\xfe" in record.to_json()["stdout"]


async def test_text_that_no_utf8_can_carry_is_printed_with_escapes(sandboxes):
    record = await sandboxes.run("print('a\\ud800b')")
    assert printed(record) == "a\\ud800b\n"


async def test_a_line_of_a_megabyte_arrives_whole(bilingual):
    code = {
        "python": """
text = "".join(chr(0x3b1 + n % 24) for n in range(1 << 20))
print(text)
print("x" * (1 << 20), end="")
""",
        "javascript": r"""
console.log(Array.from({ length: 1 << 20 }, (_, n) => String.fromCodePoint(0x3b1 + n % 24)).join(""));
process.stdout.write("x".repeat(1 << 20));
""",
    }
    record = await bilingual.run(code)
    greek = "".join(chr(0x3B1 + n % 24) for n in range(1 << 20))
    assert printed(record) == greek + "\n" + "x" * (1 << 20)


async def test_a_hundred_thousand_prints_arrive_in_order(bilingual):
    code = {
        "python": "for number in range(100_000): print(number)",
        "javascript": r"""for (let n = 0; n < 100_000; n++) console.log(n)""",
    }
    record = await bilingual.run(code)
    assert lines(record) == [str(number) for number in range(100_000)]


async def test_what_is_written_to_the_two_streams_is_in_order_within_each(bilingual):
    code = {
        "python": """
import sys
for number in range(1000):
    print("out", number)
    print("err", number, file=sys.stderr)
""",
        "javascript": r"""
for (let n = 0; n < 1000; n++) {
  console.log("out", n);
  console.error("err", n);
}
""",
    }
    record = await bilingual.run(code)
    assert lines(record) == [f"out {number}" for number in range(1000)]
    assert record.stderr.decode().splitlines() == [f"err {number}" for number in range(1000)]


ENDS = {
    "left": ({"python": "os._exit(3)", "javascript": "process.reallyExit(3)"}, "killed", 3),
    "SIGKILL": ({"python": "os.kill(os.getpid(), 9)", "javascript": "process.kill(process.pid, 9)"}, "killed", 137),
    "SIGSEGV": ({"python": "import ctypes; ctypes.string_at(0)", "javascript": "process.kill(process.pid, 11)"}, "killed", 139),
    "abort": ({"python": "os.abort()", "javascript": "process.abort()"}, "killed", 134),
    "out of memory": ({"python": "x = b'x' * (10 << 30)", "javascript": "new ArrayBuffer(2 ** 52)"}, "out_of_memory", None),
    "exception": ({"python": "1 / 0", "javascript": "null.x"}, "error", 1),
    "closed channel": (
        {
            "python": "os.closerange(100, 1024); print('never seen?', end=''); import time; time.sleep(60)",
            "javascript": "for (const fd of [3, 4, 5]) fs.closeSync(fd);\nfs.writeSync(1, 'never seen?');\n"
            "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
        },
        None,
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
async def test_what_was_printed_before_a_violent_end_is_not_lost(bilingual, end):
    codes, status, exit_code = ENDS[end]
    # Enough to be in the midst of sending when the end comes, in both streams.
    code = {
        "python": f"""
import os, sys, threading
for number in range(30_000):
    print("line", number)
print("last words", end="")
sys.stderr.write("and last errors")
{codes["python"]}
""",
        "javascript": f"""
const fs = require("node:fs");
for (let number = 0; number < 30_000; number++) console.log("line", number);
process.stdout.write("last words");
process.stderr.write("and last errors");
{codes["javascript"]}
""",
    }
    record = await bilingual.run(code, timeout=20)
    if status is not None:
        assert record.status == status, record.error
    if exit_code is not None:
        assert record.exit_code == exit_code
    expected = "".join(f"line {number}\n" for number in range(30_000)) + "last words"
    got = record.stdout.decode()
    if end == "closed channel":
        got = got.removesuffix("never seen?")
    assert (len(got), got) == (len(expected), expected)
    assert record.stderr.decode().startswith("and last errors")


async def test_what_was_printed_before_the_kernel_killed_for_memory_is_not_lost(sandboxes):
    record = await sandboxes.run("""
print("before", flush=True)
parts = []
while True:
    parts.append(bytearray(b"x" * (8 << 20)))
""")
    assert record.status == "out_of_memory", record.error
    assert record.stdout == b"before\n"


@pytest.mark.parametrize("code", ["while True: pass", "import re; re.match('(a+)+$', 'a' * 60 + 'b')"], ids=["py", "c"])
async def test_what_was_printed_before_a_time_out_is_not_lost(sandboxes, code):
    record = await sandboxes.run(f"print('before')\n{code}", timeout=1)
    assert record.status == "timeout"
    assert record.stdout == b"before\n"


async def test_threads_print_and_those_that_outlive_the_code_are_waited_for(sandboxes):
    record = await sandboxes.run("""
import threading, time
def work(number):
    time.sleep(0.2)
    for step in range(100):
        print(f"{number}:{step}\\n", end="")
for number in range(5):
    threading.Thread(target=work, args=(number,)).start()
print("main ends")
""")
    out = lines(record)
    assert out[0] == "main ends"
    for number in range(5):
        assert [line for line in out if line.startswith(f"{number}:")] == [f"{number}:{step}" for step in range(100)]


@pytest.mark.parametrize("end", ["1 / 0", "import sys; sys.exit(4)"])
async def test_threads_are_waited_for_after_a_bad_end_too(sandboxes, end):
    record = await sandboxes.run(f"""
import threading, time
def work():
    time.sleep(0.2)
    print("from the thread")
threading.Thread(target=work).start()
{end}
""")
    assert record.status in {"error", "exit"}
    assert record.stdout == b"from the thread\n"


async def test_a_forgotten_executor_does_not_hold_up_the_end(sandboxes):
    record = await sandboxes.run(
        """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor()
pool.submit(print, "from the pool")
""",
        timeout=10,
    )
    assert printed(record) == "from the pool\n"


async def test_exit_functions_run_and_print_last(sandboxes):
    record = await sandboxes.run("""
import atexit
atexit.register(print, "second")
@atexit.register
def fails():
    raise ValueError("at exit")
print("first")
""")
    assert printed(record) == "first\nsecond\n"
    assert b"ValueError: at exit" in record.stderr


@pytest.mark.parametrize(
    ("sabotage", "status"),
    [
        ("sys.stdout = None", "success"),
        ("del sys.stdout, sys.stderr", "error"),
        ("sys.stdout.close()", "error"),
        ("sys.stdout = open('/dev/null', 'w')", "success"),
        ("sys.stdout = type('Odd', (), {'write': lambda *a: 0, 'flush': lambda s: 1 / 0})()", "success"),
        ("sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = 7", "error"),
        ("os.close(1)", "error"),
    ],
)
async def test_a_script_that_replaces_or_closes_its_output_loses_only_what_comes_after(sandboxes, sabotage, status):
    record = await sandboxes.run(f"import os, sys\nprint('before')\n{sabotage}\nprint('after')", timeout=10)
    assert record.stdout == b"before\n"
    assert record.status == status, record.error
    if status == "error":
        assert record.error["line"] == 4


async def test_a_script_may_write_to_its_output_in_other_ways(sandboxes):
    record = await sandboxes.run("""
import contextlib, io, os, sys
with open("/dev/stdout", "w") as file: file.write("device\\n")
with os.fdopen(os.dup(1), "w") as file: file.write("copy\\n")
sys.stdout.buffer.write(b"buffer\\n")
sys.__stdout__.write("original\\n")
with contextlib.redirect_stdout(io.StringIO()) as held: print("held")
with contextlib.redirect_stdout(sys.stderr): print("elsewhere")
print(held.getvalue(), end="")
sys.stdout.writelines(["a\\n", "b\\n"])
assert not sys.stdout.isatty()
assert sys.stdout.encoding == "utf-8"
""")
    assert lines(record) == ["device", "copy", "buffer", "original", "held", "a", "b"]
    assert record.stderr == b"elsewhere\n"


async def test_standard_input_is_empty(bilingual):
    code = {
        "python": "import sys\nprint(repr(sys.stdin and sys.stdin.read()))\ninput()",
        "javascript": r"""
console.log(JSON.stringify(require("node:fs").readFileSync(0, "utf8")));
for await (const part of process.stdin) console.log("never");
require("node:fs").readSync(0, Buffer.alloc(1)) || null.x;
""",
    }
    record = await bilingual.run(code)
    assert record.stdout in {b"''\n", b"None\n", b'""\n'}
    assert record.error["type"] in {"EOFError", "RuntimeError", "TypeError"}


ENDLESS = {
    "own": {"python": "while True: print('x' * 1000)", "javascript": "while (true) console.log('x'.repeat(1000))"},
    "child": {
        "python": "import subprocess\nsubprocess.run(['python3', '-c', 'while 1: print(\"y\" * 1000)'])",
        "javascript": "require('child_process').spawnSync('python3', ['-c', 'while 1: print(\"y\" * 1000)'], { stdio: 'inherit' })",
    },
    "bytes": {
        "python": "import os\nwhile True: os.write(2, b'\\xff' * 5000)",
        "javascript": "while (true) require('fs').writeSync(2, Buffer.alloc(5000, 0xff))",
    },
}


@pytest.mark.parametrize("who", ENDLESS)
async def test_endless_output_ends_the_script_and_keeps_what_was_printed(bilingual, who):
    record = await bilingual.run(ENDLESS[who], max_output_size=1 << 20, timeout=20)
    assert record.status == "output_limit"
    assert record.exit_code == 137
    assert record.error["code"] == "output_limit"
    assert str(1 << 20) in record.error["message"]
    assert len(record.stdout) + len(record.stderr) == 1 << 20
    assert set(record.stdout) <= {*b"xy\n"}


async def test_output_over_the_limit_is_told_though_the_script_ended_at_once(bilingual):
    code = {
        "python": "import os\nos.write(1, b'x' * 60_000)\nos._exit(0)",
        "javascript": r"""require('fs').writeSync(1, Buffer.alloc(60_000, 'x'));
process.reallyExit(0);""",
    }
    record = await bilingual.run(code, max_output_size=50_000)
    assert record.status == "output_limit"
    assert record.stdout == b"x" * 50_000


async def test_output_up_to_the_limit_is_no_fault(bilingual):
    code = {
        "python": "print('x' * 999_999)",
        "javascript": r"""console.log('x'.repeat(999_999))""",
    }
    record = await bilingual.run(code, max_output_size=1_000_000)
    assert printed(record) == "x" * 999_999 + "\n"
