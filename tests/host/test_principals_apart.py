"""One bridge for many: what one principal has, no other sees, names, guesses, resumes, erases or uses up."""

import json

import anyio
import pytest
from sandbox_fixtures import knows_the_sandbox
from servers.specs import faulty

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.approvals import approval_requests
from mcp_bridge.executions.erasure_with_files import erase
from mcp_bridge.governance.governance import govern, load_governance
from mcp_bridge.governance.principal_tokens import TokenStore
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL, Principal, PrincipalLimits
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.kernel.events import Resume
from mcp_bridge.ledger.log.usage_store import UsageStore
from mcp_bridge.server import resources
from mcp_bridge.settings import load

ANNA, BEN = Principal("anna"), Principal("ben")

WAITS = {"name": "waits", "steps": [{"id": "paid", "type": "wait", "event": "paid"}]}

KEEPS = """
from mcp.sync import programs
runtime.save_memory_sync("name", WHO)
open("a.txt", "w").write(WHO)
print(artifact("a.txt"))
programs.save("mine", {"name": "mine", "description": WHO, "steps": [{"id": "s", "type": "wait", "event": WHO}]})
print(runtime.load_memory_sync("name"), runtime.list_memories_sync(), [row["description"] for row in programs.list()])
"""

ASKS = """
def code(work):
    try:
        return ["given", repr(work())]
    except Exception as exc:
        return [getattr(exc, "code", type(exc).__name__), str(exc), getattr(exc, "hint", None)]
"""


def lines(record):
    assert record.status == "success", (record.status, record.error, record.stderr)
    return record.stdout.decode().splitlines()


async def refused(work):
    with pytest.raises(BridgeError) as caught:
        await work
    return caught.value.code, str(caught.value)


async def listed(view):
    return {str(row.uri): row.description for row in (await resources.listed(view)).resources}


async def test_a_view_is_one_object_a_principal_and_shares_what_serves_all(sandboxes):
    async with sandboxes.open() as bridge:
        anna = bridge.for_principal(ANNA)
        assert anna is bridge.for_principal(ANNA)
        assert anna is anna.for_principal(Principal("anna"))
        assert bridge.for_principal(LOCAL_PRINCIPAL) is bridge
        assert anna is not bridge.for_principal(BEN)
        assert (anna.sandboxes, anna.catalog, anna.fleet) == (bridge.sandboxes, bridge.catalog, bridge.fleet)
        for name in ("", "Anna", "../anna", "anna/..", ".anna", "a" * 65, "anna\n", "änna"):
            with pytest.raises(ValueError, match="no name"):
                bridge.for_principal(Principal(name))


async def test_names_in_a_table_that_are_not_there_are_told_of(tmp_path, caplog):
    file = tmp_path / "config.toml"
    file.write_text(
        """
[secrets.registry]
file = true
[files.sales]
path = "sales.csv"
[install]
allow = ["polars>=1"]
[principals.build]
servers = ["local", "gti"]
secrets = ["registry", "registy"]
files = ["sales", "sale"]
packages = ["Polars", "polar"]
"""
    )
    (tmp_path / "sales.csv").write_text("1")
    loaded = load(file, environ={"MCP_BRIDGE_STATE_DIR": str(tmp_path / "state")})
    governance = govern(loaded.layers, loaded.settings.state_dir)
    async with open_bridge(loaded.settings, (), governance):
        pass
    told = [record.message for record in caplog.records if record.message.startswith("principals.")]
    assert told == [
        "principals.build.servers: there is no server 'gti', now",
        "principals.build.secrets: there is no 'registy' in [secrets]",
        "principals.build.files: there is no 'sale' in [files]",
        "principals.build.packages: there is no 'polar' in install.allow",
    ]


