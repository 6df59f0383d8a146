"""The operator's policy: what may be written, what is decided, and what the agent is told of it."""

import itertools
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.errors import BridgeError
from mcp_bridge.kernel.values import canonical
from mcp_bridge.policy.rules.call import Call, ProgramRef, StepContext
from mcp_bridge.policy.rules.decision import decide
from mcp_bridge.policy.rules.explain import explain
from mcp_bridge.policy.rules.floor import layered
from mcp_bridge.policy.rules.globs import ToolGlob, ToolNames
from mcp_bridge.policy.rules.policy_settings import MAX_LIMIT, Policy, Source, read
from mcp_bridge.policy.rules.policy_snapshot import PolicySnapshot, freeze
from mcp_bridge.policy.rules.policy_warnings import warnings

PAY, REFUND, OTHER = "a" * 64, "b" * 64, "c" * 64
PROGRAMS = {"pay": PAY, "refund": REFUND}


def policy(text):
    return read(tomllib.loads(text).get("policy", {}))


def snapshot(text, programs=PROGRAMS):
    return freeze(policy(text), programs)


def rules(*tables, preset="open"):
    """A snapshot of rules written as keyword arguments."""
    return freeze(read({"preset": preset, "rules": list(tables)}), PROGRAMS)


def rule(tools, effect, **more):
    return {"tools": [tools] if isinstance(tools, str) else tools, "effect": effect} | more


def names(dotted, aliases=None):
    server, _, tool = dotted.partition(".")
    server_alias, _, alias = (aliases or dotted).partition(".")
    return ToolNames(server, tool, server_alias, alias)


def call(dotted="local.pay", aliases=None, *, step=None, made=None, hints=None, **arguments):
    return Call(names(dotted, aliases), arguments, hints or {}, step, made or {})


def step(*programs):
    return StepContext(tuple(programs), "charge")


def operators(hash_=PAY, name="pay"):
    return ProgramRef("operator", hash_, name)


def agents(hash_=PAY, name="pay"):
    return ProgramRef("agent", hash_, name)


def refused(table, source=None):
    with pytest.raises(BridgeError) as caught:
        read(table, source or Source())
    assert caught.value.code == "bad_config"
    return caught.value


# --- what may be written ---


def test_without_a_policy_everything_that_is_configured_may_be_called():
    assert read({}) == Policy()
    assert decide(freeze(read({}), {}), call("any.thing")).effect == "allow"


def test_every_key_is_read():
    found = policy("""
        [policy]
        preset = "locked"
        trust_hints = ["git", "files", "git"]
        [policy.limits]
        calls = 1
        bytes = 2
        model_tokens = 0
        model_cost_usd = 1
        [policy.limits.principal]
        calls = 10
        model_cost_usd = 0.5
        [[policy.rules]]
        tools = ["local.pay", "local.*"]
        effect = "program"
        programs = ["pay", "sha256:CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC"]
        when = "$amount <= 500"
        max_calls = 1
        name = "payments"
        reason = "Ask the treasury."
    """)
    assert found.trust_hints == ("files", "git")
    assert (found.limits.calls, found.limits.bytes, found.limits.model_tokens, found.limits.model_cost_usd) == (
        1,
        2,
        0,
        1,
    )
    assert (found.limits.principal.calls, found.limits.principal.model_cost_usd) == (10, 0.5)
    assert found.limits.principal.bytes is None
    [only] = found.rules
    assert only.tools == ("local.*", "local.pay")
    assert only.programs == (OTHER, "pay")
    assert (only.when, only.max_calls, only.name, only.reason) == ("$amount <= 500", 1, "payments", "Ask the treasury.")


DENY = rule("a.b", "deny")


