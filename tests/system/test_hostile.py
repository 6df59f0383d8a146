"""Hostile code in the real sandbox: it ends itself alone, with a true status, while another run goes on unharmed.

All of it runs in one bridge, one after the other. What takes a bridge of its own is in `test_hostile_floods.py`.
"""

import json

import pytest
from execution_fixtures import BOTH, lines, printed
from hostile_scripts import CHANNEL, MEGABYTE, RESOURCES, on_channel

from mcp_bridge.executions.artifacts import Files
from mcp_bridge.executions.record import ExecutionRecord
from mcp_bridge.server.answers.render import Answer
from mcp_bridge.settings import Settings

pytestmark = pytest.mark.usefixtures("no_internal_errors")


# --- what it can do to its own sandbox ---


@pytest.mark.parametrize("attack", RESOURCES)
def test_using_up_everything_ends_only_itself(arena, attack):
    code, statuses = RESOURCES[attack]
    record = arena.attacked(code, timeout=2 if statuses == {"timeout"} else 3 if "timeout" in statuses else 20)
    assert record.status in statuses, (record.status, record.error)


def test_who_dies_of_memory_leaves_nothing_among_what_is_kept(arena, sandbox_state_dir):
    before = {path.name for path in sandbox_state_dir.iterdir()}
    record = arena.attacked(RESOURCES["ten gigabytes"][0], timeout=20)
    assert record.status == "out_of_memory"
    assert "oom" not in {path.name for path in sandbox_state_dir.iterdir()} - before