async def test_what_has_the_same_name_is_each_principals_own(sandboxes):
    async with sandboxes.open() as bridge:
        views = {name: bridge.for_principal(Principal(name)) for name in ("anna", "ben")} | {"local": bridge}
        first = {}
        for name, view in views.items():
            first[name] = await view.run(f"WHO = {name!r}\n{KEEPS}", key="the key")
            assert lines(first[name])[1] == f"{name} name ['{name}']"
        assert len({record.execution for record in first.values()}) == 3
        for name, view in views.items():
            again = await view.run(f"WHO = {name!r}\n{KEEPS}", key="the key")
            assert (again.is_previous_result, again.execution) == (True, first[name].execution)
            # The same key with other code is in conflict with one's own execution alone.
            assert (await refused(view.run("1", key="the key")))[0] == "key_conflict"
            uris = await listed(view)
            assert uris["program://mine"] == name
            assert [uri for uri in uris if uri.startswith("artifact://")] == [first[name].artifacts[0]["uri"]]
            assert (await resources.read(view, first[name].artifacts[0]["uri"])).text == name
            assert name in (await resources.read(view, "program://mine")).text
            # Deleted by one, it is there for the others.
            deletes = (
                "from mcp.sync import programs\nprint(programs.delete('mine'), runtime.delete_memory_sync('name'))"
            )
            assert lines(await view.run(deletes)) == ["True True"]
        for view in views.values():
            nothing = "from mcp.sync import programs\nprint(list(programs.list()), list(runtime.list_memories_sync()))"
            assert lines(await view.run(nothing)) == ["[] []"]


async def test_anothers_execution_is_unknown_in_the_words_of_one_that_does_not_exist(sandboxes):
    async with sandboxes.open(max_output_chars=1000) as bridge:
        anna, ben = bridge.for_principal(ANNA), bridge.for_principal(BEN)
        kept = await anna.run(f"WHO = 'anna'\n{KEEPS}\nprint('x' * 5000)")
        bridge.files.save_output(kept.execution, "stdout.txt", b"anna's")
        waiting = await anna.run_program(WAITS, key="order")
        assert waiting["status"] == "suspended"

        async def told(execution):
            """What Ben is told of an id, by every way in."""
            uris = f"trace://{execution}", f"artifact://{execution}/a.txt", f"output://{execution}/stdout"
            outside = [
                await refused(ben.resume_execution(execution, Resume({"paid": 1}))),
                await refused(ben.cancel_execution(execution, "mine now")),
                await refused(ben.lifecycle.stored(execution, "ben")),
                *[await refused(resources.read(ben, uri)) for uri in uris],
                # Keys like this one are generated for scripts, whose ids are shorter than programs'.
                *([await refused(ben.run("1", key=f"waits-{execution}"))] if len(execution) == 16 else []),
            ]
            inside = await ben.run(
                f"{ASKS}\nimport json\nfrom mcp.sync import programs, traces\ne = {execution!r}\n"
                "print(json.dumps([code(lambda: programs.resume(e, 1)), code(lambda: traces.get(e)),"
                " code(lambda: str(runtime.output(e))), code(lambda: runtime.output(e)[0:5])]))"
            )
            violations = [
                row.entry.payload["message"]
                for row in await bridge.lifecycle.recorder.read(inside.execution)
                if row.entry.kind == "violation"
            ]
            return json.dumps([outside, json.loads(lines(inside)[0]), violations]).replace(execution, "ID")

        for execution in (kept.execution, waiting["trace_id"]):
            nothing = await told("0" * len(execution))
            assert '"given"' not in nothing
            assert await told(execution) == nothing
        # Nothing of that has changed what it was about.
        done = await anna.resume_execution(waiting["trace_id"], Resume({"paid": 2}))
        assert done["status"] == "success"
        assert done["output"] == {"paid": 2}
        assert (await refused(ben.run_program("mine")))[0] == "unknown_program"
        assert "hint" not in str(await refused(ben.run_program("min")))