@pytest.mark.parametrize(
    ("table", "message", "hint"),
    [
        ("open", "policy: must be a table: write [policy]", None),
        ([], "policy: must be a table: write [policy]", None),
        ({"presets": "open"}, "policy.presets: there is no such key", "Did you mean preset?"),
        ({"qqqq": 1}, "policy.qqqq: there is no such key", "There are: preset, rules, limits, trust_hints."),
        ({"preset": "opne"}, "policy.preset: must be 'open', 'read-only', 'approve-writes' or 'locked'", "mean open?"),
        ({"preset": "readonly"}, "policy.preset: must be", "Did you mean read-only?"),
        ({"preset": 1}, "policy.preset: must be", "There are: open"),
        ({"trust_hints": "git"}, "policy.trust_hints: must be an array of texts", None),
        ({"trust_hints": [1]}, "policy.trust_hints: each of its entries must be a text in quotes", None),
        ({"trust_hints": [""]}, "policy.trust_hints: String should have at least 1 character", None),
        ({"limits": 1}, "policy.limits: must be a table: write [policy.limits]", None),
        ({"limits": {"call": 1}}, "policy.limits.call: there is no such key", "Did you mean calls?"),
        ({"limits": {"calls": -1}}, "policy.limits.calls: must be greater than or equal to 0", None),
        ({"limits": {"calls": True}}, "policy.limits.calls: must be a whole number", None),
        ({"limits": {"calls": 1.0}}, "policy.limits.calls: must be a whole number", None),
        ({"limits": {"bytes": "64m"}}, "policy.limits.bytes: must be a whole number", None),
        ({"limits": {"calls": MAX_LIMIT + 1}}, "policy.limits.calls: must be less than", None),
        ({"limits": {"model_cost_usd": -0.01}}, "policy.limits.model_cost_usd: must be greater", None),
        ({"limits": {"model_cost_usd": float("nan")}}, "policy.limits.model_cost_usd: must be", None),
        ({"limits": {"model_cost_usd": float("inf")}}, "policy.limits.model_cost_usd: must be", None),
        ({"limits": {"model_cost_usd": "1"}}, "policy.limits.model_cost_usd: must be a number", None),
        ({"limits": {"principal": []}}, "must be a table: write [policy.limits.principal]", None),
        ({"limits": {"principal": {"principal": {}}}}, "policy.limits.principal.principal: there is no such key", ""),
        ({"rules": {"tools": ["a.b"]}}, "policy.rules: must be an array of tables: write [[policy.rules]]", None),
        ({"rules": ["a.b"]}, "policy rule 1: must be an array of tables: write [[policy.rules]]", None),
        ({"rules": [DENY, {"effect": "deny"}]}, "policy rule 2: has no 'tools'", None),
        ({"rules": [{"tools": ["a.b"]}]}, "policy rule 1: has no 'effect'", None),
        ({"rules": [{"tool": ["a.b"], "effect": "deny"}]}, "policy rule 1, tool: there is no such key", "mean tools?"),
        (
            {"rules": [rule("a.b", "forbid")]},
            "policy rule 1, effect: must be 'deny', 'allow', 'approve' or",
            "There are",
        ),
        ({"rules": [rule("a.b", "denny")]}, "policy rule 1, effect: must be", "Did you mean deny?"),
        ({"rules": [rule([], "deny")]}, "policy rule 1, tools: is empty", None),
        ({"rules": [{"tools": "a.b", "effect": "deny"}]}, "policy rule 1, tools: must be an array of texts", None),
        ({"rules": [rule("github", "deny")]}, "policy rule 1, tools: 'github' is no server and tool with a dot", None),
        ({"rules": [rule("*", "deny")]}, "'*' is no server and tool with a dot", None),
        ({"rules": [rule("a.", "deny")]}, "'a.' is no server and tool", None),
        ({"rules": [rule(".a", "deny")]}, "'.a' is no server and tool", None),
        ({"rules": [rule("", "deny")]}, "'' is no server and tool", None),
        ({"rules": [rule("a[.]b", "deny")]}, "'a[.]b' is no server and tool", None),
        ({"rules": [rule("a[!].]b", "deny")]}, "'a[!].]b' is no server and tool", None),
        ({"rules": [rule(" a.b", "deny")]}, "' a.b' begins or ends with a space", None),
        (
            {"rules": [rule(["a.b", 7], "deny")]},
            "policy rule 1, tools: each of its entries must be a text in quotes",
            None,
        ),
        ({"rules": [rule("a.b", "program")]}, "rule 1, programs: the effect 'program' needs the programs", None),
        ({"rules": [rule("a.b", "program", programs=[])]}, "the effect 'program' needs the programs", None),
        ({"rules": [rule("a.b", "program", programs=[""])]}, "a program's name is empty", None),
        ({"rules": [rule("a.b", "allow", programs=["x"])]}, "only the effect 'program' takes programs", None),
        ({"rules": [rule("a.b", "deny", max_calls=1)]}, "policy rule 1, max_calls: a rule that denies", None),
        ({"rules": [rule("a.b", "allow", max_calls=0)]}, "policy rule 1, max_calls: must be greater", None),
        ({"rules": [rule("a.b", "allow", max_calls=True)]}, "policy rule 1, max_calls: must be a", None),
        ({"rules": [rule("a.b", "deny", when="$a = 1")]}, "when: not a condition: '=' is no comparison", None),
        ({"rules": [rule("a.b", "deny", when="$a == 1 $b")]}, "(at character 9)", None),
        ({"rules": [rule("a.b", "deny", when="")]}, "not a condition: the condition is empty", None),
        ({"rules": [rule("a.b", "deny", when="(" * 60 + "1" + ")" * 60)]}, "nested deeper than 50", None),
        ({"rules": [rule("a.b", "deny", when="$a == 1 or " * 100_000 + "1")]}, "the limit is 10000", None),
        ({"rules": [rule("a.b", "deny", when=1)]}, "policy rule 1, when: must be a text in quotes", None),
        ({"rules": [rule("a.b", "deny", name="")]}, "name: must be one line of printable text", None),
        ({"rules": [rule("a.b", "deny", reason="a\nb")]}, "reason: must be one line of printable text", None),
        ({"rules": [rule("a.b", "deny", reason="\x1b[2J")]}, "reason: must be one line of printable text", None),
        ({"rules": [rule("a.b", "deny", name="x" * 101)]}, "name: String should have at most 100 characters", None),
    ],
)
def test_a_mistake_says_where_it_is_and_what_is_meant(table, message, hint):
    found = refused(table)
    assert message in found.message
    assert (hint or "") in (found.hint or "")


EFFECTS = {
    "deny": {"effect": "deny"},
    "allow": {"effect": "allow", "max_calls": 5},
    "approve": {"effect": "approve"},
    "program": {"effect": "program", "programs": ["0" * 64]},
}
WITHOUT_EFFECT = [("allow", "approve"), ("allow", "program"), ("approve", "program"), ("program", "approve")]
SAME = {"tools": ["a.b", "c.d"], "when": "$x == 1"}


def the_same(first, second):
    return [SAME | EFFECTS[first], SAME | EFFECTS[second] | {"tools": ["c.d", "a.b"]}]


@pytest.mark.parametrize(("first", "second"), WITHOUT_EFFECT)
def test_a_restriction_that_an_earlier_rule_for_the_same_calls_leaves_without_effect_is_refused(first, second):
    found = refused({"rules": the_same(first, second)})
    assert found.message == (
        f"policy rule 2, effect: {second!r}, and rule 1 is {first!r} for the same tools and the same condition."
    )
    assert found.hint == "Rule 1 decides: remove one of the two."
    read({"rules": [SAME | EFFECTS[first], SAME | EFFECTS[second] | {"when": "$x == 2"}]})


@pytest.mark.parametrize(
    ("first", "second"),
    [pair for pair in itertools.permutations(EFFECTS, 2) if pair not in WITHOUT_EFFECT],
)
def test_of_two_rules_for_the_same_calls_the_stricter_holds_and_the_other_is_warned_of(first, second):
    written = {"preset": "locked", "rules": the_same(first, second)}
    decided = decide(freeze(read(written), {}), call("a.b", x=1))
    stricter = "deny" if "deny" in {first, second} else first
    number = [first, second].index(stricter) + 1
    assert (decided.rule, decided.effect) == (number, "approve" if stricter == "approve" else "deny")
    unconditional = [{key: value for key, value in rule.items() if key != "when"} for rule in written["rules"]]
    (found,) = warnings(read(written | {"rules": unconditional}))
    assert f"policy rule {3 - number}: it never decides a call: rule {number} ({stricter})" in str(found)


def test_a_rule_under_the_condition_of_a_denial_is_warned_of():
    (found,) = warnings(read({"preset": "locked", "rules": the_same("allow", "deny")}))
    assert "policy rule 1: it never decides a call: rule 2 (deny)" in str(found)
    # One for programs decides where the condition fails: it denies.
    program = rule("a.b", "program", when="$a > 5", programs=["p"])
    assert not warnings(read({"preset": "open", "rules": [rule("a.b", "deny", when="$a > 5"), program]}))


