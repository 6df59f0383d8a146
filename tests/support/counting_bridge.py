"""`mcp-bridge` that says on SIGUSR1 how many tasks its event loop has, and its threads, in the file $MCP_TEST_COUNTS."""

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path

from mcp_bridge.cli import main


def _count(*_):
    # Signals are handled on the main thread, which is the event loop's.
    counted = {"tasks": len(asyncio.all_tasks()), "threads": threading.active_count()}
    path = Path(os.environ["MCP_TEST_COUNTS"])
    written = path.with_suffix(".new")
    written.write_text(json.dumps(counted))
    written.replace(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _count)
    sys.argv[0] = "mcp-bridge"
    main()
