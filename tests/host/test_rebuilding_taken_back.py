"""Calls that a cell took back, or left at its end, before they were begun: it does so again, and nothing is lost."""

import pytest
from servers.specs import faulty

from mcp_bridge.executions.scripts.call_recorder import CallRecorder

pytestmark = pytest.mark.xdist_group("sessions")

FAILS = "async def fails():\n    raise ValueError('no')\n"
IMPORTS = "import asyncio\nfrom mcp.servers import faulty\nawait faulty.echo(text='a')\n"
MANY = 100
"""More calls than are worked on at once."""

PYTHON = {
    "one of several fails": IMPORTS + FAILS + "try: await asyncio.gather(faulty.sleep(seconds=60), fails())\n"
    "except ValueError: print('taken back')",
    "one of a group fails": IMPORTS
    + FAILS
    + "try:\n    async with asyncio.TaskGroup() as tasks:\n        tasks.create_task(faulty.sleep(seconds=60))\n"
    "        tasks.create_task(fails())\nexcept* ValueError: print('taken back')",
    "the first is enough": IMPORTS
    + "_, others = await asyncio.wait([asyncio.create_task(one) for one in (faulty.sleep(seconds=60), asyncio.sleep(0))],"
    " return_when=asyncio.FIRST_COMPLETED)\nfor one in others: one.cancel()\nprint('taken back')",
    "left at the end": IMPORTS + "task = asyncio.create_task(faulty.sleep(seconds=60))\nprint('taken back')",
    "cancelled at once": IMPORTS + "task = asyncio.create_task(faulty.sleep(seconds=60))\nawait asyncio.sleep(0)\n"
    "task.cancel()\nprint('taken back')",
    "more than are begun": IMPORTS
    + f"try: await asyncio.wait_for(asyncio.gather(*(faulty.sleep(seconds=60) for _ in range({MANY}))), 1)\n"
    "except TimeoutError: print('taken back')",
    "in a thread that is cut off": "import threading\nfrom mcp.sync.servers import faulty\nfaulty.echo(text='a')\n"
    "def calls():\n    faulty.sleep(seconds=60)\n"
    "threading.Thread(target=calls, daemon=True).start()\nprint('taken back')",
}
JAVASCRIPT = {
    "aborted": "await mcp.servers.faulty.echo({text: 'a'}); const stop = new AbortController();\n"
    "const all = Promise.all([1, 2].map(() => mcp.servers.faulty.sleep({seconds: 60}, {signal: stop.signal})));\n"
    "setTimeout(() => stop.abort(), 0);\ntry { await all } catch { console.log('taken back') }",
    "more than are begun": "await mcp.servers.faulty.echo({text: 'a'}); const signal = AbortSignal.timeout(1000);\n"
    f"try {{ await Promise.all(Array.from({{length: {MANY}}}, "
    "() => mcp.servers.faulty.sleep({seconds: 60}, {signal})));\n} catch { console.log('taken back') }",
    "left by an exit": "await mcp.servers.faulty.echo({text: 'a'}); mcp.servers.faulty.sleep({seconds: 60}).then(() => 1);\n"
    "console.log('taken back'); process.exit(0)",
}
CASES = {"python": PYTHON, "javascript": JAVASCRIPT}


async def are_rebuilt(bridge, language, cases):
    ended = {}
    for case in cases:
        ended[case] = await bridge.run(CASES[language][case], session=case.replace(" ", "-"), language=language)
        assert ended[case].stdout.decode() == "taken back\n", (case, ended[case].error)
    bridge._shared.live_sessions.end_all()
    for case, first in ended.items():
        record = await bridge.run("1", session=case.replace(" ", "-"), language=language)
        assert (record.value, record.session["rebuilt"]) == ("1", 1), case
        replayed = await bridge.replay_execution(await bridge.lifecycle.stored(first.execution, "local"))
        assert replayed.difference is None, case


@pytest.mark.timeout(300)
@pytest.mark.parametrize("language", CASES)
async def test_a_cell_takes_back_again_what_was_not_begun(both, language):
    async with both.open(faulty()) as bridge:
        await are_rebuilt(bridge, language, CASES[language])


@pytest.mark.parametrize(("language", "case"), [("python", "one of several fails"), ("javascript", "aborted")])
async def test_so_does_one_of_whose_calls_the_record_has_nothing(both, language, case, monkeypatch):
    """Earlier builds have recorded none, and what a sandbox has not sent, nobody else knows of."""

    async def nothing(_):
        pass

    monkeypatch.setattr(CallRecorder, "record_cancelled_before_intent", nothing)
    async with both.open(faulty()) as bridge:
        await are_rebuilt(bridge, language, [case])