@pytest.mark.parametrize(
    ("table", "path"),
    [
        ({"presett": 1}, ("presett",)),
        ({"preset": 1}, ("preset",)),
        ({"limits": {"principal": {"calls": -1}}}, ("limits", "principal", "calls")),
        ({"rules": [DENY, rule("a.c", "deny", when="(")]}, ("rules", 1, "when")),
        ({"rules": [DENY, rule("a.c", "allow", programs=["x"])]}, ("rules", 1, "programs")),
        ({"rules": [rule("a.b", "allow"), DENY, rule("a.b", "approve")]}, ("rules", 2, "effect")),
        ({"rules": [DENY, {"effect": "deny"}]}, ("rules", 1)),
        ({"rules": [rule(["a.b", "c"], "deny")]}, ("rules", 0, "tools", 1)),
    ],
)
def test_a_mistake_has_the_file_the_line_and_the_key(table, path):
    asked = []

    def line_of(*keys):
        asked.append(keys)
        return 7

    found = refused(table, Source("bridge.toml", line_of))
    assert asked == [("policy", *path)]
    assert found.message.startswith("bridge.toml, line 7: policy")
    assert (found.details["file"], found.details["line"]) == ("bridge.toml", 7)
    assert found.details["key"] == "policy" + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in path
    )


def test_of_a_file_without_the_line_the_name_is_said():
    assert refused({"preset": 1}, Source("bridge.toml", lambda *_: None)).message.startswith(
        "bridge.toml: policy.preset"
    )


def test_a_program_that_there_is_not_is_refused_with_the_nearest():
    text = '[[policy.rules]]\ntools = ["a.b"]\neffect = "program"\nprograms = ["refnud"]'
    with pytest.raises(BridgeError) as caught:
        freeze(policy(text), PROGRAMS, Source("bridge.toml", lambda *path: len(path)))
    assert caught.value.code == "bad_config"
    assert caught.value.message == (
        "bridge.toml, line 4: policy rule 1, programs: there is no program 'refnud' in [programs]."
    )
    assert caught.value.hint == "Did you mean refund?"
    with pytest.raises(BridgeError, match="there is no program") as caught:
        freeze(policy(text), {})
    assert "[programs] path" in caught.value.hint


# --- what is probably not meant ---


def warned(text, **known):
    return [str(each) for each in warnings(policy(text), **known)]


def rule_texts(*written):
    return "\n".join(f"[[policy.rules]]\n{text}" for text in written)


@pytest.mark.parametrize(
    ("first", "second", "rule_number"),
    [
        ('tools=["git.*"]\neffect="allow"', 'tools=["git.log"]\neffect="approve"', 2),
        ('tools=["*.*"]\neffect="approve"', 'tools=["git.l*", "a.?"]\neffect="allow"', 2),
        ('tools=["git.*"]\neffect="allow"', 'tools=["git.log"]\neffect="program"\nprograms=["x"]', 2),
        ('tools=["a.b"]\neffect="program"\nprograms=["x"]\nwhen="$a"', 'tools=["a.b"]\neffect="allow"', 2),
        ('tools=["git.log"]\neffect="approve"', 'tools=["git.*"]\neffect="deny"', 1),
        ('tools=["git.*"]\neffect="deny"', 'tools=["git.log"]\neffect="deny"\nwhen="$a == 1"', 2),
        ('tools=["git.*"]\neffect="approve"\nmax_calls=1', 'tools=["git.*"]\neffect="approve"', 2),
        ('tools=["git.[ab]?"]\neffect="approve"', 'tools=["git.[ab]x"]\neffect="allow"', 2),
        ('tools=["git.[!x]"]\neffect="approve"', 'tools=["git.y"]\neffect="allow"', 2),
    ],
)
def test_a_rule_that_never_decides_is_warned_of(first, second, rule_number):
    found = warned('policy.preset = "locked"\n' + rule_texts(first, second))
    assert [text.split(":")[0] for text in found] == [f"policy rule {rule_number}"]
    assert f"it never decides a call: rule {3 - rule_number} (" in found[0]


LISTED = {
    "memory": [
        (
            ToolNames("memory", "create_entities", "memory", "create_entities"),
            {
                "type": "object",
                "properties": {
                    "entities": {"type": "array", "items": {"$ref": "#/$defs/Entity"}},
                    "query": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "options": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {}}}},
                    "anything": {"description": "of any kind"},
                    "elsewhere": {"$ref": "https://example.com/schema"},
                },
                "$defs": {"Entity": {"type": "object", "properties": {"name": {"type": "string"}}}},
            },
        ),
        (
            ToolNames("memory", "open", "memory", "open"),
            {"type": "object", "additionalProperties": True, "properties": {}},
        ),
        (
            ToolNames("memory", "dashed", "memory", "dashed"),
            {"type": "object", "properties": {"to-addr": {"type": "object", "properties": {"of-it": {}}}}},
        ),
        (ToolNames("memory", "other", "memory", "other"), {"type": "object"}),
        (
            ToolNames("memory", "referred", "memory", "referred"),
            {"type": "object", "$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"name": {}}}}},
        ),
    ]
}


@pytest.mark.parametrize(
    ("tools", "when", "said"),
    [
        (
            "create_entities",
            "$entitise != 1",
            "no tool that it is for has an argument 'entitise': did you mean $entities?",
        ),
        ("create_entities", "'$entitise' != 'x'", "no tool that it is for has an argument 'entitise'"),
        ("create_entities", "$entities.name == 'x'", "$entities has no 'name' in any tool that it is for"),
        ("create_entities", "$entities[0].nmae == 'x'", "$entities.0 has no 'nmae' in any"),
        ("create_entities", "$query.x == 'x'", "$query has no 'x' in any"),
        ("create_entities", "$options.x.b == 'x'", "$options.x has no 'b' in any"),
        ("create_entities", "$entities[0].name == 'x' and $entities.output == [] and $query.output == 'x'", None),
        ("create_entities", "$options.x.a.b == 1 and $anything.x[0] == 1 and $elsewhere.x == 1", None),
        ("create*", "$nothing", "no tool that it is for has an argument 'nothing'"),
        ("dashed", "$to_addr == 1", "no tool that it is for has an argument 'to_addr': did you mean $['to-addr']?"),
        ("dashed", "$['to-addr'].x == 1", "$['to-addr'] has no 'x' in any"),
        ("dashed", "$['to-addr']['of-it'] == 1", None),
        ("referred", "$nmae == 1", "no tool that it is for has an argument 'nmae': did you mean $name?"),
        ("open", "$nothing.of.it", None),
        ("other", "$nothing.of.it", None),
        ("*", "$entitise", None),
    ],
)
@pytest.mark.parametrize("effect", ["allow", "deny"])
def test_a_condition_on_what_no_tool_takes_is_warned_of(tools, when, said, effect):
    written = read({"preset": "locked", "rules": [rule(f"memory.{tools}", effect, when=when)]})
    servers = {"memory": "memory", "silent": "silent"}
    found = [str(each) for each in warnings(written, servers=servers, tools=LISTED)]
    assert [text.split(": ")[0] for text in found] == (["policy rule 1, when"] if said else [])
    assert said is None or said in found[0]
    assert not warnings(written, servers=servers, tools={})


