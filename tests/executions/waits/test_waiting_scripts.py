"""Scripts that wait for a time or an event: without a container, through deaths of their hosts, beside what else waits.

Each host is a process of its own, and none serves: what goes on does so because somebody asks.
"""

import time

import pytest
from script_hosts import (  # noqa: F401  (fixtures)
    either,
    ended,
    make_either,
    make_hosts,
    make_javascript_hosts,
    source,
)

pytestmark = pytest.mark.usefixtures("whole_ledgers")


@pytest.fixture
def hosts(make_hosts):
    return make_hosts("hosts")


def waiting(record):
    return [(row["kind"], row["name"], row["call"]) for row in record["waiting"]]


def later(record):
    """Come back when the time of a record has come."""
    due = min(row["due"] for row in record["waiting"] if "due" in row)
    time.sleep(max(0.0, due - time.time()) + 0.01)


def test_a_short_wait_happens_in_place_and_is_not_the_scripts_own_time(either):
    code = {
        "python": "import time\nend = time.time() + 1\nawait runtime.sleep_until(end)\nprint(int(time.time() >= end))",
        "javascript": "const end = Date.now() + 1000; await runtime.sleepUntil(end); console.log(+(Date.now() >= end))",
    }
    record = either.run(code)
    assert (record["status"], record["stdout"]) == ("success", "1\n"), record["error"]
    assert record["script_ms"] < record["duration_ms"] - 900


@pytest.mark.parametrize(
    "when",
    [
        "__import__('time').time() - 5",
        "0",
        "'2001-01-01T00:00:00Z'",
        "datetime.now(timezone.utc) - timedelta(days=1)",
        "datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=5)))",
    ],
)
def test_a_time_in_the_past_answers_at_once(hosts, when):
    code = f"from datetime import *\nprint(await runtime.sleep_until({when}))"
    record = hosts.run(code)
    assert (record["status"], record["stdout"]) == ("success", "None\n"), record["error"]


@pytest.mark.parametrize("when", ["new Date(0)", "'2001-01-01T00:00:00Z'", "Date.now() - 5000", "0"])
def test_a_time_in_the_past_answers_at_once_in_javascript_too(make_javascript_hosts, when):
    record = make_javascript_hosts("hosts").run(f"console.log(await runtime.sleep_until({when}))")
    assert (record["status"], record["stdout"]) == ("success", "undefined\n"), record["error"]


def test_a_long_wait_gives_up_the_container_and_goes_on_in_another_host_when_the_time_has_come(either):
    hosts = either
    code = {
        "python": (
            "import time\nprint(await local.once(text='a'))\nawait runtime.sleep_until(time.time() + 5)\n"
            "print(await local.once(text='b'))"
        ),
        "javascript": (
            "console.log(await local.once({text: 'a'}));\nawait runtime.sleep_until(new Date(Date.now() + 5000));\n"
            "console.log(await local.once({text: 'b'}));"
        ),
    }
    record = hosts.run(code)
    assert (record["status"], record["error"]["code"], record["exit_code"]) == ("suspended", "still_waiting", 5)
    assert [(kind, name) for kind, name, _ in waiting(record)] == [("wait", "wait")]
    assert "It waits until 2" in record["error"]["message"]
    assert "resumes it automatically" in record["error"]["hint"]
    assert "the same code with the same key resumes it" in record["error"]["hint"]
    assert hosts.run(code)["status"] == "suspended"
    assert ended(hosts.start(resume={"id": record["execution"]}))["code"] == "still_waiting"
    later(record)
    record = hosts.run(code)
    assert (record["status"], record["stdout"]) == ("success", "once:a\nonce:b\n"), record["error"]
    assert hosts.done == ["once a", "once b"]
    assert hosts.replay(record["execution"])["agrees"]


