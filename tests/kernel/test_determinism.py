"""The same program, inputs and outcomes give the same bytes: for ever, on every Python, and on both sides."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from execution_fixtures import lines
from golden import record, replay

from mcp_bridge.executions.programs.program_run import ProgramRun
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.kernel.awaited_effects import VERSION
from mcp_bridge.kernel.language.step_fields import TYPES
from mcp_bridge.kernel.state import dump

ROOT = Path(__file__).resolve().parents[2]
FILES = replay.files()
RECORDED = 77
"""There were as many when this was written, and none is ever taken away."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recorded_history_is_what_it_was(path):
    assert list(replay.faults(replay.read(path))) == []


def nested(value, name):
    """All values of this name, at any depth."""
    if isinstance(value, dict):
        if name in value:
            yield value[name]
        for item in value.values():
            yield from nested(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from nested(item, name)


def test_the_recorded_histories_have_everything_in_them():
    histories = [replay.read(path) for path in FILES]
    assert len(histories) >= RECORDED
    programs = [[history["program"], history.get("uses", [])] for history in histories]
    ends = [json.loads(history["states"][-1]["bytes"]) for history in histories]
    points = [json.loads(state["bytes"]) for history in histories for state in history["states"]]
    events = [event for history in histories for event in history["events"]]
    assert set(TYPES) <= set(nested(programs, "type"))
    for field in (
        "compensate", "retry", "max_retries", "timeout_seconds", "output_key", "next_step", "is_terminal",
        "max_concurrency", "allowed_outputs", "on_timeout", "otherwise", "max_steps", "max_tokens", "max_stalled_steps",
    ):  # fmt: skip
        assert any(nested(programs, field)), field
    assert {end["level"]["status"] for end in ends} == {
        "success", "failed", "budget_exceeded", "stalled", "cancelled",
    }  # fmt: skip
    assert {
        "tool_error", "denied", "timeout", "not_allowed", "bad_condition", "bad_value", "too_large", "interrupted",
        "sub_steps_failed", "budget_exceeded", "stalled", "cancelled", "no_target",
    } <= {*nested(ends, "code"), *(end["level"]["ending"][1] for end in ends)}  # fmt: skip
    assert {"run", "backoff", "aborted"} <= set(nested(points, "phase"))
    assert {event["event"] for event in events} == {"outcome", "resume", "cancel", "redo"}
    assert {event["status"] for event in events if "status" in event} == {
        "ok",
        "failed",
        "timeout",
        "denied",
        "pending",
    }
    assert any(point["pending"] for point in points)
    assert {event.get("refused") for event in events} > {
        None, "not_resumable", "already_pending", "not_in_doubt",
    }  # fmt: skip


# --- what keeps them --------------------------------------------------------------------------------------------------


HISTORY = {
    "about": "a new one",
    "program": {"steps": [{"id": "a", "type": "tool", "tool": "t", "args": {"x": "$n"}}]},
    "context": {"n": 1.5},
    "events": [
        {"event": "outcome", "effect": 2, "status": "ok", "refused": "unknown_effect"},
        {"event": "outcome", "effect": 1, "status": "ok", "value": [1]},
    ],
}


def test_a_new_history_is_recorded_and_a_recorded_one_is_never_written_again(tmp_path):
    path = tmp_path / "new.json"
    path.write_text(json.dumps(HISTORY))
    record.record(path)
    history = replay.read(path)
    assert [history[name] for name in HISTORY] == list(HISTORY.values())
    assert len(history["states"]) == 3
    assert history["states"][0] == history["states"][1]
    for state in history["states"]:
        assert hashlib.sha256(state["bytes"].encode()).hexdigest() == state["sha256"]
    assert list(replay.faults(history)) == []
    before = path.read_bytes()
    with pytest.raises(ValueError, match="is recorded"):
        record.record(path)
    assert path.read_bytes() == before


def test_a_history_whose_event_is_refused_is_not_recorded(tmp_path):
    path = tmp_path / "new.json"
    path.write_text(json.dumps(HISTORY | {"events": [{"event": "resume"}]}))
    with pytest.raises(ValueError, match="refused as not_pending, and not as None"):
        record.record(path)
    assert json.loads(path.read_text())["events"] == [{"event": "resume"}]


@pytest.mark.parametrize(
    "change",
    [
        lambda history: history["states"][1].update(sha256="0" * 64),
        lambda history: history["states"][2].update(bytes=history["states"][2]["bytes"].replace("[1]", "[2]")),
        lambda history: history["states"].pop(),
        lambda history: history["events"].pop(),
        lambda history: history["events"][1].update(value=[2]),
        lambda history: history["events"][0].pop("refused"),
        lambda history: history["events"][1].update(refused="unknown_effect"),
    ],
)
def test_whatever_differs_from_what_was_recorded_is_told(tmp_path, change):
    history = json.loads(json.dumps(HISTORY))
    history["states"] = [replay.recorded(data) for data in replay.states_of(HISTORY)]
    assert list(replay.faults(history)) == []
    change(history)
    assert list(replay.faults(history)) != []
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(history))
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [sys.executable, "-B", replay.__file__, path], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert "changed.json" in ran.stdout


# --- on every Python --------------------------------------------------------------------------------------------------

VERSIONS = ("3.11", "3.12", "3.13")
SEEDS = ("0", "1", "random")