KILLS = {
    "STOP to itself": ("os.kill(os.getpid(), signal.SIGSTOP)", {"timeout"}),
    "STOP to all": ("if os.fork() == 0: signal.pause()\nos.kill(-1, signal.SIGSTOP)\nwhile True: pass", {"timeout"}),
    "KILL to all": ("if os.fork() == 0: signal.pause()\nos.kill(-1, signal.SIGKILL)\nprint('alone')", {"success"}),
    "KILL to all from a child": (
        "if os.fork() == 0:\n    os.kill(-1, signal.SIGKILL)\n    os._exit(0)\nwhile True: pass",
        {"killed"},
    ),
    "signals to process 1": (
        "for number in range(1, 65):\n    try: os.kill(1, number)\n    except OSError: pass\nprint('alone')",
        {"success"},
    ),
    "deaf to signals": (
        "for n in set(signal.Signals) - {9, 19}:\n    signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
        {"timeout"},
    ),
    "blocked signals": ("signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass", {"timeout"}),
    "its own group": ("os.setsid() if os.getpid() != os.getpgid(0) else 0\nos.killpg(0, signal.SIGKILL)", {"killed"}),
    "daemons": (
        "for _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n        signal.signal(15, signal.SIG_IGN)\n"
        "        while True: pass\nprint('left them')",
        {"success"},
    ),
    "daemons that hold every descriptor": (
        "import ctypes\nif ctypes.CDLL(None).fork() == 0:\n    while True: signal.pause()\nos._exit(3)",
        {"killed"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", KILLS)
def test_signals_and_daemons_stay_inside(arena, attack):
    code, statuses = KILLS[attack]
    record = arena.attacked(f"import os, signal\n{code}", timeout=1 if statuses == {"timeout"} else 2)
    assert record.status in statuses, (record.status, record.error)


PROCESS_ONE = {
    "its memory": "fd = os.open('/proc/1/mem', os.O_RDWR)\nfor line in open('/proc/1/maps'):\n    start, end = (int(x, 16) for x in line.split()[0].split('-'))\n    try: os.pwrite(fd, b'\\xcc' * (end - start), start)\n    except OSError: pass",
    "its descriptors closed": "import glob\nfor name in glob.glob('/proc/1/fd/*'):\n    try: os.ftruncate(os.open(name, os.O_RDWR), 0)\n    except OSError: pass",
    "its limits": "import resource\nresource.prlimit(1, resource.RLIMIT_CPU, (1, 1))\nresource.prlimit(1, resource.RLIMIT_AS, (1, 1))\ntime.sleep(2)",
    "its priority": "os.setpriority(os.PRIO_PROCESS, 1, 19)",
    "its oom score": "open('/proc/1/oom_score_adj', 'w').write('1000')\nx = []\nwhile True: x.append(bytearray(b'x' * (8 << 20)))",
    "its standard input eaten": "fd = os.open('/proc/1/fd/0', os.O_RDONLY | os.O_NONBLOCK)\nfor _ in range(1000):\n    try: os.read(fd, 1 << 20)\n    except OSError: pass",
    "ptrace": "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.ptrace(16, 1, 0, 0)\nlibc.kill(1, 9)",
}  # fmt: skip


@pytest.mark.parametrize("attack", PROCESS_ONE)
def test_attacks_on_process_one_end_this_sandbox_at_most(arena, attack):
    record = arena.attacked(
        f"import os, time\nprint('before', flush=True)\n{PROCESS_ONE[attack]}\nprint('after')", timeout=4
    )
    assert record.status in {"success", "error", "killed", "out_of_memory", "channel_closed", "timeout"}, record.error
    assert record.stdout.startswith(b"before\n")
    if record.status != "success":
        assert record.error["message"]


def test_process_one_is_out_of_the_scripts_reach(arena):
    record = arena.attacked("""
import os
for name in ("mem", "maps", "fd/0", "fd/2", "environ"):
    try:
        os.close(os.open(f"/proc/1/{name}", os.O_RDONLY))
        print("open", name)
    except OSError as exc:
        print(type(exc).__name__)
print(len(os.listdir("/proc/self/fd")) > 3, open("/proc/self/maps").read() != "")
""")
    # It is hidden; Docker, which can't hide it, closes it.
    why = "PermissionError" if arena.engine == "docker" else "FileNotFoundError"
    assert lines(record) == [why] * 5 + ["True True"]


# --- frames ---

BAD_FRAMES = {
    "no json": ("raw(b'hello\\n')", "bad_frame"),
    "empty": ("raw(b'\\n')", "bad_frame"),
    "binary": ("raw(bytes(range(256)) + b'\\n')", "bad_frame"),
    "an array": ("raw(b'[]\\n')", "bad_frame"),
    "deep json": ("raw(b'[' * (1 << 20) + b'\\n')", None),
    "deep json that closes": ("raw(b'{\"a\":' * (1 << 19) + b'1' + b'}' * (1 << 19) + b'\\n')", None),
    "deep parameters": ("send(id=1, method='memory.save', params={'key': 'k', 'value': json.loads('[' * 90 + ']' * 90)})", "frame_too_deep"),
    "20 MB": ("raw(b'x' * (20 << 20))", "frame_too_large"),
    "20 MB that is a message": ("send(method='output.write', params={'stream': 'stdout', 'text': 'x' * (20 << 20)})", "frame_too_large"),
    "five million values": ("raw(b'{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"memory.save\",\"params\":{\"key\":\"k\",\"value\":[' + b'[],' * 5_000_000 + b'0]}}\\n')", "frame_too_large"),
    "a number of 5,000 digits": ("raw(b'{\"jsonrpc\":\"2.0\",\"id\":' + b'9' * 5000 + b',\"method\":\"memory.list\"}\\n')", "bad_frame"),
    "an answer": ("send(id=1, result={})", "unexpected_response"),
    "an error": ("send(id=1, error={'code': 1, 'message': 'm'})", "unexpected_response"),
    "an unknown method": ("send(id=1, method='host.shutdown', params={})", "unknown_method"),
    "a host's method": ("send(method='execution.start', params={'execution': 'e', 'code': '1', 'servers': [], 'max_value_bytes': 1})", "unknown_method"),
    "process 1's method": ("send(method='init.exited', params={'code': 0, 'signal': 0, 'oom_kills': 0})", "unknown_method"),
    "a notification as a request": ("send(id=1, method='output.write', params={'stream': 'stdout', 'text': 'x'})", "unknown_method"),
    "a request as a notification": ("send(method='memory.list', params={})", "unknown_method"),
    "a finish as a notification": ("send(method='execution.finish', params={'exit_code': 0})", "unknown_method"),
    "an unknown parameter": ("send(id=1, method='memory.list', params={'prefix': '', 'policy': 'allow'})", "bad_params"),
    "a wrong type": ("send(id=1, method='tool.call', params={'server': ['faulty'], 'tool': 'echo', 'arguments': {}})", "bad_params"),
    "a truth value for a number": ("send(id=1, method='catalog.search', params={'query': 'x', 'limit': True})", "bad_params"),
    "a missing parameter": ("send(id=1, method='tool.call', params={'server': 'faulty'})", "bad_params"),
    "an endless number": ("send(method='progress.report', params={'done': 10 ** 400})", "bad_params"),
    "infinity": ("raw(b'{\"jsonrpc\":\"2.0\",\"method\":\"progress.report\",\"params\":{\"done\":1e999}}\\n')", "bad_frame"),
    "output that is neither": ("send(method='output.write', params={'stream': 'stdout'})", "bad_params"),
    "output that is both": ("send(method='output.write', params={'stream': 'stdout', 'text': '', 'base64': ''})", "bad_params"),
    "output to another stream": ("send(method='output.write', params={'stream': 'log', 'text': ''})", "bad_params"),
    "base64 that is none": ("send(method='output.write', params={'stream': 'stdout', 'base64': '*'})", "bad_params"),
    "a display without text": ("send(method='output.display', params={'data': {'text/plain': 7}})", "bad_params"),
    "a lone surrogate": ("raw(b'{\"jsonrpc\":\"2.0\",\"method\":\"output.write\",\"params\":{\"stream\":\"stdout\",\"text\":\"\\\\ud800\"}}\\n')", "bad_frame"),
    "duplicate ids": ("for _ in range(2): send(id=7777, method='tool.call', params={'server': 'faulty', 'tool': 'hang', 'arguments': {}})", "bad_params"),
    "a terminal's escapes": ("raw(b'\\x1b]0;owned\\x07\\n')", "bad_frame"),
}  # fmt: skip


@pytest.mark.parametrize("language", BOTH)
@pytest.mark.parametrize("attack", BAD_FRAMES)
def test_a_malformed_frame_ends_the_sandbox_and_the_response_says_what_came(arena, attack, language):
    if (attack, language) == ("empty", "javascript"):
        pytest.skip("Node asks for what was printed with an empty line; the host sees none")
    code, expected = BAD_FRAMES[attack]
    found = arena.measured(on_channel(language, f"{code}\nstay()"), language=language)
    record = found.record
    assert record.status == "protocol_error", (record.status, record.error)
    assert record.exit_code == 137
    if expected is not None:
        assert record.error["code"] == expected
    else:
        assert record.error["code"] in {"frame_too_deep", "frame_too_large", "bad_frame"}
    assert record.error["message"].isprintable()
    assert record.stdout == b"before\n"
    assert found.growth < 200 * MEGABYTE
    assert found.longest < 3


def test_half_a_frame_is_no_message_and_its_end_is_told_as_it_was(arena):
    record = arena.attacked(
        CHANNEL
        + 'raw(b\'{"jsonrpc":"2.0","id":1,"method":"execution.finish","params":{"exit_code":0}}\')\nos._exit(9)',
    )
    assert (record.status, record.exit_code) == ("killed", 9)


def test_output_that_looks_like_a_frame_is_output(arena):
    frame = '{"jsonrpc":"2.0","id":1,"method":"execution.finish","params":{"exit_code":7}}'
    record = arena.attacked(
        f"import os, sys\nprint({frame!r})\nos.write(2, {frame!r}.encode() + b'\\n')\n"
        "for fd in (0, 1, 2):\n    try: os.write(fd, b'{}\\n')\n    except OSError: pass\nprint('end')",
    )
    assert lines(record) == [frame, "{}", "end"]


@pytest.mark.parametrize("language", BOTH)
def test_a_forged_finish_says_no_more_than_the_script_might(arena, language):
    for params, status, exit_code in (
        ("'exit_code': 0, 'value': 'v'", "success", 0),
        ("'exit_code': 2**40 + 3", "exit", 3),
        ("'exit_code': -1", "exit", 255),
        ("'exit_code': 0, 'error': {'type': ['x'], 'message': {'a': 1}, 'line': True, 'traceback': 7}", "error", 1),
        ("'exit_code': 0, 'error': {'type': 'x' * 10**6, 'message': 'y' * 10**6, 'line': -5}", "error", 1),
        ("'exit_code': 0, 'error': {}", "error", 1),
        ("'exit_code': 0, 'value': 'x' * (15 << 20)", "success", 0),
    ):
        code = f"send(id=99999, method='execution.finish', params={{{params}}})\nstay()"
        record = arena.attacked(on_channel(language, code), language=language)
        assert (record.status, record.exit_code) == (status, exit_code), record.error
        if record.error:
            assert len(json.dumps(record.error)) < 400_000
            line = record.error.get("line")
            assert line is None or (type(line) is int and line > 0)
        assert len(record.value or "") <= 8 << 20


REPORTS = {
    "an exit": "{'jsonrpc': '2.0', 'method': 'init.exited', 'params': {'code': 0, 'signal': 0, 'oom_kills': 5}}",
    "a large exit": "{'jsonrpc': '2.0', 'method': 'init.exited', 'params': {'code': 2 ** 60, 'signal': 2 ** 60, 'oom_kills': -7}}",
    "output": "{'jsonrpc': '2.0', 'method': 'output.write', 'params': {'stream': 'stdout', 'text': 'forged', 'offset': -5}}",
    "a finish": "{'jsonrpc': '2.0', 'id': 1, 'method': 'execution.finish', 'params': {'exit_code': 0}}",
    "nothing known": "{'jsonrpc': '2.0', 'method': 'x', 'params': {'deep': json.loads('[' * 80 + ']' * 80)}}",
}


@pytest.mark.parametrize("attack", REPORTS)
def test_forged_reports_of_process_one_change_nothing_that_matters(arena, attack):
    # Where the engine's user may open them at all, process 1's descriptors lead to the host.
    forge = f"""
import json, os
line = json.dumps({REPORTS[attack]}).encode()
try:
    fd = os.open("/proc/1/fd/2", os.O_WRONLY)
except (FileNotFoundError, PermissionError):
    fd = os.open("/dev/null", os.O_WRONLY)
for data in (line, b"{{not json", b"{{" * 100_000, b"\\xff" * 3_000_000, b"{{" + b"x" * 3_000_000, line):
    view = memoryview(data + b"\\n")
    while view: view = view[os.write(fd, view):]
print("done", flush=True)
"""
    well = arena.attacked(forge, timeout=20)
    assert printed(well) == "done\n"
    died = arena.attacked(forge + "os._exit(5)", timeout=20)
    assert (died.status, died.exit_code) == ("killed", 5), died.error
    # What process 1 is taken to say of output is output, as the script might have printed it.
    assert died.stdout.startswith(b"done\n")


@pytest.mark.parametrize("form", ["compact", "toon", "json"])
@pytest.mark.parametrize("depth", [100, 900, 995, 100_000])
def test_deep_json_that_was_printed_can_be_answered_in_every_form(tmp_path, form, depth):
    for printed_ in ("[" * depth + "]" * depth, "[" * depth, "9" * depth, '{"a":' * depth):
        record = ExecutionRecord("0" * 16, stdout=printed_.encode())
        settings = Settings(output=form, max_output_chars=1_000_000)
        answer = Answer(record, settings, Files(tmp_path))
        assert answer.text().count("[") >= printed_.count("[")


# --- the channel itself ---

DESCRIPTORS = {
    "all closed": ("os.closerange(0, 1024)\nwhile True: pass", {"channel_closed", "timeout"}),
    "all closed and ended": ("os.closerange(0, 1024)", {"channel_closed"}),
    "the channel closed": (CHANNEL + "os.close(WRITE)\nstay()", {"channel_closed", "timeout"}),
    "the answers closed": (CHANNEL + "os.close(READ)\nstay()", {"channel_closed", "timeout"}),
    "a file in its place": (CHANNEL + "os.dup2(os.open('/tmp/f', 65), WRITE)\nprint('x')", {"channel_closed", "timeout"}),
    "a loop in its place": (CHANNEL + "r, w = os.pipe()\nos.dup2(w, WRITE)\nos.dup2(r, READ)\nprint('x')", {"channel_closed", "timeout"}),
    "its own answers": (CHANNEL + "r, w = os.pipe()\nos.dup2(r, READ)\nos.write(w, b'{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\\n' * 99)\nprint('x')", {"success", "channel_closed", "timeout"}),
    "the pipe filled": (CHANNEL + "os.set_blocking(WRITE, False)\ntry:\n    while True: os.write(WRITE, b' ' * 65536)\nexcept BlockingIOError: pass\nstay()", {"timeout", "protocol_error"}),
    "output pipes closed": ("import os\nfor fd in range(3, 100):\n    try: os.close(fd)\n    except OSError: pass\nprint('x' * 10)", {"success", "channel_closed", "timeout", "error"}),
    "outputs exchanged": ("import os\nos.dup2(1, 50)\nos.dup2(2, 1)\nos.dup2(50, 2)\nprint('x')", {"success"}),
    "the answers stopped": (CHANNEL + "os.kill(os.getpid(), 19)", {"timeout"}),
}  # fmt: skip


@pytest.mark.parametrize("attack", DESCRIPTORS)
def test_meddling_with_descriptors_ends_this_sandbox_at_most(arena, attack):
    code, statuses = DESCRIPTORS[attack]
    record = arena.attacked(f"import os\n{code}", timeout=1 if statuses == {"timeout"} else 2)
    assert record.status in statuses, (record.status, record.error)


# --- the interpreter turned against the runtime ---

SABOTAGE = {
    "modules gone": ("import sys\nsys.modules.clear()", None),
    "modules none": ("import sys\nfor name in list(sys.modules): sys.modules[name] = None", None),
    "import broken": ("import builtins\nbuiltins.__import__ = lambda *a, **k: 1 / 0", None),
    "builtins gone": ("import builtins\nfor name in list(vars(builtins)): delattr(builtins, name)", None),
    "builtins replaced": ("import builtins\nfor name in ('len', 'isinstance', 'str', 'dict', 'list', 'repr', 'print', 'type', 'open', 'bytes'): setattr(builtins, name, 7)", None),
    "json patched": ("import json\njson.JSONEncoder.encode = lambda *a, **k: 'nonsense'\nprint('x')", {"success"}),
    "frames patched": ("import mcp_bridge.wire.jsonrpc as j\nj.Encoder.encode = lambda *a, **k: 'nonsense'\nprint('x')", {"protocol_error"}),
    "json raising": ("import json\njson.dumps = json.JSONEncoder.encode = lambda *a, **k: 1 / 0", None),
    "json endless": ("import json\ndef f(*a, **k):\n    while True: pass\njson.JSONEncoder.encode = f", {"success"}),
    "frames endless": ("import mcp_bridge.wire.jsonrpc as j\ndef f(*a, **k):\n    while True: pass\nj.Encoder.encode = f", {"timeout"}),
    "os.write patched": ("import os\nos.write = lambda fd, data: len(data)\nprint('x')", {"timeout", "killed", "channel_closed"}),
    "os._exit patched": ("import os\nos._exit = lambda code: None\nprint('x')", None),
    "threads patched": ("import threading\nthreading.Lock = threading.RLock = threading.Thread = None\nthreading._shutdown = 7\nprint('x')", {"error", "killed"}),
    "time patched": ("import time\ntime.sleep = lambda s: 1 / 0\ntime.monotonic = lambda: 0\nprint('x')", {"success"}),
    "mcp patched": ("import sys, mcp\nfor name in [n for n in sys.modules if n.startswith('mcp')]: sys.modules[name].__dict__.clear()\nprint('x')", None),
    "the channel's class patched": ("import mcp_bridge.guest.channel as c\nc.Channel.request = lambda *a: {}\nc.Channel.notify = lambda *a: None\nprint('x')", None),
    "garbage": ("import gc\nfor thing in gc.get_objects():\n    if type(thing) is dict and thing is not globals():\n        try: thing.clear()\n        except Exception: pass", None),
    "trace functions": ("import sys, threading\ndef f(*a): raise ValueError('trace')\nthreading.settrace(f)\nsys.settrace(f)\nsys.setprofile(f)\nlen('')", None),
    "audit hook": ("import sys\ndef hook(*a): raise ValueError('audit')\nsys.addaudithook(hook)\nopen('/tmp/x')", None),
    "recursion limit": ("import sys\nsys.setrecursionlimit(sys.getrecursionlimit() - 970)\nprint('x')", None),
    "exit functions": ("import atexit, os, sys\natexit.register(lambda: os._exit(7))\natexit.register(lambda: sys.exit(3))", {"killed"}),
    "exception hooks": ("import sys, threading\nsys.excepthook = sys.unraisablehook = threading.excepthook = None\n1 / 0", {"error"}),
    "frames": ("import sys\nf = sys._getframe()\nwhile f:\n    try: f.f_locals.clear(); f.f_globals.clear()\n    except Exception: pass\n    f = f.f_back", None),
    "memory written": ("import ctypes\nctypes.memset(id(None), 255, 64)", None),
    "modules reloaded": ("import importlib, sys\nfor name in [n for n in sys.modules if n.startswith('mcp_bridge')]:\n    try: importlib.reload(sys.modules[name])\n    except Exception: pass\nprint('x')", None),
    "main again": ("import mcp_bridge.guest.main as m\nm.main(((1, 1), (2, 2)), (None, None), None)", None),
    "process 1 again": ("import mcp_bridge.guest.init as i\ni.main([])", None),
}  # fmt: skip


@pytest.mark.parametrize("attack", SABOTAGE)
def test_a_sabotaged_interpreter_ends_this_run_at_most(arena, attack):
    code, statuses = SABOTAGE[attack]
    record = arena.attacked(f"import os\nos.write(1, b'before\\n')\n{code}", timeout=2)
    any_ = {"success", "error", "killed", "timeout", "channel_closed", "protocol_error", "exit", "out_of_memory"}
    assert record.status in (statuses or any_), (record.status, record.error)
    if record.status != "success":
        assert record.error["message"]
    if record.status != "protocol_error" and attack not in {"os.write patched", "the channel's class patched"}:
        assert record.stdout.startswith(b"before\n"), (record.status, record.stdout)


SHOWN = {
    "a huge value": ("'x' * 50_000_000", "success"),
    "a huge list": ("list(range(5_000_000))", "success"),
    "a deep list": ("x = []\nfor _ in range(100_000): x = [x]\nx", "error"),
    "a circular list": ("x = []\nx.append(x)\nx", "success"),
    "a repr that raises": ("class C:\n    def __repr__(self): raise ValueError('r')\nC()", "error"),
    "a repr that exits": ("class C:\n    def __repr__(self): raise SystemExit(3)\nC()", "exit"),
    "a repr that loops": ("class C:\n    def __repr__(self):\n        while True: pass\nC()", "timeout"),
    "a repr that is no text": ("class C:\n    def __repr__(self): return 7\nC()", "error"),
    "a repr that lies": ("class S(str):\n    def __len__(self): return 1\n    def encode(self, *a): return b'x'\nclass C:\n    def __repr__(self): return S('y' * 30_000_000)\nC()", "success"),
    "attributes that answer to all": ("class C:\n    def __getattr__(self, name): return lambda *a: C()\nC()", "success"),
    "attributes that raise": ("class C:\n    def __getattribute__(self, name): raise OSError('a')\nC()", None),
    "a picture that is none": ("class C:\n    def _repr_png_(self): return 'no bytes \\ud800'\nC()", None),
    "a picture too large": ("class C:\n    def _repr_png_(self): return b'x' * (20 << 20)\nC()", None),
    "a huge message": ("raise ValueError('x' * 100_000_000)", "error"),
    "a huge syntax error": ("exec('(' * 1_000_000)", None),
    "a huge line": ("x = " + "1 + " * 50_000 + "1", None),
    "a huge exception group": ("raise ExceptionGroup('g', [ValueError(n) for n in range(100_000)])", "error"),
    "a deep exception group": ("e = ValueError()\nfor _ in range(3000): e = ExceptionGroup('g', [e])\nraise e", "error"),
    "a huge type name": ("raise type('T' * 1_000_000, (Exception,), {})('m')", "error"),
    "an exception that raises on everything": ("class E(Exception):\n    def __getattribute__(self, name): raise RuntimeError(name)\nraise E", "error"),
    "an exception with endless notes": ("e = ValueError('m')\ne.__notes__ = ['n' * 1_000_000] * 50\nraise e", "error"),
}  # fmt: skip


@pytest.mark.parametrize("attack", SHOWN)
def test_values_and_errors_made_to_break_the_report_are_reported(arena, attack):
    code, status = SHOWN[attack]
    found = arena.measured(code, timeout=10 if status != "timeout" else 1)
    record = found.record
    assert status is None or record.status == status, (record.status, record.error)
    assert record.status in {"success", "error", "exit", "timeout", "out_of_memory"}, record.error
    assert len(record.to_json()) > 0
    if record.error:
        assert len(json.dumps(record.error)) < 500_000
    assert found.growth < 200 * MEGABYTE
