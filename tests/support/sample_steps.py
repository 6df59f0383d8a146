"""A step of every type, with every field."""

from mcp_bridge.kernel.language import step_fields as form


def steps(*rows, **fields):
    return {"steps": list(rows), **fields}


def tool(name, **fields):
    return {"id": name, "type": "tool", "tool": "t", **fields}


MINIMAL = {
    "tool": {"tool": "t"},
    "llm": {"prompt": "p"},
    "condition": {"condition": "$a == 1", "then": "s"},
    "parallel": {"parallel_steps": [tool("x")]},
    "approval": {"message": "m"},
    "wait": {"seconds": 1},
    "map": {"over": "$items", "step": {"type": "tool", "tool": "t"}},
    "program": {"program": steps(tool("x"))},
}

SAMPLES = {
    # field: (what is right, what isn't)
    "on_error": (["fail", "skip", "retry"], ["", "FAIL", None, 1, []]),
    "max_retries": ([0, 1, 1000], [-1, 1001, 1.5, True, "3", None]),
    "retry": (
        [
            None,
            {},
            {"schedule": [0, 0.5, 10]},
            {"max_attempts": 1, "delay_seconds": 0, "multiplier": 1.5, "max_delay_seconds": 60},
        ],
        [
            3,
            [],
            {"schedule": []},
            {"schedule": [-1]},
            {"schedule": ["1"]},
            {"schedule": [1] * 1001},
            {"schedule": [1], "max_attempts": 2},
            {"schedule": None},
            {"max_attempts": 0},
            {"multiplier": 0.5},
            {"delay": 1},
        ],
    ),
    "timeout_seconds": ([None, 0.001, 1, form.MAX_SECONDS], [0, -1, form.MAX_SECONDS + 1, "1", True]),
    "compensate": (
        [None, {"tool": "u"}, {"tool": "u", "args": {"x": "$s.id"}}],
        ["u", {}, {"args": {}}, {"tool": ""}, {"tool": "u", "args": []}, {"tool": "u", "when": 1}],
    ),
    "is_terminal": ([True, False], [None, 0, 1, "true"]),
    "next_step": ([None, "s"], ["", "nowhere", 1]),
    "output_key": ([None, "k"], ["", "k" * 201, 1]),
    "prompt": (["p", " "], ["", None, 1, ["p"], "x" * ((1 << 20) + 1)]),
    "system": ([None, "", "s"], [1, {}]),
    "allowed_outputs": ([None, ["yes"], ["", "no"]], [[], "yes", [1], [None]]),
    "on_timeout": (["fail", "fallback"], [None, "", "retry"]),
    "parse": ([None, "json"], ["", "yaml", "JSON", 1, True, {}]),
    "tool": (["t", "server.tool"], ["", None, 1, "t" * 201]),
    "args": ([{}, {"x": [{"y": None}]}], [None, [], "x"]),
    "condition": (["True", "$a"], ["", None, 1, "(", "x" * 10_001]),
    "then": (["s"], ["", "nowhere", 1]),
    "otherwise": ([None, "s"], ["", "nowhere", 1]),
    "parallel_steps": (
        [[tool("x"), {"id": "y", "type": "llm", "prompt": "p"}]],
        [[], None, {}, [1], [MINIMAL["wait"]]],
    ),
    "max_concurrency": ([None, 1, 10**12], [0, -1, 1.5, "1", True]),
    "message": (["m", "$a"], ["", None, 1]),
    "details": ([None, 1, "x", [], {"x": "$y"}], []),
    "seconds": (
        [0, 0.5, "$s.output", "$s[0].n[1]", form.MAX_SECONDS],
        [-1, form.MAX_SECONDS + 1, "1", "$", "$a b", True, []],
    ),
    "event": ([None], ["", 1]),
    "over": (
        ["$s", "$a.b.0", "$a[0].b[1]", [], [1, "$x"]],
        [None, "", "s", "$", "$a ", "$a[b]", "$a[0", "$a[-1]", {}, 1],
    ),
    "as": (["x"], ["", None, 1]),
    "step": (
        [{"type": "llm", "prompt": "$item"}, {"id": "b", "type": "program", "program": steps(tool("x"))}],
        [None, [], {}, {"type": "map"}, {"type": "tool"}, {"type": "tool", "tool": "t", "next_step": "s"}],
    ),
    "program": ([steps(tool("x"))], ["", None, 1, [], {}, "unknown", steps()]),
    "context": ([{}, {"x": "$y"}], [None, [], 1]),
}

OWN = [(kind, name) for kind, spec in form.TYPES.items() for name in spec.required + spec.optional]


def step_of(kind, **fields):
    return {"id": "s", "type": kind, **MINIMAL[kind], **fields}