@pytest.mark.parametrize("die", ["before:again b", "in:again b", "outcome:again b", "after:again b", "end"])
def test_a_host_that_dies_around_a_wait_repeats_nothing(either, die):
    hosts = either
    code = {
        "python": (
            "import time\nprint(await local.once(text='a'))\nawait runtime.sleep_until(time.time() + 1.5)\n"
            "print(await local.again(text='b'))"
        ),
        "javascript": (
            "console.log(await local.once({text: 'a'}));\nawait runtime.sleep_until(Date.now() + 1500);\n"
            "console.log(await local.again({text: 'b'}));"
        ),
    }
    record = hosts.run(code, quick=True)
    assert record["status"] == "suspended"
    later(record)
    hosts.run(code, die=die, quick=True)
    record = hosts.run(code, quick=True)
    assert (record["status"], record["stdout"]) == ("success", "once:a\nagain:b\n"), record["error"]
    assert hosts.done.count("once a") == 1


def test_the_end_of_a_wait_is_the_one_that_was_asked_for_first(either):
    hosts = either
    code = {
        "python": "import time\nawait runtime.sleep_until(time.time() + 0.5)\nprint('over')",
        "javascript": "await runtime.sleep_until(Date.now() + 500); console.log('over')",
    }
    first = hosts.run(code, quick=True)
    later(first)
    # Run again, it asks for another half a second from now: that is no other call, and changes nothing.
    record = hosts.run(code, quick=True)
    assert (record["status"], record["stdout"]) == ("success", "over\n"), record["error"]


def test_an_event_goes_to_the_script_that_waits_for_it_and_its_payload_is_the_answer(either):
    hosts = either
    code = {
        "python": "print(await runtime.wait_event('paid'))\nprint(await local.once(text='a'))",
        "javascript": "console.log(await runtime.wait_event('paid'));\nconsole.log(await local.once({text: 'a'}));",
    }
    record = hosts.run(code)
    assert waiting(record) == [("event", "paid", "0#1")]
    assert "It waits for the event paid (call 0#1)" in record["error"]["message"]
    assert f"mcp-bridge event send paid --execution {record['execution']} --payload JSON" in record["error"]["hint"]
    sent = hosts.send(record["execution"], "paid", {"amount": [40, "é"]})
    assert sent["status"] == "suspended"
    record = hosts.run(code)
    shown = {"python": "{'amount': [40, 'é']}", "javascript": "{ amount: [ 40, 'é' ] }"}[hosts.language]
    assert (record["status"], record["stdout"]) == ("success", f"{shown}\nonce:a\n"), record["error"]
    assert hosts.replay(record["execution"])["agrees"]


def test_an_event_that_comes_before_the_wait_is_kept_and_each_is_taken_once_in_its_order(either):
    hosts = either
    code = {
        "python": (
            "await local.careful(text='x')\nprint(await runtime.wait_event('n'), await runtime.wait_event('n'))\n"
            "print(await runtime.wait_event('m') is None)\nprint(await runtime.wait_event('n', timeout=0.2))"
        ),
        "javascript": (
            "await local.careful('x');\nconsole.log(await runtime.wait_event('n'), await runtime.wait_event('n'));\n"
            "console.log(await runtime.wait_event('m') === null ? 'True' : 'False');\n"
            "console.log(await runtime.wait_event('n', { timeout: 0.2 }));"
        ),
    }
    record = hosts.run(code)
    for number in (1, 2):
        hosts.send(record["execution"], "n", number)
    hosts.send(record["execution"], "m", None)
    assert hosts.run(code)["status"] == "suspended"
    hosts.decide(record)
    record = hosts.run(code)
    assert record["stdout"] == "1 2\nTrue\n"
    assert (record["error"]["type"], record["status"]) == ("EventTimeoutError", "error")