def test_of_a_condition_for_tools_that_nobody_has_listed_nothing_is_said():
    written = read({"preset": "locked", "rules": [rule("*.create_entities", "deny", when="$entitise")]})
    assert not warnings(written, servers={"memory": "memory", "silent": "silent"}, tools=LISTED)
    assert warnings(written, servers={"memory": "memory"}, tools=LISTED)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('tools=["git.*"]\neffect="allow"\nwhen="$a == 1"', 'tools=["git.log"]\neffect="approve"'),
        ('tools=["git.log"]\neffect="allow"', 'tools=["git.*"]\neffect="approve"'),
        ('tools=["git.l*"]\neffect="allow"', 'tools=["git.l*", "a.b"]\neffect="approve"'),
        ('tools=["git.*"]\neffect="allow"', 'tools=["git.log"]\neffect="deny"'),
        ('tools=["git.log"]\neffect="deny"', 'tools=["git.*"]\neffect="deny"'),
        ('tools=["git.?"]\neffect="approve"', 'tools=["git.*"]\neffect="allow"'),
        ('tools=["git.[ab]"]\neffect="approve"', 'tools=["git.c"]\neffect="allow"'),
        ('tools=["git.[ab]"]\neffect="approve"', 'tools=["git.?"]\neffect="allow"'),
    ],
)
def test_a_rule_that_may_decide_is_not_warned_of(first, second):
    assert warned('policy.preset = "locked"\n' + rule_texts(first, second)) == []


def test_an_allowing_rule_under_the_preset_open_changes_nothing_unless_it_restricts_or_excepts():
    allow, approve = 'tools=["a.b"]\neffect="allow"', 'tools=["a.*"]\neffect="approve"'
    assert "it changes nothing" in warned(rule_texts(allow))[0]
    assert warned(rule_texts(allow + "\nmax_calls=2")) == []
    assert warned(rule_texts(allow, approve)) == []


def test_a_condition_that_refers_to_no_argument_is_warned_of():
    [found] = warned(rule_texts('tools=["a.b"]\neffect="deny"\nwhen="\'amount\' == 500"'))
    assert found == "policy rule 1, when: it refers to no argument: it is the same for every call."


def test_a_hash_that_no_program_has_is_warned_of():
    text = rule_texts(f'tools=["a.b"]\neffect="program"\nprograms=["{PAY}", "{OTHER}"]')
    assert [OTHER in found for found in warned(text, programs=PROGRAMS)] == [True]
    assert warned(text) == []


def test_servers_that_there_are_not_are_warned_of_and_an_alias_does_for_what_restricts():
    servers = {"my-files": "my_files", "a.b": "a_b"}
    deny = 'tools=["{}"]\neffect="deny"'
    for known in ("my-files.x", "my_files.x", "MY_Files.*", "*.x", "my*.x", "a.b.c", "a_b.c", "a.*", "my-[fg]iles.x"):
        assert warned(rule_texts(deny.format(known)), servers=servers) == []
    for unknown in ("my_file.x", "b.c", "?.x", "myfiles.*"):
        [found] = warned(rule_texts(deny.format(unknown)), servers=servers)
        assert found == f"policy rule 1, tools: {unknown!r} fits no server that is configured."
    allow = 'policy.preset = "locked"\n' + rule_texts('tools=["{}"]\neffect="allow"')
    assert warned(allow.format("my-files.x"), servers=servers) == []
    assert len(warned(allow.format("my_files.x"), servers=servers)) == 1
    assert warned('[policy]\ntrust_hints = ["git", "a.b"]', servers=servers) == [
        "policy.trust_hints: there is no server 'git'."
    ]


def test_a_warning_has_its_file_and_line():
    source = Source("bridge.toml", lambda *path: 3 if path == ("policy", "rules", 1) else None)
    [found] = warnings(policy(rule_texts('tools=["a.*"]\neffect="deny"', 'tools=["a.b"]\neffect="approve"')), source)
    assert (found.file, found.line) == ("bridge.toml", 3)
    assert str(found).startswith("bridge.toml, line 3: policy rule 2: it never decides")


# --- globs ---


@pytest.mark.parametrize(
    ("glob", "dotted", "aliases", "reading"),
    [
        ("git.log", "git.log", None, "narrow"),
        ("git.*", "git.log", None, "narrow"),
        ("*.*", "git.log", None, "narrow"),
        ("g?t.l[aeiou]g", "git.log", None, "narrow"),
        ("git.[!d]*", "git.log", None, "narrow"),
        ("git.[!l]*", "git.log", None, None),
        ("git.lo", "git.log", None, None),
        ("it.log", "git.log", None, None),
        ("git.log", "git.Log", None, "broad"),
        ("GIT.LOG", "git.log", None, "broad"),
        ("git.[!L]og", "git.log", None, "narrow"),
        ("my_git.log_all", "my-git.log-all", "my_git.log_all", "broad"),
        ("my-git.log_all", "my-git.log-all", "my_git.log_all", "broad"),
        ("my_git.log-all", "my-git.log-all", "my_git.log_all", "broad"),
        ("my-git.log-all", "my-git.log-all", "my_git.log_all", "narrow"),
        ("My_Git.LOG-ALL", "my-git.log-all", "my_git.log_all", "broad"),
        ("a.b.c", "a.b.c", None, "narrow"),
        ("git.*", "git.a\nb", None, "narrow"),
        ("git.*", "git.", None, "narrow"),
        ("git.straße", "git.STRASSE", None, "broad"),
        ("git.\ufb01le", "git.file", None, "broad"),
        ("git.e\u0301tat", "git.\u00e9tat", None, "broad"),
        ("git.[x", "git.[x", None, "narrow"),
        ("git.[]]", "git.]", None, "narrow"),
        ("git.[!]]", "git.]", None, None),
        ("git.[!]]", "git.x", None, "narrow"),
        ("git.a+(b)", "git.a+(b)", None, "narrow"),
    ],
)
def test_how_a_glob_fits_a_tool(glob, dotted, aliases, reading):
    tool = names(dotted, aliases)
    read_glob = ToolGlob(glob)
    assert read_glob.covers(tool) is (reading is not None)
    assert read_glob.names(tool) is (reading == "narrow")


def test_a_server_with_a_dot_is_covered_as_it_is_written_and_permitted_only_without_doubt():
    dotted, plain = ToolNames("a.b", "c", "a_b", "c"), ToolNames("a", "b.c", "a", "b_c")
    assert [ToolGlob("a.b.c").covers(tool) for tool in (dotted, plain)] == [True, True]
    assert [ToolGlob("a.b.c").names(tool) for tool in (dotted, plain)] == [False, True]
    assert [ToolGlob("a[.]b.c").names(tool) for tool in (dotted, plain)] == [True, False]


