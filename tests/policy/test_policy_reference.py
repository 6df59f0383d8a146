"""Policies and calls by the ten thousand, decided here and by a second implementation that is slow and obvious.

The reference shares no code with `mcp_bridge.policy`: it reads the tables as they are written, matches globs sign by
sign, and evaluates conditions as the trees that they were generated as.
"""

import random
import unicodedata
from collections import Counter

import pytest

from mcp_bridge.policy.rules.call import Call, ProgramRef, StepContext
from mcp_bridge.policy.rules.decision import decide
from mcp_bridge.policy.rules.explain import explain
from mcp_bridge.policy.rules.globs import ToolNames
from mcp_bridge.policy.rules.policy_settings import read
from mcp_bridge.policy.rules.policy_snapshot import PolicySnapshot, freeze
from mcp_bridge.policy.rules.rule_evaluation import Cause

PAIRS = 20_000
CALLS_PER_POLICY = 4

PROGRAMS = {"pay": "a" * 64, "refund": "b" * 64, "audit": "c" * 64}

# --- the reference ---


def glob_fits(glob, text):
    if glob == "":
        return text == ""
    if glob[0] == "*":
        return any(glob_fits(glob[1:], text[skipped:]) for skipped in range(len(text) + 1))
    if text == "":
        return False
    if glob[0] == "?":
        return glob_fits(glob[1:], text[1:])
    if glob[0] == "[" and "]" in glob:
        members, rest = glob[1:].split("]", 1)
        fits = text[0] not in members[1:] if members[0] == "!" else text[0] in members
        return fits and glob_fits(rest, text[1:])
    return glob[0] == text[0] and glob_fits(glob[1:], text[1:])


def folded(text):
    return unicodedata.normalize("NFKC", text).casefold()


def covers(rule, tool):
    server, name, server_alias, alias = tool
    forms = [f"{one}.{other}" for one in (server, server_alias) for other in (name, alias)]
    return any(
        glob_fits(glob, form) or glob_fits(folded(glob), folded(form)) for glob in rule["tools"] for form in forms
    )


def exactly_names(rule, tool):
    for glob in rule["tools"]:
        in_brackets = False
        for index, sign in enumerate(glob):
            in_brackets = (sign == "[" and "]" in glob[index:]) or (in_brackets and sign != "]")
            if sign == "." and not in_brackets:
                if glob_fits(glob[:index], tool[0]) and glob_fits(glob[index + 1 :], tool[1]):
                    return True
                break
    return False


class NoAnswerError(Exception):
    pass


def follow(path, arguments):
    value = arguments
    for name in path.split("."):
        if value is None:
            return None
        if not isinstance(value, dict):
            raise NoAnswerError  # a server may read an object out of a text
        value = value.get(name)
    return value


def kind(value):
    return "number" if type(value) in {int, float} else type(value).__name__


def evaluate(tree, arguments):
    match tree:
        case ("and", one, other):
            return evaluate(one, arguments) and evaluate(other, arguments)
        case ("or", one, other):
            return evaluate(one, arguments) or evaluate(other, arguments)
        case ("not", one):
            return not evaluate(one, arguments)
        case ("==", path, literal):
            value = follow(path, arguments)
            if value is not None and kind(value) != kind(literal):
                raise NoAnswerError
            return value == literal
        case ("<=" | ">" as sign, path, literal):
            value = follow(path, arguments)
            if kind(value) != kind(literal):
                raise NoAnswerError
            return value <= literal if sign == "<=" else value > literal
        case ("contains", path, literal):
            value = follow(path, arguments)
            if isinstance(value, str) and isinstance(literal, str):
                return literal in value
            if isinstance(value, (dict, list)) and literal in value:
                return True
            raise NoAnswerError
    raise AssertionError(tree)


def answer(rule, arguments):
    """yes, no, or unknown."""
    if "tree" not in rule:
        return "yes"
    try:
        return "yes" if evaluate(rule["tree"], arguments) else "no"
    except NoAnswerError:
        return "unknown"


def may_step(rule, programs):
    if not programs:
        return False
    innermost = programs[-1]
    wanted = [PROGRAMS.get(name, name) for name in rule["programs"]]
    return innermost["origin"] == "operator" and innermost["hash"] in wanted