def test_an_event_that_was_sent_in_time_counts_also_if_nobody_was_there_and_a_late_one_does_not(either):
    hosts = either
    code = {
        "python": "print(await runtime.wait_event('n', timeout=20))\nprint(await runtime.wait_event('n', timeout=0.5))",
        "javascript": "for (const timeout of [20, 0.5]) console.log(await runtime.wait_event('n', { timeout }))",
    }
    # The processes that run it and send the event may each take seconds to start.
    first = hosts.run(code, quick=True)
    hosts.send(first["execution"], "n", "in time")
    later(first)
    second = hosts.run(code, quick=True)
    assert second["stdout"] == "in time\n"
    later(second)
    hosts.send(second["execution"], "n", "late")
    record = hosts.run(code, quick=True)
    assert record["error"]["type"] == "EventTimeoutError", record


def test_a_time_out_of_a_wait_is_a_timeout_error_that_a_script_can_catch(either):
    hosts = either
    code = {
        "python": (
            "from mcp import MCPError\ntry:\n    await runtime.wait_event('n', timeout=0.1)\nexcept TimeoutError as exc:\n"
            "    print(int(isinstance(exc, MCPError)), exc.code, exc)\n"
            "try:\n    runtime.wait_event_sync('n', 0.1)\nexcept TimeoutError as exc:\n    print(exc.code)"
        ),
        "javascript": (
            "import { MCPError } from 'mcp';\ntry { await runtime.wait_event('n', { timeout: 0.1 }) }\n"
            "catch (error) { console.log(+(error instanceof MCPError), error.code, error.message) }\n"
            "try { await runtime.waitEvent('n', 0.1) } catch (error) { console.log(error.code) }"
        ),
    }
    record = hosts.run(code)
    assert record["stdout"] == "1 event_timeout The event 'n' didn't come in time.\nevent_timeout\n", record


def test_of_several_waits_the_earliest_goes_on_and_the_rest_wait_on(either):
    hosts = either
    code = {
        "python": "import time\nasync def one(name, seconds):\n    await runtime.sleep_until(time.time() + seconds)\n"
        "    print(await local.once(text=name))\n"
        "async def other():\n    print(await runtime.wait_event('go'))\n"
        "await asyncio.gather(one('a', 8), one('b', 1.5), other())\nprint('end')",
        "javascript": "const one = async (text, ms) => {\n  await runtime.sleep_until(Date.now() + ms);\n"
        "  console.log(await local.once({ text }));\n};\n"
        "const other = async () => console.log(await runtime.wait_event('go'));\n"
        "await Promise.all([one('a', 8000), one('b', 1500), other()]);\nconsole.log('end');",
    }
    record = hosts.run(code, quick=True)
    assert [row["kind"] for row in record["waiting"]] == ["wait", "wait", "event"]
    later(record)
    record = hosts.run(code, quick=True)
    assert (record["status"], record["stdout"]) == ("suspended", "once:b\n")
    assert [row["kind"] for row in record["waiting"]] == ["wait", "event"]
    hosts.send(record["execution"], "go", "went")
    record = hosts.run(code, quick=True)
    assert (record["status"], sorted(record["stdout"].splitlines())) == ("suspended", ["once:b", "went"])
    later(record)
    record = hosts.run(code, quick=True)
    assert (record["status"], sorted(record["stdout"].splitlines())) == ("success", ["end", "once:a", "once:b", "went"])
    assert sorted(hosts.done) == ["once a", "once b"]
    assert hosts.replay(record["execution"])["agrees"]


def test_beside_a_wait_the_rest_of_the_script_goes_on(either):
    hosts = either
    code = {
        "python": (
            "async def work():\n    for text in 'abc':\n        print(await local.once(text=text))\n"
            "got = await asyncio.gather(runtime.wait_event('go'), work())\nprint(got[0])"
        ),
        "javascript": (
            "const work = async () => { for (const text of 'abc') console.log(await local.once({ text })) };\n"
            "const [got] = await Promise.all([runtime.wait_event('go'), work()]);\nconsole.log(got);"
        ),
    }
    record = hosts.run(code, quick=True)
    assert (record["status"], record["stdout"]) == ("suspended", "once:a\nonce:b\nonce:c\n")
    hosts.send(record["execution"], "go", 7)
    record = hosts.run(code, quick=True)
    assert record["stdout"] == "once:a\nonce:b\nonce:c\n7\n"
    assert hosts.done == ["once a", "once b", "once c"]


