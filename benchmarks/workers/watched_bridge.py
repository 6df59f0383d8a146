"""`mcp-bridge serve`, with the number of its event loop's tasks in a file: `python -m … FILE [OPTION...]`."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

LOOK_SECONDS = 0.1

_loops: list[asyncio.AbstractEventLoop] = []
_new_event_loop = asyncio.events.new_event_loop


def _remembered() -> asyncio.AbstractEventLoop:
    loop = _new_event_loop()
    _loops.append(loop)
    return loop


def _watch(file: Path) -> None:
    other = file.with_suffix(".new")
    while True:
        count = sum(len(asyncio.all_tasks(loop)) for loop in _loops if not loop.is_closed())
        other.write_text(str(count))
        other.replace(file)
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    asyncio.events.new_event_loop = _remembered
    threading.Thread(target=_watch, args=(Path(sys.argv[1]),), name="tasks", daemon=True).start()
    sys.argv = ["mcp-bridge", "serve", *sys.argv[2:]]
    from mcp_bridge.cli import main

    main()
