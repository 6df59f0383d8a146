"""How `sessions-2026-11-23.zip` was made: what an unreleased build of that day has left of sessions and of scripts that wait.

It is kept so that every later version is seen to go on with it; it is never made again. It was made by the commit
449ea6b1's own code and its command `mcp-bridge`:

    mkdir old && git archive 449ea6b1 mcp_bridge | tar x -C old
    python tests/golden/sessions.py old sessions-2026-11-23.zip

Its keys are in it, and were never anybody's.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

TOOLS = """
import pathlib
import mcp_bridge

CALLS = pathlib.Path(__file__).with_suffix(".calls")

@mcp_bridge.tool
def act(text: str) -> dict:
    with CALLS.open("a") as file:
        file.write(f"act {text}\\n")
    return {"did": text}

@mcp_bridge.tool
def order(item: str) -> str:
    with CALLS.open("a") as file:
        file.write(f"order {item}\\n")
    return f"ordered {item}"
"""

CONFIGURATION = """
client_configs = false
tools.path = ["./tools"]
[[policy.rules]]
tools = ["local.order"]
effect = "approve"
"""

RUNS = {
    # A session; its last cell has looked something up, and the one before has failed.
    ("--session", "tour"): [
        """import random
from mcp.servers import local
a = await local.act(text='first')
seen = [round(random.random(), 6)]
seen""",
        """def twice(n): return 2 * n
seen.append(twice(21))
1 / 0""",
        """from mcp import runtime
print(seen, [tool['name'] for tool in await runtime.list_tools('local')])""",
    ],
    # A cell of a fork that waits for a person.
    ("--session", "other", "--fork", "tour@1"): [
        """from mcp.servers import local
seen.append(await local.order(item='chair'))
seen"""
    ],
    ("--key", "wait"): [
        """from mcp import runtime
from mcp.servers import local
b = await local.act(text='before')
(b, await runtime.wait_event('paid'))"""
    ],
    ("--key", "ask"): [
        """from mcp.servers import local
await local.order(item='desk')"""
    ],
}

KEPT = ("checkpoint.key", "checkpoint.pub", "ledger.head", "ledger.sqlite", "master.key")


def make(package, target):
    """Have the runs done, and put what they have left into a file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tools").mkdir()
        (folder / "tools" / "golden_tools.py").write_text(TOOLS)
        (folder / "mcp-bridge.toml").write_text(CONFIGURATION)
        command = [sys.executable, "-c", "from mcp_bridge.cli import main; main()"]
        command += ["run", "--config", str(folder / "mcp-bridge.toml")]
        environment = os.environ | {"PYTHONPATH": package, "MCP_BRIDGE_STATE_DIR": str(folder / "state")}
        for options, scripts in RUNS.items():
            for script in scripts:
                subprocess.run([*command, *options, "-c", script], check=False, env=environment, cwd=folder)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA) as archive:
            for kept in KEPT:
                archive.write(folder / "state" / kept, kept)


if __name__ == "__main__":
    make(str(Path(sys.argv[1]).resolve()), sys.argv[2])
