"""What the programs here share: the test tells them what to do on standard input, and they report on standard output.

The first line in is the plan. Each line out is an object with its `event`. Standard library only: each program has an
environment of its own.
"""

import asyncio
import json
import sys

PATIENCE_SECONDS = 120.0
"""For what a client waits for: the start of the bridge, a script, the test's next word."""


def plan():
    """What to do: `command`, `args` and `env` of the bridge, or the `url` of one that serves, the `model`'s address, and `scripts` for a client without one."""
    return json.loads(sys.stdin.readline())


def say(event, **more):
    print(json.dumps({"event": event} | more), flush=True)


async def pause(event, **more):
    """Report, and wait until the test has looked."""
    say(event, **more)
    assert await asyncio.wait_for(asyncio.to_thread(sys.stdin.readline), PATIENCE_SECONDS), "the test is gone"


async def progress(_done, _total, message, *_):
    say("progress", message=message)


async def cancel(call):
    """Begin `call`, and cancel it when the test has seen its script run."""
    task = asyncio.ensure_future(call)
    await pause("running")
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        await pause("cancelled")