def test_a_wait_beside_an_approval_goes_on_with_either(either):
    hosts = either
    code = {
        "python": (
            "async def ask():\n    print(await local.careful(text='c'))\n"
            "async def wait():\n    print(await runtime.wait_event('go'))\nawait asyncio.gather(ask(), wait())"
        ),
        "javascript": (
            "const ask = async () => console.log(await local.careful({text: 'c'}));\n"
            "const wait = async () => console.log(await runtime.wait_event('go'));\nawait Promise.all([ask(), wait()]);"
        ),
    }
    record = hosts.run(code, quick=True)
    assert sorted(row["kind"] for row in record["waiting"]) == ["approval", "event"]
    assert record["error"]["code"] == "approval_needed"
    hosts.send(record["execution"], "go", 1)
    record = hosts.run(code, quick=True)
    assert [row["kind"] for row in record["waiting"]] == ["approval"]
    assert hosts.run(code, quick=True)["status"] == "suspended"
    hosts.decide(record)
    record = hosts.run(code, quick=True)
    assert (record["status"], sorted(record["stdout"].splitlines())) == ("success", ["1", "careful:c"]), record
    assert hosts.done == ["careful c"]


def test_a_wait_in_a_thread_and_in_a_pool(hosts):
    code = (
        "import time, threading\ngot = []\n"
        "t = threading.Thread(target=lambda: got.append(runtime.wait_event_sync('go')))\n"
        "t.start()\nawait asyncio.to_thread(runtime.sleep_until_sync, time.time() + 1)\nt.join()\nprint(got)"
    )
    record = hosts.run(code, quick=True)
    assert sorted(row["kind"] for row in record["waiting"]) == ["event", "wait"], record
    hosts.send(record["execution"], "go", 3)
    later(record)
    record = hosts.run(code, quick=True)
    assert (record["status"], record["stdout"]) == ("success", "[3]\n"), record
    assert hosts.replay(record["execution"])["agrees"]


def test_a_script_without_a_key_gets_one_and_goes_on_by_its_code(either):
    hosts = either
    code = {
        "python": "print(await runtime.wait_event('go'), await local.once(text='a'))",
        "javascript": "console.log(await runtime.wait_event('go'), await local.once({text: 'a'}));",
    }
    record = hosts.run(code, key=None, quick=True)
    assert f"waits-{record['execution']}" in record["error"]["hint"]
    hosts.send(record["execution"], "go", 1)
    again = hosts.run(code, key=None, quick=True)
    assert (again["execution"], again["stdout"]) == (record["execution"], "1 once:a\n")
    assert hosts.run(code, key=None, quick=True)["execution"] != record["execution"]
    assert hosts.done == ["once a"]


def test_a_cell_that_waits_gives_up_its_sandbox_and_the_session_goes_on_after_it(either):
    hosts = either
    hosts.run({"python": "x = [1]", "javascript": "let x = [1]"}, key=None, session="s")
    code = {
        "python": "x.append(await runtime.wait_event('go'))\nx",
        "javascript": "await runtime.sleep_until(Date.now());\nx.push(await runtime.wait_event('go'));\nx",
    }
    shown = {"python": "[1, 2]", "javascript": "[ 1, 2 ]"}[hosts.language]
    waits = hosts.run(code, key=None, session="s", quick=True)
    assert waits["status"] == "suspended"
    assert hosts.run("x", key=None, session="s")["code"] == "session_waiting"
    hosts.send(waits["execution"], "go", 2)
    record = hosts.run(code, key=None, session="s", quick=True)
    assert (record["status"], record["value"]) == ("success", shown), record
    # Its sandbox is gone with its host: the wait is answered from the record.
    record = hosts.run("x", key=None, session="s")
    assert (record["value"], record["session"]["rebuilt"]) == (shown, 2)