SIGNS = st.text(alphabet="abA.*?[]!-_^&|\\", max_size=8)


@given(SIGNS, SIGNS, st.text(alphabet="abA.-_", max_size=4), st.text(alphabet="abA.-_", max_size=4))
def test_what_a_glob_names_it_covers_and_no_text_breaks_it(left, right, server, tool):
    try:
        glob = ToolGlob(f"{left}.{right}")
    except ValueError:
        return
    names_of_tool = ToolNames(server, tool, "x", "y")
    assert glob.covers(names_of_tool) or not glob.names(names_of_tool)


@given(SIGNS, SIGNS, st.text(alphabet="abA.-_", max_size=6))
def test_a_glob_that_includes_another_covers_all_that_the_other_names(wide, narrow, tool):
    try:
        wide, narrow = ToolGlob(f"*.{wide}"), ToolGlob(f"a.{narrow}")
    except ValueError:
        return
    found = ToolNames("a", tool, "x", "y")
    if wide.includes(narrow) and narrow.names(found):
        assert wide.covers(found)


# --- presets ---

READ, WRITE = {"readOnlyHint": True}, {"readOnlyHint": False}


@pytest.mark.parametrize(
    ("preset", "read_only", "writing", "unknown", "not_trusted"),
    [
        ("open", "allow", "allow", "allow", "allow"),
        ("read-only", "allow", "deny", "deny", "deny"),
        ("approve-writes", "allow", "approve", "approve", "approve"),
        ("locked", "deny", "deny", "deny", "deny"),
    ],
)
def test_what_each_preset_does_without_rules(preset, read_only, writing, unknown, not_trusted):
    frozen = freeze(read({"preset": preset, "trust_hints": ["files"]}), {})
    effects = [decide(frozen, call("files.x", hints=hints)).effect for hints in (READ, WRITE, {})]
    assert effects == [read_only, writing, unknown]
    assert decide(frozen, call("git.x", hints=READ)).effect == not_trusted
    assert decide(frozen, call("Files.x", "files.x", hints=READ)).effect == not_trusted


@pytest.mark.parametrize("hint", [1, "true", [True], {"readOnlyHint": True}, None])
def test_a_hint_that_is_not_true_is_none(hint):
    frozen = freeze(read({"preset": "read-only", "trust_hints": ["files"]}), {})
    assert decide(frozen, call("files.x", hints={"readOnlyHint": hint})).effect == "deny"


def test_a_tool_that_is_said_to_be_read_only_and_destructive_is_not_believed():
    frozen = freeze(read({"preset": "read-only", "trust_hints": ["files"]}), {})
    assert decide(frozen, call("files.x", hints={**READ, "destructiveHint": True})).effect == "deny"
    assert decide(frozen, call("files.x", hints={**READ, "destructiveHint": False})).effect == "allow"


@pytest.mark.parametrize("preset", ["open", "read-only", "approve-writes", "locked"])
@pytest.mark.parametrize("effect", ["allow", "approve", "deny"])
def test_a_rule_goes_before_every_preset(preset, effect):
    assert decide(rules(rule("a.b", effect), preset=preset), call("a.b")).effect == effect


# --- rules: tricky cases ---

TRICKY = {
    "a deny wins over an earlier allow": (
        [rule("a.*", "allow"), rule("a.b", "deny")],
        call("a.b"),
        ("deny", 2),
    ),
    "the first of the others wins": ([rule("a.*", "allow"), rule("a.b", "approve")], call("a.b"), ("allow", 1)),
    "and not the more particular": ([rule("a.*", "approve"), rule("a.b", "allow")], call("a.b"), ("approve", 1)),
    "an allow for another tool says nothing": ([rule("a.c", "allow")], call("a.b"), ("deny", None)),
    "a deny by the alias can't be dodged": (
        [rule("my_git.rm_all", "deny"), rule("*.*", "allow")],
        call("my-git.rm-all", "my_git.rm_all"),
        ("deny", 1),
    ),
    "nor in other case": ([rule("GIT.Rm", "deny"), rule("*.*", "allow")], call("git.rm"), ("deny", 1)),
    "an allow by the alias is none": (
        [rule("my_git.log_all", "allow")],
        call("my-git.log-all", "my_git.log_all"),
        ("deny", None),
    ),
    "nor in other case is it one": ([rule("git.Log", "allow")], call("git.log"), ("deny", None)),
    "a person is asked whatever it is called": (
        [rule("my_git.log_all", "approve"), rule("*.*", "allow")],
        call("my-git.log-all", "my_git.log_all"),
        ("approve", 1),
    ),
    "a bound on calls isn't dodged by an alias": (
        [rule("my_git.log", "allow", max_calls=2), rule("*.*", "allow")],
        call("my-git.log", "my_git.log"),
        ("deny", 1),
    ),
    "a deny holds under its condition": ([rule("*.*", "deny", when="$n > 5")], call("a.b", n=6), ("deny", 1)),
    "and only then": (
        [rule("*.*", "deny", when="$n > 5"), rule("*.*", "allow")],
        call("a.b", n=5),
        ("allow", 2),
    ),
    "a deny whose condition has no answer holds": (
        [rule("*.*", "deny", when="$n > 5"), rule("*.*", "allow")],
        call("a.b", n="6"),
        ("deny", 1),
    ),
    "so it does for a missing argument": (
        [rule("*.*", "deny", when="$n > 5"), rule("*.*", "allow")],
        call("a.b"),
        ("deny", 1),
    ),
    "an allow whose condition has no answer doesn't": (
        [rule("*.*", "allow", when="$n <= 5")],
        call("a.b", n="1"),
        ("deny", None),
    ),
    "an approval whose condition has no answer is asked for where a later rule allows": (
        [rule("*.*", "approve", when="$n > 5"), rule("a.b", "allow")],
        call("a.b", n="6"),
        ("approve", 1),
    ),
    "and not where a later rule denies": (
        [rule("*.*", "approve", when="$n > 5"), rule("a.b", "program", programs=["pay"])],
        call("a.b", n="6"),
        ("deny", 2),
    ),
    "nor where the preset does": ([rule("*.*", "approve", when="$n > 5")], call("a.b", n="6"), ("deny", None)),
    "an argument named like a field of the call is only an argument": (
        [rule("a.*", "allow", when="$server == 'a' and $tool == 'b'")],
        call("a.b"),
        ("deny", None),
    ),
    "a condition looks into arguments": (
        [rule("a.*", "allow", when="$items.1.price <= 5 and 'x' in $tags")],
        call("a.b", items=[{}, {"price": 5}], tags=["x"]),
        ("allow", 1),
    ),
    "a list that is asked for a name has no answer": (
        [rule("a.*", "allow", when="not $value.cmd == 'rm'")],
        call("a.b", value=[{"cmd": "rm"}]),
        ("deny", None),
    ),
    "also to a rule that denies": (
        [rule("a.*", "deny", when="$value.cmd == 'rm'"), rule("*.*", "allow")],
        call("a.b", value=[["cmd", "rm"]]),
        ("deny", 1),
    ),
    "and within a list": (
        [rule("a.*", "allow", when="$value[0].cmd != 'rm'")],
        call("a.b", value=[[{"cmd": "rm"}]]),
        ("deny", None),
    ),
    "an object that is asked for an index has no answer": (
        [rule("a.*", "allow", when="$value[0].cmd != 'rm'")],
        call("a.b", value={"cmd": "rm"}),
        ("deny", None),
    ),
    "unless it is one of its names": (
        [rule("a.*", "allow", when="$value.2024 <= 5")],
        call("a.b", value={"2024": 5}),
        ("allow", 1),
    ),
    "an item beyond the end is nothing": (
        [rule("a.*", "allow", when="$value[1].cmd != 'rm'")],
        call("a.b", value=[{"cmd": "rm"}]),
        ("allow", 1),
    ),
    "a condition on a reference sees the reference": (
        [rule("a.*", "allow", when="$card == 'vault://secret/card'")],
        call("a.b", card="vault://secret/card"),
        ("allow", 1),
    ),
    "max_calls lets through so many": (
        [rule("a.*", "allow", max_calls=2)],
        call("a.b", made={1: 1}),
        ("allow", 1),
    ),
    "and no more, whatever comes later": (
        [rule("a.*", "allow", max_calls=2), rule("a.*", "allow")],
        call("a.b", made={1: 2}),
        ("deny", 1),
    ),
    "the calls of another rule don't count": (
        [rule("a.*", "allow", max_calls=2)],
        call("a.b", made={2: 9}),
        ("allow", 1),
    ),
    "max_calls bounds what a person is asked": (
        [rule("a.*", "approve", max_calls=1)],
        call("a.b", made={1: 1}),
        ("deny", 1),
    ),
    "also where its condition has no answer": (
        [rule("a.*", "approve", max_calls=1, when="$n > 1"), rule("*.*", "allow")],
        call("a.b", made={1: 1}),
        ("deny", 1),
    ),
}