async def test_references_and_secrets_of_one_stand_for_nothing_in_anothers_hands(sandboxes, tmp_path, monkeypatch):
    monkeypatch.setenv("ANNAS_KEY", "annas-7dJq0pLw83x")
    tables = {
        "projection": {"patterns": ["email"]},
        "secrets": {"annas-key": {"env": "ANNAS_KEY", "tools": ["faulty.*"]}},
    }
    governance = load_governance(tables, None, tmp_path, tmp_path)
    async with sandboxes.open(faulty(), governance=governance) as bridge:
        anna = bridge.for_principal(Principal("anna", secrets=frozenset({"annas-key"})))
        ben = bridge.for_principal(Principal("ben", secrets=frozenset()))
        uses = f"{ASKS}\nimport json\nfrom mcp.sync.servers import faulty\nprint(json.dumps(code(lambda: faulty.echo(TEXT))))"
        assert lines(await anna.run("TEXT = 'vault://secret/annas-key'\n" + uses)) == [
            '["given", "\'vault://secret/annas-key\'"]'
        ]
        known = lines(await ben.run("TEXT = 'vault://secret/annas-key'\n" + uses))[0]
        unknown = lines(await ben.run("TEXT = 'vault://secret/no-such-key'\n" + uses))[0]
        assert known.replace("annas-key", "no-such-key") == unknown
        assert "secret_missing" in unknown
        # What a server gives away is hidden from whoever may not use it, too, and not by its name.
        (shown,) = lines(await ben.run("TEXT = 'annas-' + '7dJq0pLw83x'\n" + uses))
        assert "7dJq" not in shown
        assert "annas-key" not in shown
        # A reference belongs to its execution.
        (told,) = lines(await anna.run("TEXT = 'someone@example.com'\n" + uses))
        reference = json.loads(told)[1].strip("'")
        assert reference.startswith("vault://ref/")
        assert "reference_unknown" in lines(await ben.run(f"TEXT = {reference!r}\n{uses}"))[0]


async def test_a_principals_policy_lies_over_everybodys_and_a_reload_reaches_all(sandboxes, tmp_path):
    def governed(*rules):
        return load_governance({"policy": {"rules": list(rules)}}, None, tmp_path, tmp_path)

    def deny(*tools):
        return {"tools": list(tools), "effect": "deny"}

    calls = f"{ASKS}\nfrom mcp.sync.servers import faulty\nprint([code(lambda: faulty.call_tool(name, dict(text='x')))[0] for name in ('echo', 'refuse', 'environment')])"
    calls = calls.replace(
        "faulty.call_tool(name, dict(text='x'))",
        "runtime.call_tool_sync('faulty', name, {'text': 'x'} if name == 'echo' else {})",
    )
    everybody = governed(deny("faulty.environment"))
    async with sandboxes.open(faulty(), governance=everybody) as bridge:
        allows = {"rules": [{"tools": ["faulty.*"], "effect": "allow"}]}
        anna = bridge.for_principal(Principal("anna", policy=allows))
        ben = bridge.for_principal(Principal("ben", policy={"rules": [deny("faulty.echo")]}))
        assert lines(await anna.run(calls)) == ["['given', 'tool_error', 'denied']"]
        assert lines(await ben.run(calls)) == ["['denied', 'tool_error', 'denied']"]
        assert lines(await bridge.run(calls)) == ["['given', 'tool_error', 'denied']"]
        # A principal that is given more meanwhile has what both allow.
        assert bridge.for_principal(Principal("ben", policy=allows)) is ben
        assert lines(await ben.run(calls)) == ["['denied', 'tool_error', 'denied']"]
        bridge.restrict(frozenset({"faulty", "local"}), governed(deny("faulty.refuse")).snapshot)
        for view in (anna, bridge):
            assert lines(await view.run(calls)) == ["['given', 'denied', 'denied']"]
        assert lines(await ben.run(calls)) == ["['denied', 'denied', 'denied']"]
        late = bridge.for_principal(Principal("late"))
        assert lines(await late.run(calls)) == ["['given', 'denied', 'denied']"]
        with pytest.raises(BridgeError, match="there is no program"):
            bridge.for_principal(
                Principal("x", policy={"rules": [{"tools": ["*.*"], "programs": ["none"], "effect": "program"}]})
            )


