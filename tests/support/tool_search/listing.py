"""Make `tools.json.gz` from installed servers: `python tests/support/tool_search/listing.py SERVERS.json`.

The file says of each server its name, registry, package, version, command, and the environment without which it doesn't
start (keys that are none will do):

    {"github": {"registry": "npm", "package": "...", "version": "...", "command": ["node", "..."], "env": {"TOKEN": "x"}}}
"""

import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

SECONDS = 60
KEPT = ("name", "title", "description", "inputSchema")


def listed(command, env):
    """What a server answers to tools/list."""
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | env)
    timer = threading.Timer(SECONDS, server.kill)
    timer.start()

    def send(message):
        server.stdin.write((json.dumps({"jsonrpc": "2.0"} | message) + "\n").encode())
        server.stdin.flush()

    def ask(number, method, params):
        send({"id": number, "method": method, "params": params})
        for line in server.stdout:
            if line.startswith(b"{") and json.loads(line).get("id") == number:
                return json.loads(line)["result"]
        raise RuntimeError(f"{command} ended")

    try:
        info = {"name": "listing", "version": "1"}
        ask(1, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info})
        send({"method": "notifications/initialized"})
        tools, number, cursor = [], 2, None
        while number == 2 or cursor:
            page = ask(number, "tools/list", {"cursor": cursor} if cursor else {})
            tools += page["tools"]
            number, cursor = number + 1, page.get("nextCursor")
        return tools
    finally:
        timer.cancel()
        server.kill()
        server.wait()


def main():
    """Start each server, and write what it lists."""
    rows = []
    for name, row in json.loads(Path(sys.argv[1]).read_text("utf-8")).items():
        tools = [
            {key: tool[key] for key in KEPT if key in tool} for tool in listed(row["command"], row.get("env") or {})
        ]
        kept = {key: row[key] for key in ("registry", "package", "version")} | {"tools": tools}
        rows.append(f"{json.dumps(name)}:{json.dumps(kept, ensure_ascii=False, separators=(',', ':'))}")
        print(name, len(tools))
    data = "{\n" + ",\n".join(rows) + "\n}\n"
    Path(__file__).with_name("tools.json.gz").write_bytes(gzip.compress(data.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