def reference(policy, asked):
    """The effect, the number of the deciding rule or None, and whom the call counts against."""
    fitting = [
        (number, rule, answer(rule, asked["arguments"]))
        for number, rule in enumerate(policy["rules"], 1)
        if covers(rule, asked["tool"])
    ]
    for number, rule, known in fitting:
        if rule["effect"] == "deny" and known != "no":
            return "deny", number, ()

    doubtful = None
    effect, number = by_preset(policy, asked), None
    for each, rule, known in fitting:
        said = "nothing" if rule["effect"] == "deny" else by_rule(rule, known, each, asked)
        if said == "in doubt, ask":
            doubtful = doubtful or each
        elif said != "nothing":
            effect, number = said, each
            break
    involved = [number]
    if effect == "allow" and doubtful:
        effect, involved = "approve", [doubtful, number]
    bounded = tuple(each for each in involved if each and "max_calls" in policy["rules"][each - 1])
    return effect, involved[0], () if effect == "deny" else bounded


def by_rule(rule, known, number, asked):
    exhausted = "max_calls" in rule and asked["made"].get(number, 0) >= rule["max_calls"]
    if rule["effect"] == "program":
        permitted = may_step(rule, asked["programs"]) and known == "yes" and not exhausted
        return "allow" if permitted else "deny"
    if rule["effect"] == "approve":
        if known == "no":
            return "nothing"
        if exhausted:
            return "deny"
        return "approve" if known == "yes" else "in doubt, ask"
    if known != "yes":
        return "nothing"
    if not exactly_names(rule, asked["tool"]):
        return "deny" if "max_calls" in rule else "nothing"
    return "deny" if exhausted else "allow"


def by_preset(policy, asked):
    hints = asked["hints"]
    believed = asked["tool"][0] in policy["trust_hints"] and hints.get("readOnlyHint") is True
    if policy["preset"] in {"read-only", "approve-writes"} and believed and hints.get("destructiveHint") is not True:
        return "allow"
    return {"open": "allow", "locked": "deny", "read-only": "deny", "approve-writes": "approve"}[policy["preset"]]


# --- what is generated ---

TOOLS = [
    ("git", "log", "git", "log"),
    ("git", "Log", "git", "Log"),
    ("git", "rm-all", "git", "rm_all"),
    ("Git", "log", "git_2", "log"),
    ("my-git", "rm-all", "my_git", "rm_all"),
    ("my_git", "rm_all", "my_git", "rm_all"),
    ("a", "b.c", "a", "b_c"),
    ("a.b", "c", "a_b", "c"),
    ("a_b", "c", "a_b", "c"),
    ("local", "pay", "local", "pay"),
    ("local", "pay.now", "local", "pay_now"),
    ("straße", "größe", "straße", "größe"),
    ("STRASSE", "größe", "strasse", "größe"),
]


def some_glob(rng, tools):
    row = rng.choice(tools)
    server, tool = rng.choice([row[:2], row[:2], row[2:], (row[0], row[3])])
    glob = f"{server}.{tool}"
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        dot = glob.index(".") if "." in glob else 0
        match rng.randrange(7):
            case 0:
                glob = f"{glob[: dot + 1]}*"
            case 1:
                glob = f"*{glob[dot:]}"
            case 2:
                glob = glob.swapcase()
            case 3:
                glob = glob[:-1] + "?" if not glob.endswith(("]", ".")) else glob
            case 4 if "[" not in glob and "*" not in glob:
                at = rng.randrange(len(glob))
                if glob[at] != "." or glob.count(".") > 1:
                    glob = f"{glob[:at]}[{rng.choice(['', '!'])}{glob[at]}{rng.choice('xL.')}]{glob[at + 1 :]}"
            case 5 if "[" not in glob:
                at = rng.randrange(1, len(glob))
                glob = f"{glob[:at]}*{glob[at:]}"
            case 6:
                glob = rng.choice(["*.*", "g*.*", "*.log", "a*.*"])
    return glob


PATHS = ["amount", "to", "extra.amount", "extra", "missing"]


def some_tree(rng, depth=2):
    if depth and rng.random() < 0.4:
        kind = rng.choice(["and", "or", "not"])
        return (kind, *(some_tree(rng, depth - 1) for _ in range(1 if kind == "not" else 2)))
    kind = rng.choice(["==", "<=", ">", "contains"])
    literal = rng.choice(["ann", "amount", "bob@x", 5, 500, 7.5])
    return (kind, rng.choice(PATHS), literal)


def text_of(tree):
    match tree:
        case ("not", one):
            return f"not ({text_of(one)})"
        case ("and" | "or" as kind, one, other):
            return f"({text_of(one)}) {kind} ({text_of(other)})"
        case (kind, path, literal):
            return f"${path} {kind} {literal!r}"
    raise AssertionError(tree)


def some_rule(rng, tools):
    rule = {"tools": [some_glob(rng, tools) for _ in range(rng.choice([1, 1, 2]))]}
    rule["effect"] = rng.choice(["allow", "allow", "deny", "approve", "program"])
    if rule["effect"] == "program":
        rule["programs"] = rng.sample([*PROGRAMS, PROGRAMS["audit"], "d" * 64], rng.choice([1, 2]))
    if rng.random() < 0.5:
        rule["tree"] = some_tree(rng)
    if rule["effect"] != "deny" and rng.random() < 0.4:
        rule["max_calls"] = rng.choice([1, 2, 3])
    return rule