async def test_a_question_of_one_is_not_anothers_to_see_and_its_own_client_is_not_asked(sandboxes, tmp_path):
    tables = {"policy": {"rules": [{"tools": ["faulty.echo"], "effect": "approve"}]}}
    governance = load_governance(tables, None, tmp_path, tmp_path)
    async with sandboxes.open(faulty(), governance=governance) as bridge:
        asked = []

        class Person:
            async def ask(self, question):
                asked.append(question)
                return True

        code = "from mcp.sync.servers import faulty\nprint(faulty.echo('x'))"
        anna = bridge.for_principal(ANNA)
        record = await anna.run(code, key="k", asker=Person())
        assert (record.status, asked) == ("suspended", [])
        approver = bridge.for_principal(Principal("approver", may_approve=True))
        assert lines(await approver.run(code, asker=Person())) == ["x"]
        assert len(asked) == 1
        store = bridge.lifecycle.store
        assert [row.execution.id for row in await approval_requests(store, "anna")] == [record.execution]
        assert await approval_requests(store, "ben") == []
        assert await approval_requests(store, "ben", record.execution) == []
        assert len(await approval_requests(store, None)) == 1


async def test_places_go_round_among_principals_and_each_has_its_own_limits(sandboxes):
    async with sandboxes.open(max_concurrent=1, max_queued=3) as bridge:
        anna = bridge.for_principal(Principal("anna", limits=PrincipalLimits(max_queued=2)))
        ben = bridge.for_principal(BEN)
        ended = []

        async def run(view, name):
            await view.run("pass")
            ended.append(name)

        queue = bridge._shared.queue
        # Nobody gets the place before all of them wait for it.
        async with anyio.create_task_group() as tasks, queue.lane("first", PrincipalLimits()).place():
            for number in range(3):
                tasks.start_soon(run, anna, f"anna {number}")
            while queue.waiting < 3:  # noqa: ASYNC110  (nothing announces it)
                await anyio.sleep(0.01)
            assert (await refused(anna.run("1")))[0] == "busy"
            tasks.start_soon(run, ben, "ben")
            while queue.waiting < 4:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert ended.index("ben") == 1


async def test_what_a_principal_has_used_is_its_own_and_no_restart_or_erasure_gives_it_back(sandboxes, tmp_path):
    tables = {"policy": {"limits": {"principal": {"calls": 3, "bytes": 100_000}}}}
    calls = f"{ASKS}\nfrom mcp.sync.servers import faulty\nprint([code(lambda: faulty.echo('x'))[0] for _ in range(2)])"
    state = knows_the_sandbox(tmp_path / "state", sandboxes.settings.state_dir)

    def opened():
        governance = load_governance(tables, None, tmp_path, state)
        return sandboxes.open(faulty(), governance=governance, state_dir=state)

    async with opened() as bridge:
        anna, ben = bridge.for_principal(ANNA), bridge.for_principal(BEN)
        assert lines(await anna.run(calls)) == ["['given', 'given']"]
        record = await anna.run(calls)
        assert lines(record) == ["['given', 'budget_calls']"]
        assert lines(await ben.run(calls)) == ["['given', 'given']"]
        await erase(bridge._database, bridge.files, "execution", record.execution, by="me", reason=None)
    async with opened() as bridge:
        anna, ben = bridge.for_principal(ANNA), bridge.for_principal(BEN)
        assert lines(await anna.run(calls)) == ["['budget_calls', 'budget_calls']"]
        assert lines(await ben.run(calls)) == ["['given', 'budget_calls']"]
        # Whoever starts the bridge begins anew with each start.
        assert lines(await bridge.run(calls)) == ["['given', 'given']"]
        kept = await UsageStore(bridge._database).load()
        assert {name: used["calls"] for name, used in kept.items()} == {"anna": 3, "ben": 3}
        assert 0 < kept["anna"]["bytes"] == kept["ben"]["bytes"] < 1000
    async with opened() as bridge:
        assert lines(await bridge.run(calls)) == ["['given', 'given']"]
        await bridge._database.write("UPDATE usages SET calls = 0", ())
    with pytest.raises(BridgeError, match="usages was changed"):
        async with opened():
            pass