def version_of(python):
    """An interpreter's version, or None if it doesn't run: a shim may be there without what it stands for."""
    asked = [python, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def installed():
    """Where interpreters may be: this one, those on the PATH, and pyenv's, whose shims run one version of each only."""
    yield sys.executable
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for version in VERSIONS:
        yield f"python{version}"
        yield from map(str, sorted(root.glob(f"versions/{version}.*/bin/python3")))


@pytest.fixture(scope="module")
def pythons():
    """Interpreters by version: those that $MCP_BRIDGE_PYTHONS names, all of them, else what there is.

    Neither Debian nor the registries have every version, so none but this one can be had everywhere.
    """
    told = os.environ.get("MCP_BRIDGE_PYTHONS")
    found = {}
    for python in told.split(os.pathsep) if told else installed():
        version = version_of(python)
        assert version or not told, f"$MCP_BRIDGE_PYTHONS names {python}, which doesn't run"
        if version:
            found.setdefault(version, python)
    missing = sorted(set(VERSIONS) - set(found))
    assert not (told and missing), f"no Python {' or '.join(missing)}: name one in $MCP_BRIDGE_PYTHONS (a:b:c)"
    return found


def ran(python, seed, *arguments):
    """Standard output of an interpreter that has nothing but its standard library and this project's modules."""
    environment = {
        "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/support'}{os.pathsep}{ROOT / 'tests'}", "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"), "PYTHONUTF8": "1",
    }  # fmt: skip
    done = subprocess.run(
        [python, "-S", "-B", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (python, seed, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout.strip()


def test_recorded_histories_are_the_same_on_every_python_whatever_the_hash_seed(pythons):
    states = sum(len(replay.read(path)["states"]) for path in FILES)
    told = {
        (version, seed): ran(python, seed, replay.__file__) for version, python in pythons.items() for seed in SEEDS
    }
    assert set(told.values()) == {f"{len(FILES)} histories, {states} states, 0 differ"}


GENERATED = """
import hashlib, sys
from generated_programs import ALL_CONTEXT, Host, Machine, Programs, chance, parse
from mcp_bridge.kernel.state import dump
for seed in range(150):
    rng = chance(seed)
    machine, host = Machine(parse(Programs(rng).program()), ALL_CONTEXT), Host(rng)
    hashed = hashlib.sha256(dump(machine))
    while not machine.ended:
        machine.apply(host.event(machine))
        hashed.update(dump(machine))
    print(seed, hashed.hexdigest())
"""


def test_generated_runs_are_the_same_on_every_python_whatever_the_hash_seed(pythons):
    told = {ran(python, seed, "-c", GENERATED) for python in pythons.values() for seed in SEEDS}
    assert len(told) == 1
    assert len(told.pop().splitlines()) == 150


# --- on both sides ----------------------------------------------------------------------------------------------------

BOTH_SIDES = (
    "tools-in-a-line", "condition-branches", "condition-otherwise", "condition-without-target", "loop-until",
    "programs-by-name", "programs-eight-deep", "map-of-nothing", "loop-of-conditions", "budget-of-steps", "stalled",
    "numbers", "texts", "deep-values",
)  # fmt: skip
"""Histories whose events are nothing but values of tools, one after the other: what real tools can give."""

TOOL = """
@mcp_bridge.tool
def {name}(**arguments: Any) -> Any:
    return ANSWERS[{name!r}].pop(0)
"""

SCRIPT = """
import json
from mcp import programs
for program, uses, context in json.loads({given!r}):
    for name, data in uses:
        await programs.save(name, data)
    print((await programs.run(program, context)).status)
"""


@pytest.mark.xdist_group("containers")
async def test_both_sides_of_a_real_container_are_where_the_recorded_histories_are(sandboxes, tmp_path, monkeypatch):
    histories = [replay.read(replay.FOLDER / f"{name}.json") for name in BOTH_SIDES]
    answers = {}
    for history in histories:
        for number, event in enumerate(history["events"]):
            before = json.loads(history["states"][number]["bytes"])
            effect = next(found for found in nested(before, "effect") if found and found["id"] == event["effect"])
            answers.setdefault(effect["name"], []).append(event.get("value"))
    (tmp_path / "tools").mkdir()
    module = f"import json\nfrom typing import Any\nimport mcp_bridge\nANSWERS = json.loads({json.dumps(answers)!r})\n"
    module += "".join(TOOL.format(name=name) for name in answers)
    (tmp_path / "tools" / "golden_answers.py").write_text(module)
    tables = {"tools": {"path": ["tools"], "entry_points": False}}
    governance = load_governance(tables, None, tmp_path, sandboxes.settings.state_dir)

    ends = []
    finish = ProgramRun.finish

    async def finish_and_tell(run, digest):
        ends.append((digest, dump(run.machine).decode()))
        await finish(run, digest)

    monkeypatch.setattr(ProgramRun, "finish", finish_and_tell)
    given = json.dumps([[history["program"], history.get("uses", []), history["context"]] for history in histories])
    async with sandboxes.open(governance=governance) as bridge:
        ran = await bridge.run(SCRIPT.format(given=given))
    last = [history["states"][-1] for history in histories]
    # By the rules of today, which the machine's version says, these histories end in the same way.
    bytes_now = [state["bytes"].replace('"version":1}', f'"version":{VERSION}}}') for state in last]
    assert lines(ran) == [json.loads(state["bytes"])["level"]["status"] for state in last]
    assert [text for _, text in ends] == bytes_now, "the host's"
    digests = [hashlib.sha256(state.encode()).hexdigest() for state in bytes_now]
    assert [digest for digest, _ in ends] == digests, "the container's"