@pytest.mark.parametrize("case", TRICKY)
def test_tricky(case):
    written, asked, expected = TRICKY[case]
    decision = decide(rules(*written, preset="locked"), asked)
    assert (decision.effect, decision.rule) == expected


# --- rules: programs ---

PAYMENT = rule("local.pay", "program", programs=["pay"], when="$amount <= 500", max_calls=1)

THROUGH_PROGRAMS = {
    "the operator's program": (step(operators()), 500, {}, "allow"),
    "a direct call": (None, 500, {}, "deny"),
    "another program of the operator's": (step(operators(REFUND, "refund")), 500, {}, "deny"),
    "the operator's program, changed since": (step(operators(OTHER)), 500, {}, "deny"),
    "the agent's of the same name": (step(agents(OTHER)), 500, {}, "deny"),
    "the agent's of the same name and content": (step(agents()), 500, {}, "deny"),
    "the agent's inline, with the same content": (step(agents(name=None)), 500, {}, "deny"),
    "the operator's program run by the agent's": (step(agents(OTHER, "mine"), operators()), 500, {}, "allow"),
    "the agent's program run by the operator's": (step(operators(), agents(OTHER, "mine")), 500, {}, "deny"),
    "another of the operator's run by the right one": (step(operators(), operators(REFUND, "refund")), 500, {}, "deny"),
    "the right one run by another of the operator's": (
        step(operators(REFUND, "refund"), operators()),
        500,
        {},
        "allow",
    ),
    "too much": (step(operators()), 501, {}, "deny"),
    "an amount that is no number": (step(operators()), "5", {}, "deny"),
    "no amount": (step(operators()), None, {}, "deny"),
    "a second time": (step(operators()), 500, {1: 1}, "deny"),
}


@pytest.mark.parametrize("case", THROUGH_PROGRAMS)
@pytest.mark.parametrize("preset", ["open", "locked"])
def test_a_tool_for_programs_only_is_called_through(case, preset):
    where, amount, made, expected = THROUGH_PROGRAMS[case]
    # A later rule that allows everything doesn't help what this one refuses.
    frozen = rules(PAYMENT, rule("*.*", "allow"), preset=preset)
    decision = decide(frozen, call("local.pay", step=where, made=made, amount=amount))
    assert (decision.effect, decision.rule) == (expected, 1)


def test_a_program_is_pinned_by_its_hash_too():
    frozen = rules(rule("local.pay", "program", programs=["sha256:" + OTHER.upper()]))
    assert decide(frozen, call(step=step(operators(OTHER, "x")))).effect == "allow"
    assert decide(frozen, call(step=step(operators(PAY, "x")))).effect == "deny"


def test_a_deny_binds_the_operators_programs_too():
    frozen = rules(PAYMENT, rule("local.*", "deny", when="$amount == 7"))
    assert decide(frozen, call(step=step(operators()), amount=7)).effect == "deny"


def test_an_approval_before_the_program_rule_binds_its_programs():
    frozen = rules(rule("local.pay", "approve", when="$amount > 100"), PAYMENT)
    assert decide(frozen, call(step=step(operators()), amount=100)).effect == "allow"
    assert decide(frozen, call(step=step(operators()), amount=101)).effect == "approve"


def test_a_step_is_in_a_program():
    with pytest.raises(ValueError, match="a step stands in a program"):
        StepContext(())


# --- what calls count ---


def test_a_call_counts_against_the_rules_that_bound_it_and_only_if_it_may_be_made():
    bounded = rule("a.b", "allow", max_calls=3)
    assert decide(rules(bounded), call("a.b")).counts == (1,)
    assert decide(rules(bounded), call("a.b", made={1: 3})).counts == ()
    assert decide(rules(rule("a.b", "allow", when="$x == 1", name="x")), call("a.b", x=1)).counts == ()
    asked = rule("*.*", "approve", when="$n > 5", max_calls=2)
    assert decide(rules(asked, bounded), call("a.b", n="?")).counts == (1, 2)


# --- what the agent is told ---


