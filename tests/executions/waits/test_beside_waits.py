"""What a script does beside a wait: it keeps its sandbox while it does something, and its limits hold."""

import time

import pytest
from script_hosts import make_hosts, source  # noqa: F401  (fixtures)

pytestmark = [pytest.mark.usefixtures("whole_ledgers"), pytest.mark.timeout(180)]

WAIT = "runtime.wait_event('go')"

# After so long a script is looked at that waits. Half a second's share of a processor is what a second's is.
QUIET = {"quiet": 0.5}

COMPUTES = "import time, threading\ndef compute(seconds):\n    began = time.thread_time()\n    while time.thread_time() < began + seconds: pass\n"


@pytest.fixture
def hosts(make_hosts):
    return make_hosts("hosts")


def goes_on(hosts, record, code, **more):
    """The record after the event was sent."""
    hosts.send(record["execution"], "go", 7)
    return hosts.run(code, **more)


def waits_for(record):
    return [row["name"] for row in record.get("waiting", ())]


def test_beside_a_slow_tool_it_is_suspended_when_the_tool_has_answered(hosts):
    code = f"got = await asyncio.gather({WAIT}, local.once(text='a', seconds=3))\nprint(got)"
    record = hosts.run(code)
    assert (record["status"], waits_for(record), hosts.done) == ("suspended", ["go"], ["once a"])
    record = goes_on(hosts, record, code)
    assert (record["stdout"], hosts.done) == ("[7, 'once:a']\n", ["once a"])


@pytest.mark.parametrize("where", ["thread", "process"])
def test_what_computes_beside_a_wait_comes_to_its_end(hosts, where):
    # Before it is suspended, the call is made that needs what was computed.
    compute = {
        "thread": "await asyncio.to_thread(compute, 0.8)",
        "process": (
            "import sys\n    p = await asyncio.create_subprocess_exec(sys.executable, '-c',"
            " 'import time\\nwhile time.process_time() < 0.8: pass')\n    await p.wait()"
        ),
    }[where]
    code = f"{COMPUTES}async def work():\n    {compute}\n    return await local.once(text='a')\nprint(await asyncio.gather({WAIT}, work()))"
    record = hosts.run(code, **QUIET)
    assert (record["status"], waits_for(record), hosts.done) == ("suspended", ["go"], ["once a"])
    assert goes_on(hosts, record, code, **QUIET)["stdout"] == "[7, 'once:a']\n"


@pytest.mark.parametrize(
    ("code", "key"),
    [
        (f"threading.Thread(target=compute, args=(1e9,), daemon=True).start()\nawait {WAIT}", "key"),
        (
            f"waits = asyncio.ensure_future({WAIT})\nawait asyncio.sleep(0)\nawait asyncio.sleep(0)\ncompute(1e9)",
            None,
        ),
        # It never lets another thread run.
        (f"waits = asyncio.ensure_future({WAIT})\nawait asyncio.sleep(0.2)\nsum(range(10**12))", "key"),
        # With a key, the call that is cut short is in doubt.
        (
            "await local.once(text='a')\nslow = asyncio.ensure_future(local.once(text='b', seconds=50))\n"
            "await asyncio.sleep(0.2)\ncompute(1e9)",
            None,
        ),
    ],
)
def test_a_script_that_computes_on_beside_a_wait_has_its_time_and_no_more(hosts, code, key):
    hosts.settings["timeout"] = 1.2
    record = hosts.run(COMPUTES + code, key, **QUIET)
    assert (record["status"], record["error"]["code"]) == ("timeout", "script_timeout"), record


def test_a_timer_of_its_own_that_ends_soon_ends_beside_a_wait(hosts):
    code = (
        f"try:\n    await asyncio.wait_for({WAIT}, 4)\nexcept TimeoutError:\n    print(await local.once(text='late'))"
    )
    record = hosts.run(code)
    assert (record["status"], record["stdout"]) == ("success", "once:late\n"), record


def test_one_that_ends_later_does_not_keep_the_sandbox(hosts):
    code = f"print(await asyncio.wait_for({WAIT}, 600))"
    record = hosts.run(code)
    assert (record["status"], waits_for(record)) == ("suspended", ["go"])
    assert goes_on(hosts, record, code)["stdout"] == "7\n"


@pytest.mark.parametrize("pause", [0.3, 1.5])
def test_a_task_that_asks_on_keeps_the_sandbox_until_the_bound_on_the_run(hosts, pause):
    hosts.settings |= {"timeout": 5, "wall_timeout": 8}
    code = (
        f"asked = []\nasync def poll():\n    while True:\n        asked.append(await local.again(text='p'))\n"
        f"        await asyncio.sleep({pause})\n"
        f"task = asyncio.ensure_future(poll())\nprint(await {WAIT})\ntask.cancel()"
    )
    record = hosts.run(code)
    assert (record["status"], record["error"]["code"]) == ("suspended", "still_waiting"), record
    assert "The run took 8 s" in record["error"]["message"]
    assert len(hosts.done) >= 4
    hosts.settings |= {"timeout": 100, "wall_timeout": 200}
    record = goes_on(hosts, record, code)
    assert (record["status"], record["stdout"]) == ("success", "7\n"), record


def test_idle_threads_of_a_pool_do_not_keep_the_sandbox(hosts):
    code = f"await asyncio.to_thread(len, 'ab')\nprint(await {WAIT})"
    record = hosts.run(code)
    assert (record["status"], waits_for(record)) == ("suspended", ["go"])


def test_a_guest_that_lies_about_what_it_does_is_bounded_all_the_same(hosts):
    hosts.settings |= {"timeout": 5, "wall_timeout": 6}
    code = (
        "import gc\n(channel,) = [o for o in gc.get_objects() if type(o).__name__ == 'Channel']\n"
        "from mcp_bridge.wire.messages import ActivityReport\n"
        "notify = channel.notify\n"
        "def lie(m):\n    notify(m._replace(timer=1.0) if isinstance(m, ActivityReport) else m)\n"
        f"channel.notify = lie\nprint(await {WAIT})"
    )
    record = hosts.run(code)
    assert (record["status"], waits_for(record)) == ("suspended", ["go"])


USES_UP_DESCRIPTORS = (
    "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\nheld = []\ntry:\n    while True:\n"
    "        held.append(os.dup(0))\nexcept OSError:\n    pass\n"
)


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_one_that_has_used_up_its_descriptors_has_its_answers_all_the_same(hosts, where):
    # What it does can't be looked at: it keeps its sandbox, as if it computed, unless a descriptor has become free
    # meanwhile. With two loops a thread of ours reads.
    hosts.settings |= {"timeout": 5, "wall_timeout": 90}
    other = {
        "loop": "other = until()\n",
        "thread": "other = asyncio.to_thread(asyncio.run, until())\n",
    }[where]
    code = (
        "import threading, time\nawait runtime.sleep_until(0)\nend = time.time() + 8\nmade = threading.Event()\n"
        "async def until():\n    made.set()\n    await runtime.sleep_until(end)\n    return 'over'\n"
        f"{other}other = asyncio.ensure_future(other)\nawait asyncio.to_thread(made.wait)\n"
        f"{USES_UP_DESCRIPTORS}await runtime.sleep_until(end)\nprint(await other)"
    )
    for _ in range(3):
        if (record := hosts.run(code))["status"] != "suspended":
            break
        time.sleep(max(0.0, record["waiting"][-1]["due"] - time.time()))
    assert (record["status"], record["stdout"], record["stderr"]) == ("success", "over\n", ""), str(record)