async def test_two_bridges_on_one_ledger_let_exactly_a_principals_limit_pass(sandboxes, tmp_path):
    tables = {"policy": {"limits": {"principal": {"calls": 9}}}}
    calls = f"""{ASKS}
import asyncio
from mcp.servers import faulty
async def one():
    try:
        await faulty.echo('x')
        return "given"
    except Exception as exc:
        return exc.code
print(sorted(await asyncio.gather(*(one() for _ in range(6)))).count("given"))
"""
    state = knows_the_sandbox(tmp_path / "state", sandboxes.settings.state_dir)
    governance = load_governance(tables, None, tmp_path, state)

    def opened():
        return sandboxes.open(faulty(), governance=governance, state_dir=state)

    async with opened() as one, opened() as other:
        given = []

        async def run(bridge):
            given.append(int(lines(await bridge.for_principal(ANNA).run(calls))[0]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, one)
            tasks.start_soon(run, other)
        assert sum(given) == 9
        # Each knows by now that there is nothing left, and the record has what was made.
        for bridge in (one, other):
            await run(bridge)
        assert sum(given) == 9
        assert (await UsageStore(other._database).load())["anna"]["calls"] == 9


async def test_what_waits_of_a_principal_without_its_table_does_not_go_on_with_everybodys_rights(sandboxes, tmp_path):
    state = sandboxes.settings.state_dir
    tokens = TokenStore(state)

    def governed(**principals):
        rules = {"policy": {"rules": [{"tools": ["faulty.echo"], "effect": "approve"}]}, "principals": principals}
        return load_governance(rules, None, tmp_path, state)

    def opened(**principals):
        return sandboxes.open(faulty(), governance=governed(**principals))

    async with opened(eve={"servers": ["faulty"], "policy": {}}) as bridge:
        eve = bridge.for_principal(Principal("eve"))
        record = await eve.run("from mcp.servers import faulty\nawait faulty.echo('x')", key="k")
        cancelled = await eve.run("from mcp.servers import faulty\nawait faulty.echo('y')", key="l")
        assert (record.status, cancelled.status) == ("suspended", "suspended")
        stored = await eve.lifecycle.store.execution(record.execution)
        # Taken out while it serves: as after the next start.
        bridge.restrict({"faulty"}, governed().snapshot, {})
        with pytest.raises(BridgeError, match="eve is no longer a principal") as caught:
            bridge.for_owner(stored)
        assert caught.value.code == "not_a_principal"
    async with opened() as bridge:

        async def goes_on():
            await bridge.for_owner(stored).resume_execution(stored.id)

        assert (await refused(goes_on()))[0] == "not_a_principal"
        # A token of when it had the table, and one that has ended, are for nobody any more.
        tokens.add("eve", restricted=True)
        tokens.add("eve", restricted=False, seconds=-1)
        assert (await refused(goes_on()))[0] == "not_a_principal"
        # What only ends or shows it is the operator's all the same.
        ended = await bridge.for_owner(stored, resumes=False).cancel_execution(cancelled.execution, "gone")
        assert ended["status"] == "cancelled"
        # Whoever may come with everybody's rights may go on with them, too.
        tokens.add("eve", restricted=False)
        assert (await refused(goes_on()))[0] == "still_waiting"
    async with opened(eve={"servers": []}) as bridge:
        assert bridge.for_owner(stored).aliases() == []
        assert bridge.for_owner(stored, resumes=False).aliases() == [], "a replay is told what the run was"