def test_a_denial_says_which_rule_and_nothing_else_of_the_policy():
    frozen = rules(
        rule("a.*", "allow", when="$secret_argument == 'x'"),
        rule(["*.rm_*", "zzz.*"], "deny", name="no deletions", reason="They are done by hand.", when="$force == True"),
    )
    error = decide(frozen, call("a.rm_all", force=True)).error()
    assert (error.code, error.details) == ("denied", {"tool": "a.rm_all", "rule": 2})
    assert str(error) == ('The operator\'s policy denies a.rm_all, by rule 2 ("no deletions"). They are done by hand.')
    assert error.private == {}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (call(amount=1), "by rule 1: it may only be called as a step of one of the operator's programs."),
        (call(step=step(agents()), amount=1), "it may only be called as a step of one of the operator's programs."),
        (call(step=step(operators(OTHER)), amount=1), "by rule 1: it may not be called as a step of this program."),
        (call(step=step(operators()), amount=501), "The operator's policy denies local.pay, by rule 1."),
        (
            call(step=step(operators()), amount="x"),
            "by rule 1: the rule can't be decided for these arguments, which never lets a call through.",
        ),
        (
            call(step=step(ProgramRef("operator", OTHER, "pay", differs=True)), amount=1),
            "step of this program, which the operator has changed or removed since this execution began.",
        ),
        (
            call(step=step(ProgramRef("operator", OTHER, "other", differs=True)), amount=1),
            "by rule 1: it may not be called as a step of this program.",
        ),
        (
            call(step=step(operators(), ProgramRef("agent", OTHER, "pay", differs=True)), amount=1),
            "it may not be called as a step of this program, which isn't the operator's of that name.",
        ),
        (
            call(step=step(operators(), ProgramRef("agent", OTHER, "other", differs=True)), amount=1),
            "it may only be called as a step of one of the operator's programs.",
        ),
        (call(step=step(operators()), made={1: 1}, amount=1), "the rule lets through no more calls in this execution."),
    ],
)
def test_a_denial_says_what_the_agent_may_know(asked, message):
    text = decide(rules(PAYMENT), asked).message
    assert text.endswith(message)
    for hidden in (PAY, "500", "amount", "pay_pipeline", "max_calls", "local.*"):
        assert hidden not in text


@pytest.mark.parametrize("value", ["100", None, True, [50]])
def test_a_ban_that_can_t_be_decided_says_so_and_nothing_of_its_condition(value):
    message = decide(rules(rule("a.b", "deny", when="$amount > 500")), call("a.b", amount=value)).message
    told = "the rule can't be decided for these arguments, which never lets a call through."
    assert message == f"The operator's policy denies a.b, by rule 1: {told}"
    assert decide(rules(rule("a.b", "deny", when="$amount > 500")), call("a.b", amount=501)).message == (
        "The operator's policy denies a.b, by rule 1."
    )


def test_a_denial_of_a_program_that_has_changed_says_what_helps():
    changed = call(step=step(ProgramRef("operator", OTHER, "pay", differs=True)), amount=1)
    assert decide(rules(PAYMENT), changed).error().hint == (
        f"Before other suspended executions resume, the operator restores the program's file, or lists {OTHER} "
        "in the rule's programs."
    )
    # Whether the file was that of a program that the rule names, its execution doesn't tell.
    unnamed = call(step=step(ProgramRef("operator", OTHER, "unnamed", differs=True, is_unnamed=True)), amount=1)
    assert decide(rules(PAYMENT), unnamed).hint.startswith("If the rule is for it, ")
    by_hash = rules(rule("local.pay", "program", programs=[PAY]))
    assert decide(by_hash, unnamed).message.endswith("step of this program.")
    inner = step(operators(), ProgramRef("agent", OTHER, "pay", differs=True))
    error = decide(rules(PAYMENT), call(step=inner, amount=1)).error()
    # No rule lets the agent's programs through by their hash, and what was never a file isn't put back.
    assert error.hint == (
        "The program 'pay' in it isn't the operator's of today. Start it again; save a program that includes "
        "it again first."
    )
    listed = rules(rule("local.pay", "program", programs=["pay", OTHER]))
    assert decide(listed, changed).effect == "allow"


def test_a_denial_by_the_floor_tells_nobody_to_change_its_rules():
    changed = call(step=step(ProgramRef("operator", OTHER, "pay", differs=True)), amount=1)
    over = layered(rules(PAYMENT), freeze(read({"preset": "open"}), PROGRAMS))
    decision = decide(over, changed)
    assert (decision.effect, decision.hint) == ("deny", None)
    assert decision.message == decide(rules(PAYMENT), changed).message


def test_the_presets_denial_names_the_preset():
    decision = decide(rules(preset="read-only"), call("a.b"))
    assert decision.rule is None
    assert decision.error().message == 'The operator\'s policy denies a.b, by the preset "read-only".'
    assert decide(rules(preset="approve-writes"), call("a.b")).message == (
        'The operator\'s policy has a person decide about a.b, by the preset "approve-writes".'
    )


# --- explain ---


def test_an_explanation_says_of_each_rule_why_it_did_or_did_not_match():
    frozen = rules(
        rule("b.*", "deny"),
        rule("my_git.log", "allow"),
        rule("my-git.*", "approve", when="$n > 5", name="large"),
        rule(["my-git.log", "my-git.l*", "x.y"], "allow", when="$n == 1"),
        rule("my-git.log", "program", programs=["pay"]),
        rule("my-git.lo?", "allow", max_calls=1),
        preset="locked",
    )
    found = explain(frozen, call("my-git.log", "my_git.log", n="1"))
    assert found.decision == decide(frozen, call("my-git.log", "my_git.log", n="1"))
    assert found.text().splitlines() == [
        "deny: my-git.log, by rule 5",
        "  rule 1, deny: pass, it is for other tools",
        (
            "  rule 2, allow [my_git.log]: pass, it names this tool only by an alias or in other case, and to be "
            "allowed a tool has to be named exactly: my-git.log"
        ),
        (
            '  rule 3 ("large"), approve [my-git.*]: at least approve, its condition has no answer for these '
            "arguments (a value of the type string and one of the type number have no order)"
        ),
        (
            "  rule 4, allow [my-git.l*, my-git.log]: pass, its condition has no answer for these arguments (a value of "
            "the type string is compared with one of the type number)"
        ),
        "→ rule 5, program [my-git.log]: deny, the call is no step of a program",
        "  rule 6, allow [my-git.lo?]: allow, it is for this tool",
        '  the preset "locked": deny',
    ]