def some_policy(rng, tools):
    """A policy without contradictions."""
    rules, seen = [], set()
    for _ in range(rng.choice([0, 1, 2, 3, 4, 6])):
        rule = some_rule(rng, tools)
        if (same := (frozenset(rule["tools"]), repr(rule.get("tree")))) not in seen:
            seen.add(same)
            rules.append(rule)
    return {
        "preset": rng.choice(["open", "read-only", "approve-writes", "locked"]),
        "trust_hints": rng.sample(["git", "Git", "a.b", "local"], rng.randrange(4)),
        "rules": rules,
    }


def some_value(rng):
    return rng.choice([5, 7.5, 500, 501, "ann", "bob@xy", "amount", None, {"amount": 5}, {"amount": "ann"}, True])


def some_call(rng, tools):
    hashes = [*PROGRAMS.values(), "d" * 64, "e" * 64]
    # Programs come with names of their own, which decide nothing.
    chain = [
        {"origin": rng.choice(["operator", "operator", "agent"]), "hash": rng.choice(hashes), "name": rng.choice("xyz")}
        for _ in range(rng.choice([0, 1, 1, 2, 3]))
    ]
    hints = {
        name: rng.choice([True, False, "true", 1])
        for name in ("readOnlyHint", "destructiveHint", "idempotentHint")
        if rng.random() < 0.4
    }
    return {
        "tool": rng.choice(tools),
        "arguments": {name: some_value(rng) for name in ("amount", "to", "extra") if rng.random() < 0.7},
        "hints": hints | ({"readOnlyHint": True} if rng.random() < 0.4 else {}),
        "programs": chain,
        "made": {number: rng.randrange(4) for number in range(1, 7) if rng.random() < 0.5},
    }


def as_call(asked):
    chain = tuple(ProgramRef(each["origin"], each["hash"], each["name"]) for each in asked["programs"])
    return Call(
        ToolNames(*asked["tool"]),
        asked["arguments"],
        asked["hints"],
        StepContext(chain) if chain else None,
        asked["made"],
    )


def as_written(policy):
    rules = [
        {key: value for key, value in rule.items() if key != "tree"}
        | ({"when": text_of(rule["tree"])} if "tree" in rule else {})
        for rule in policy["rules"]
    ]
    return policy | {"rules": rules}


def pairs(seed, count):
    rng = random.Random(seed)  # noqa: S311 - cases, no keys
    for _ in range(count // CALLS_PER_POLICY):
        tools = rng.sample(TOOLS, 3)
        policy = some_policy(rng, tools)
        frozen = freeze(read(as_written(policy)), PROGRAMS)
        for _ in range(CALLS_PER_POLICY):
            yield policy, frozen, some_call(rng, tools)


def test_the_reference_and_the_policy_agree():
    met = Counter()
    for policy, frozen, asked in pairs(20261, PAIRS):
        made = decide(frozen, as_call(asked))
        expected = reference(policy, asked)
        assert (made.effect, made.rule, made.counts) == expected, (as_written(policy), asked, made)
        met[made.effect, None if made.rule is None else policy["rules"][made.rule - 1]["effect"], made.cause] += 1
        met["counts", len(made.counts)] += 1
    # Not by the same few cases over and over.
    assert len(met) >= 22, met
    assert all(count >= 10 for count in met.values()), met


def test_they_agree_on_lists_where_conditions_expect_something_else():
    met = Counter()
    for policy, frozen, asked in pairs(20262, 2000):
        asked["arguments"] = {name: [value] for name, value in asked["arguments"].items()}
        made = decide(frozen, as_call(asked))
        assert (made.effect, made.rule, made.counts) == reference(policy, asked), (as_written(policy), asked, made)
        met[made.cause] += 1
    assert met[Cause.NO_ANSWER] > 100, met


@pytest.mark.parametrize("seed", range(3))
def test_explanations_and_restored_snapshots_say_the_same(seed):
    for _, frozen, asked in pairs(seed, 400):
        made = decide(frozen, as_call(asked))
        explained = explain(frozen, as_call(asked))
        assert explained.decision == made
        assert [rule.number for rule in explained.rules if rule.decides] == ([made.rule] if made.rule else [])
        assert decide(PolicySnapshot.restore(frozen.canonical()), as_call(asked)) == made


def test_deciding_is_pure():
    for _, frozen, asked in pairs(7, 400):
        before = repr(asked)
        assert len({decide(frozen, as_call(asked)) for _ in range(3)}) == 1
        assert repr(asked) == before