def test_a_program_that_waits_inside_a_script_that_waits(hosts):
    code = (
        "from mcp import programs\n"
        "steps = [{'id': 'w', 'type': 'wait', 'event': 'inner'},"
        " {'id': 'a', 'type': 'tool', 'tool': 'once', 'args': {'text': 'a'}}]\n"
        "async def run():\n    trace = await programs.run({'steps': steps})\n    print(trace.status, trace.output)\n"
        "await asyncio.gather(run(), runtime.wait_event('outer'))\nprint('end')"
    )
    record = hosts.run(code, quick=True)
    assert sorted(row["kind"] for row in record["waiting"]) == ["event", "program"], record
    (program,) = [row["execution"] for row in record["waiting"] if row["kind"] == "program"]
    assert hosts.send(program, "inner", 5)["status"] == "success"
    hosts.send(record["execution"], "outer", 6)
    record = hosts.run(code, quick=True)
    assert (record["status"], record["stdout"].splitlines()[-1]) == ("success", "end"), record
    assert hosts.done == ["once a"]


def test_a_wait_that_the_script_takes_back_is_no_wait_and_its_event_is_there_for_another(either):
    hosts = either
    python = (
        "import time\n"
        "one, other = (asyncio.ensure_future(w) for w in (runtime.wait_event('a'), runtime.wait_event('b')))\n"
        "done, left = await asyncio.wait([one, other], return_when=asyncio.FIRST_COMPLETED)\n"
        "for task in left: task.cancel()\nawait asyncio.wait(left)\nprint(*[task.result() for task in done])\n"
        "print(await local.once(text='x'))\nprint(await runtime.wait_event('b'))"
    )
    javascript = (
        "const left = new AbortController();\nconst { signal } = left;\n"
        "const other = runtime.wait_event('b', { signal }).catch((error) => error.name);\n"
        "const done = await Promise.race([runtime.wait_event('a'), other]);\nleft.abort();\n"
        "console.log(done, ...(await other === 'AbortError' ? [] : ['not taken back']));\n"
        "console.log(await local.once({text: 'x'}));\nconsole.log(await runtime.wait_event('b'));"
    )
    code = {"python": python, "javascript": javascript}
    record = hosts.run(code, quick=True)
    hosts.send(record["execution"], "a", 1)
    record = hosts.run(code, quick=True)
    assert (record["status"], record["stdout"]) == ("suspended", "1\nonce:x\n"), record
    hosts.send(record["execution"], "b", 2)
    record = hosts.run(code, quick=True)
    assert (record["status"], record["stdout"]) == ("success", "1\nonce:x\n2\n"), record
    assert hosts.done == ["once x"]
    assert hosts.replay(record["execution"])["agrees"]


def test_a_cancelled_wait_ends_its_script_and_takes_no_event_any_more(hosts):
    record = hosts.run("await runtime.wait_event('go')", quick=True)
    assert hosts.cancel(record["execution"])["status"] == "cancelled"
    assert hosts.send(record["execution"], "go")["code"] == "not_suspended"
    assert hosts.send("0" * 16, "go")["code"] == "unknown_trace"


@pytest.mark.parametrize(
    ("code", "code_of_error"),
    [
        ("await runtime.sleep_until(1e12)", "bad_wait"),
        ("await runtime.wait_event('n', timeout=1e12)", "bad_wait"),
        ("await runtime.wait_event('')", "bad_event"),
        ("await runtime.wait_event('-x')", "bad_event"),
        ("await runtime.wait_event('a\\nb')", "bad_event"),
        ("await runtime.wait_event('x' * 201)", "bad_event"),
        ("await runtime.wait_event('card 4111 1111 1111 1111')", "bad_event"),
    ],
)
def test_a_wait_that_can_not_be_says_so_and_does_so_again(hosts, code, code_of_error):
    code = f"from mcp import MCPError\ntry:\n    {code}\nexcept MCPError as exc:\n    print(exc.code)"
    record = hosts.run(code)
    assert (record["status"], record["stdout"]) == ("success", f"{code_of_error}\n"), record
    assert hosts.replay(record["execution"])["agrees"]


