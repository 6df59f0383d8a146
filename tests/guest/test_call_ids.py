"""Calls are named by where they stand in the tree of tasks, whatever the order in which they happen to be made."""

import subprocess
import sys

import pytest

from mcp_bridge.wire.messages import MAX_CALL_CHARS, is_call_id

HEAD = """
import random, sys, threading, time
from mcp_bridge.guest import call_ids

call_ids.begin()
call_ids.follow_threads()
import asyncio
call_ids.follow_tasks()
import concurrent.futures
from concurrent.futures import thread
call_ids.follow_pools()
seen = {}
lock = threading.Lock()

def call(what):
    with lock:
        seen[what] = call_ids.current().call()

async def later(what):
    await asyncio.sleep(random.random() / 50)
    call(what)

def slowly(what):
    time.sleep(random.random() / 50)
    call(what)
"""

TAIL = """
print(*(f"{what}={seen[what]}" for what in sorted(seen)))
"""


def named(body):
    """The names of the calls that a script makes, by what it calls them."""
    source = HEAD + body + TAIL
    # Not isolated: PYTHONPATH leads to the package.
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


SCRIPTS = {
    "one after the other": ("call('a'); call('b')", "a=0#1 b=0#2"),
    "top level and main task": (
        "async def main():\n call('b'); await later('c')\ncall('a'); asyncio.run(main()); call('d')",
        "a=0#1 b=0#2 c=0#3 d=0#4",
    ),
    "gather": (
        "async def main():\n await asyncio.gather(later('a'), later('b'), later('c')); call('d')\nasyncio.run(main())",
        "a=0.1#1 b=0.2#1 c=0.3#1 d=0#1",
    ),
    "as_completed": (
        "async def main():\n for one in asyncio.as_completed([later(c) for c in 'abcdefgh']): await one\n"
        "asyncio.run(main())",
        " ".join(f"{name}=0.{number}#1" for number, name in enumerate("abcdefgh", 1)),
    ),
    "nested": (
        "async def two(x):\n await asyncio.gather(later(x + '1'), later(x + '2'))\n"
        "async def main():\n async with asyncio.TaskGroup() as group:\n"
        "  for x in 'ab': group.create_task(two(x))\nasyncio.run(main())",
        "a1=0.1.1#1 a2=0.1.2#1 b1=0.2.1#1 b2=0.2.2#1",
    ),
    "to_thread": (
        "async def main():\n await asyncio.to_thread(slowly, 'a'); call('b')\n"
        " await asyncio.gather(*(asyncio.to_thread(slowly, x) for x in 'cd'))\nasyncio.run(main())",
        "a=0#1 b=0#2 c=0.2#1 d=0.3#1",
    ),
    "pool": (
        "with thread.ThreadPoolExecutor(3) as pool: list(pool.map(slowly, 'abcdef'))",
        " ".join(f"{name}=0.{number}#1" for number, name in enumerate("abcdef", 1)),
    ),
    "threads": (
        "threads = [threading.Thread(target=slowly, args=(x,)) for x in 'ab']\n"
        "for one in threads: one.start()\ncall('c')\nfor one in threads: one.join()",
        "a=0.t1#1 b=0.t2#1 c=0#1",
    ),
    "a thread after a pool": (
        "with thread.ThreadPoolExecutor(3) as pool: list(pool.map(slowly, 'abc'))\n"
        "one = threading.Thread(target=call, args=('d',)); one.start(); one.join()",
        "a=0.1#1 b=0.2#1 c=0.3#1 d=0.t1#1",
    ),
    "a context of one's own": (
        "import contextvars\nasync def main():\n"
        " await asyncio.gather(*(asyncio.create_task(later(x), context=contextvars.copy_context()) for x in 'ab'))\n"
        "asyncio.run(main())",
        "a=0.1#1 b=0.2#1",
    ),
    "a thread of unknown origin": (
        "import _thread\nfor x in 'ab':\n _thread.start_new_thread(call, (x,))\n while x not in seen: time.sleep(0.01)",
        "a=t1#1 b=t2#1",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_call_is_named_by_its_place(name):
    body, expected = SCRIPTS[name]
    assert named(body) == expected.split()


def test_however_deep_a_task_is_its_name_is_short_and_its_own():
    body = (
        "async def down(depth):\n call(f'{depth:03}')\n if depth: await asyncio.create_task(down(depth - 1))\n"
        "asyncio.run(down(200))"
    )
    names = [row.partition("=")[2] for row in named(body)]
    assert len(set(names)) == 201
    assert all(map(is_call_id, names))
    assert named(body) == named(body)


def test_what_replaces_a_function_shows_what_it_replaces():
    body = (
        "import inspect\nprint(asyncio.as_completed.__name__, inspect.signature(thread.ThreadPoolExecutor.submit),"
        " threading.Thread.start.__doc__ is not None)"
    )
    assert named(body)[:5] == ["as_completed", "(self,", "fn,", "/,", "*args,"]


@pytest.mark.parametrize("name", ["0#1", "0.1#1", "t3.t1.17#20", "h" + "0a" * 16 + ".1#2", "0" + ".1" * 90 + "#1"])
def test_names_of_calls(name):
    assert is_call_id(name)


TOO_LONG = "0" + ".1" * (MAX_CALL_CHARS // 2) + "#1"
NONE = [
    "",
    "#",
    "0",
    "0#",
    "#1",
    "1#1",
    "0.#1",
    "0.x#1",
    "0#1#2",
    "0.1#-1",
    "t#1",
    "h12#1",
    "0#\u0661",
    "0 #1",
    "0#1\n",
]


@pytest.mark.parametrize("name", [*NONE, "0.tt1#1", TOO_LONG])
def test_no_names_of_calls(name):
    assert not is_call_id(name)
