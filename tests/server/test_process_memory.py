"""How a process that serves shares its interpreter and gives memory back."""

import json
import os
import subprocess
import sys

PROGRAM = """
import gc, json, sys
import anyio
from mcp_bridge.server import process_memory

async def main():
    process_memory.LOOK_SECONDS = 0.01
    process_memory.COLLECT_SECONDS = 0.02
    collected = []
    gc.callbacks.append(lambda phase, info: phase == "stop" and info["generation"] == 2 and collected.append(1))
    process_memory.configure_interpreter()
    kept = [[number] for number in range(300_000)]
    before = len(collected)
    with anyio.move_on_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process_memory.release_memory)
            while not collected:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    print(json.dumps([sys.getswitchinterval(), before, len(collected) > 0, len(kept)]))

anyio.run(main)
"""


def test_everything_is_looked_through_when_it_is_quiet_and_not_in_the_midst_of_a_large_value():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=100)
    assert json.loads(ended.stdout) == [0.0005, 0, True, 300_000]


BESIDE_LARGE_WORK = """
import gc, threading
import anyio
from mcp_bridge.offload import on_thread
from mcp_bridge.server import process_memory

async def main(quiet_seconds, ends):
    process_memory.LOOK_SECONDS = process_memory.COLLECT_SECONDS = 0.001
    process_memory.QUIET_SECONDS = quiet_seconds
    collected, let_go = [], threading.Event()
    gc.callbacks.append(lambda phase, info: phase == "stop" and info["generation"] == 2 and collected.append(1))
    process_memory.configure_interpreter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(on_thread, let_go.wait)
        tasks.start_soon(process_memory.release_memory)
        if ends:
            await anyio.sleep(0.2)
            assert not collected
            let_go.set()
        while not collected:
            await anyio.sleep(0.001)
        let_go.set()
        tasks.cancel_scope.cancel()

anyio.run(main, 1000.0, True)
anyio.run(main, 0.001, False)
"""


def test_garbage_is_not_collected_beside_large_values_unless_they_never_end():
    subprocess.run([sys.executable, "-c", BESIDE_LARGE_WORK], check=True, timeout=100)


def test_the_process_of_a_command_is_left_as_it_is():
    # In a process of its own: another test may have served in this one.
    program = """
import gc, sys
from mcp_bridge.cli.app import app
app(["--help"], standalone_mode=False)
print(gc.get_threshold()[2] < 1000, sys.getswitchinterval() > 0.001)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    assert ended.stdout.endswith("True True\n")


ENABLES = """
import gc
gc.disable()
kept = [[number] for number in range(50_000)]
from mcp_bridge.server import process_memory
process_memory.configure_interpreter()
assert gc.isenabled()
assert gc.get_freeze_count() > 50_000
"""


def test_what_was_imported_without_collections_is_kept_out_of_later_ones():
    subprocess.run([sys.executable, "-c", ENABLES], check=True, timeout=60)


HIDING = """
import json, sys
from mcp_bridge.server.process_memory import missing

try:
    with missing("uvicorn", "json", "there_is_no_such_module"):
        import mcp.server
        hidden = "uvicorn" in [name for name, module in sys.modules.items() if module is not None]
        raise KeyError
except KeyError:
    pass
import uvicorn
print(json.dumps([hidden, uvicorn.Server.__name__, "there_is_no_such_module" in sys.modules]))
"""


def test_a_module_counts_as_missing_for_as_long_as_it_is_hidden():
    ended = subprocess.run([sys.executable, "-c", HIDING], capture_output=True, text=True, check=True, timeout=100)
    assert json.loads(ended.stdout) == [False, "Server", False]


IDLE = """
import json, sys
from mcp_bridge.cli.commands.serve import serve
serve(None)
unneeded = ("uvicorn", "click", "tarfile", "difflib", "statistics", "mcp_bridge.sandbox.cli_engine")
unneeded += ("httpx2", "mcp.client", "mcp.server.mcpserver", "snowballstemmer", "anyio.from_thread")
unneeded += ("mcp_bridge.sandbox.engine_errors", "mcp_bridge.sandbox.image.host_tools")
print(json.dumps([name for name in unneeded if name in sys.modules]), file=sys.stderr)
"""


def test_a_bridge_that_has_started_has_not_imported_what_only_others_need(tmp_path):
    (tmp_path / "config.toml").write_text("client_configs = false\n")
    environment = {
        **os.environ,
        "MCP_BRIDGE_STATE_DIR": str(tmp_path),
        "MCP_BRIDGE_CONFIG": str(tmp_path / "config.toml"),
    }
    ended = subprocess.run(
        [sys.executable, "-c", IDLE],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment,
        cwd=tmp_path,
        timeout=100,
        check=True,
    )
    assert json.loads(ended.stderr.splitlines()[-1]) == []


AFTER_A_SCRIPT = """
import json, sys
from pathlib import Path
from mcp_bridge.cli.commands.serve import serve
serve(Path(sys.argv[1]))
unneeded = ("httpx2", "mcp.client", "jsonschema", "packaging", "configparser", "snowballstemmer")
unneeded += ("mcp_bridge.sandbox.packages.installer",)
print(json.dumps([name for name in unneeded if name in sys.modules]), file=sys.stderr)
"""


def test_a_bridge_that_has_run_a_script_has_not_imported_what_only_others_need(setup):
    about = {"name": "a-test", "version": "1"}
    begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about}
    requests = [
        {"id": 0, "method": "initialize", "params": begin},
        {"method": "notifications/initialized"},
        {"id": 1, "method": "tools/call", "params": {"name": "run_python", "arguments": {"code": "1 / 0"}}},
    ]
    with subprocess.Popen(
        [sys.executable, "-c", AFTER_A_SCRIPT, str(setup.config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=setup.env,
        cwd=setup.home,
        text=True,
    ) as server:
        for request in requests:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **request}) + "\n")
            server.stdin.flush()
        answers = map(json.loads, server.stdout)
        result = next(answer["result"] for answer in answers if answer.get("id") == 1)
        server.stdin.close()
        server.stdout.read()
        told = server.stderr.read()
    assert "ZeroDivisionError" in result["content"][0]["text"]
    assert json.loads(told.splitlines()[-1]) == []


def test_a_server_on_stdio_loads_nothing_of_http():
    program = """
import sys
import mcp_bridge.cli.commands.serve, mcp_bridge.server.app, mcp_bridge.server.bridge_supervisor
print(sorted(name for name in sys.modules if name.startswith("mcp_bridge.server.http")))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    assert ended.stdout == "[]\n"