@pytest.mark.parametrize(
    ("server", "hints", "text"),
    [
        ("git", READ, '→ the preset "read-only": deny, trust_hints doesn\'t list the server'),
        ("files", READ, '→ the preset "read-only": allow, the server says readOnlyHint = True'),
        ("files", {}, '→ the preset "read-only": deny, the server says nothing of the tool'),
    ],
)
def test_an_explanation_says_what_became_of_hints(server, hints, text):
    frozen = freeze(read({"preset": "read-only", "trust_hints": ["files"]}), {})
    assert explain(frozen, call(f"{server}.x", hints=hints)).text().splitlines()[-1] == text


def test_an_explanation_is_json():
    frozen = rules(PAYMENT)
    record = explain(frozen, call(amount=5)).record()
    canonical(record)
    assert record["effect"] == "deny"
    assert record["policy_hash"] == frozen.hash
    assert record["rules"] == [
        {
            "number": 1,
            "label": "rule 1",
            "effect": "program",
            "verdict": "deny",
            "why": "the call is no step of a program",
            "tools": ["local.pay"],
            "decides": True,
        }
    ]


# --- snapshots ---

WHOLE = """
[policy]
preset = "read-only"
trust_hints = ["git", "files"]
[policy.limits]
calls = 5
model_cost_usd = 0.1
[policy.limits.principal]
bytes = 9007199254740991
[[policy.rules]]
tools = ["local.pay", "a.é*"]
effect = "program"
programs = ["refund", "pay"]
when = "$amount <= 500"
max_calls = 1
[[policy.rules]]
tools = ["a.b"]
effect = "deny"
"""

REORDERED = """
[[policy.rules]]
when = "$amount <= 500"
max_calls = 1
effect = "program"
programs = ["pay", "refund", "pay"]
tools = ["a.é*", "local.pay"]
[[policy.rules]]
effect = "deny"
tools = ["a.b"]
[policy]
limits.model_cost_usd = 0.10
limits.principal.bytes = 9007199254740991
limits.calls = 5
trust_hints = ["files", "git"]
preset = "read-only"
""".replace("[policy]\n", "[policy.x]\n")


def reordered():
    """TOML wants `[policy]` before its arrays: the table is put together by hand."""
    table = tomllib.loads(REORDERED)["policy"]
    return table.pop("x") | table


def test_equal_policies_have_equal_hashes_whatever_the_order_of_keys():
    one, other = snapshot(WHOLE), freeze(read(reordered()), dict(reversed(PROGRAMS.items())) | {"third": OTHER})
    assert one == other
    assert (one.hash, one.canonical()) == (other.hash, other.canonical())


@pytest.mark.parametrize(
    "changed",
    [
        WHOLE.replace("read-only", "locked"),
        WHOLE.replace("500", "501"),
        WHOLE.replace('"git", ', ""),
        WHOLE.replace("calls = 5", "calls = 6"),
        WHOLE.replace("0.1", "0.2"),
        WHOLE + 'reason = "x"',
        WHOLE.replace('"deny"', '"approve"'),
        WHOLE.replace("[policy.limits.principal]\nbytes = 9007199254740991\n", ""),
    ],
)
def test_another_policy_has_another_hash(changed):
    assert snapshot(changed).hash != snapshot(WHOLE).hash


def test_the_order_of_rules_and_the_programs_that_they_name_are_part_of_the_policy():
    first, second = rule("a.b", "allow"), rule("a.*", "approve")
    assert rules(first, second).hash != rules(second, first).hash
    assert snapshot(WHOLE, PROGRAMS | {"pay": OTHER}).hash != snapshot(WHOLE).hash


def test_a_snapshot_comes_back_from_its_bytes():
    frozen = snapshot(WHOLE)
    again = PolicySnapshot.restore(frozen.canonical())
    assert again == frozen
    assert (again.hash, again.canonical()) == (frozen.hash, frozen.canonical())
    asked = call(step=step(operators()), amount=5)
    assert decide(again, asked) == decide(frozen, asked)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"version":2}',
        b'{"x":1}',
        b'{"rules":[{"tools":["a"],"effect":"deny"}]}',
        b'{"rules":[{"tools":["a.b"],"effect":"program","programs":["pay"]}]}',
        b'{"programs":[{"name":"pay","hash":"xyz"}]}',
        b'{"programs":[{"name":"pay","hash":"%s"}]}' % (b"a" * 64),
    ],
)
def test_bytes_that_are_no_snapshot_are_refused(data):
    with pytest.raises(BridgeError) as caught:
        PolicySnapshot.restore(data)
    assert caught.value.code == "bad_policy_snapshot"


def test_a_snapshot_does_not_change():
    programs, table = dict(PROGRAMS), reordered()
    frozen = freeze(read(table), programs)
    before = frozen.hash, frozen.canonical()
    programs["pay"] = OTHER
    table["rules"].clear()
    table["trust_hints"].append("evil")
    for name in ("preset", "rules"):
        with pytest.raises(ValueError, match="frozen"):
            setattr(frozen, name, "open")
    with pytest.raises(ValueError, match="frozen"):
        frozen.limits.calls = 9
    assert (frozen.hash, frozen.canonical()) == before


def test_asking_changes_nothing_of_a_snapshot():
    frozen, untouched = snapshot(WHOLE), snapshot(WHOLE)
    explain(frozen, call(amount=5))
    assert frozen == untouched
    assert frozen.canonical() == untouched.canonical()


def test_a_changed_copy_decides_by_its_own_rules():
    frozen = rules(rule("a.b", "deny"))
    assert decide(frozen, call("a.b")).effect == "deny"
    copy = frozen.model_copy(update={"rules": ()})
    assert decide(copy, call("a.b")).effect == "allow"
    assert copy.hash != frozen.hash
    with pytest.raises(ValueError, match="preset"):
        frozen.model_copy(update={"preset": "none"})


def test_the_tools_of_many_servers_are_decided_rightly_beyond_what_is_remembered():
    frozen = rules(rule("*.x1*", "deny"))
    for _ in range(2):
        denied = sum(decide(frozen, call(f"s.x{number}")).effect == "deny" for number in range(10_500))
        assert denied == 1 + 10 + 100 + 1000 + 500
        assert len(frozen.compiled._fitting) <= 10_000


PRINT_HASH = """
import sys, tomllib
from mcp_bridge.policy.rules.policy_settings import read
from mcp_bridge.policy.rules.policy_snapshot import freeze
frozen = freeze(read(tomllib.loads(sys.stdin.read())["policy"]), {"refund": "b" * 64, "pay": "a" * 64})
print(frozen.hash)
"""


def test_the_hash_is_the_same_in_every_process():
    hashes = {
        subprocess.run(
            [sys.executable, "-c", PRINT_HASH],
            input=WHOLE,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
        ).stdout.strip()
        for seed in ("0", "1", "4242")
    }
    assert hashes == {snapshot(WHOLE).hash}