WRONG_WAITS = {
    "runtime.sleep_until(1e15)": "bad_wait",
    "runtime.wait_event('n', { timeout: 1e12 })": "bad_wait",
    "runtime.wait_event('n', 1e12)": "bad_wait",
    "runtime.wait_event('')": "bad_event",
    "runtime.wait_event('a\\nb')": "bad_event",
    "runtime.wait_event('n', { timeout: 0.05 })": "event_timeout",
    "runtime.wait_event('n', { timeout: '1' })": "TypeError",
    "runtime.wait_event('n', { timeout: NaN })": "RangeError",
    "runtime.wait_event(7)": "TypeError",
    "runtime.sleep_until()": "TypeError",
    "runtime.sleep_until(NaN)": "TypeError",
    "runtime.sleep_until(new Date(NaN))": "RangeError",
    "runtime.sleep_until('2030-01-01T00:00:00')": "RangeError",
    "runtime.sleep_until('2030-01-01')": "RangeError",
    "runtime.sleep_until('tomorrow')": "RangeError",
    "runtime.sleep_until(3600)": "RangeError",
    "runtime.sleep_until(Date.now() / 1000 + 60)": "RangeError",
}


def test_a_wait_in_javascript_that_can_not_be_says_so_and_does_so_again(make_javascript_hosts):
    hosts = make_javascript_hosts("hosts")
    waits = ", ".join(f"() => {one}" for one in WRONG_WAITS)
    record = hosts.run(
        f"for (const wait of [{waits}]) try {{ await wait() }} catch (error) {{ console.log(error.code ?? error.name) }}"
    )
    assert record["stdout"].splitlines() == list(WRONG_WAITS.values()), record
    assert hosts.replay(record["execution"])["agrees"]


def test_an_events_payload_is_bounded_and_is_json(hosts):
    record = hosts.run("await runtime.wait_event('go')", quick=True)
    execution = record["execution"]
    assert hosts.send(execution, "go", "x" * (5 << 20))["code"] == "payload_too_large"
    assert hosts.send(execution, " go ", 1)["code"] == "bad_event"
    assert hosts.send(execution, "4111 1111 1111 1111", 1)["code"] == "bad_event"


async def test_a_sensitive_value_in_a_payload_is_a_reference_for_the_script_and_in_the_record(hosts):
    code = "card = await runtime.wait_event('card')\nprint(card, await local.once(text=card))"
    record = hosts.run(code, quick=True)
    hosts.send(record["execution"], "card", "4111 1111 1111 1111")
    record = hosts.run(code, quick=True)
    assert record["status"] == "success"
    assert "4111" not in record["stdout"]
    assert "vault://ref/" in record["stdout"]
    # A tool gets the value.
    assert hosts.done == ["once 4111 1111 1111 1111"]
    assert "4111" not in str([entry.payload for entry in await hosts.entries()])


def test_a_payload_by_hand_goes_to_the_wait_that_has_waited_longest(hosts):
    code = "got = await asyncio.gather(runtime.wait_event('a'), runtime.wait_event('b'))\nprint(got)"
    record = hosts.run(code, quick=True)
    record = ended(hosts.start(resume={"id": record["execution"], "payload": 1}, quick=True))
    assert [row["name"] for row in record["waiting"]] == ["b"]
    record = ended(hosts.start(resume={"id": record["trace_id"], "payload": 2}, quick=True))
    assert (record["status"], record["stdout"]) == ("success", "[1, 2]\n")
