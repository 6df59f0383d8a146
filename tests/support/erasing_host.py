"""A process that erases and is killed at a named point: `python erasing_host.py STATE EXECUTION POINT`."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from mcp_bridge.executions import erasure_with_files
from mcp_bridge.executions.artifacts import Files
from mcp_bridge.ledger.erasure import execution_erasure
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.schema import FILE_NAME

POINTS = {
    "the key destroyed": (execution_erasure, "_erase", "after"),
    "before it is recorded": (execution_erasure, "append_erasure", "before"),
    "before the commit": (execution_erasure, "append_erasure", "after"),
    "committed": (execution_erasure, "empty_journal", "before"),
    "before the journal is emptied": (execution_erasure, "_truncate", "before"),
    "the journal emptied": (execution_erasure, "_truncate", "after"),
    "before the files": (Files, "remove", "before"),
    "after the files": (Files, "remove", "after"),
    "before it is taken for finished": (Database, "write", "before"),
    "finished": (erasure_with_files, "finish", "after"),
}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(point):
    """Put the end of this process around a function."""
    owner, name, when = POINTS[point]
    function = getattr(owner, name)
    if asyncio.iscoroutinefunction(function):

        async def dying(*args, **kwargs):
            if when == "before":
                die()
            await function(*args, **kwargs)
            die()
    else:

        def dying(*args, **kwargs):
            if when == "before":
                die()
            function(*args, **kwargs)
            die()

    setattr(owner, name, dying)


async def main(state, execution, point):
    kill_at(point)
    async with Database(state / FILE_NAME) as database:
        await erasure_with_files.erase(database, Files(state), "execution", execution, by="me", reason=None)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
