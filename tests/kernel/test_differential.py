"""Generated programs here and on llm-nano-vm 0.8.9: equal, but for what the table of differences names."""

from collections import Counter

import pytest
from generated_programs import CONTEXT, PeerJobs
from program_differences import DIFFERENCES, compared, ours_of, steps_of

JOBS = 4000
BATCH = 500


@pytest.mark.parametrize("first", range(0, JOBS, BATCH))
def test_generated_programs_end_alike(nano_vm, first):
    equal = Counter()
    for seed in range(first, first + BATCH):
        job = PeerJobs(seed).job()
        theirs, ours = nano_vm.ask(job), ours_of(job)
        equal[ours["status"]] += compared(theirs) == compared(ours)
        for difference in DIFFERENCES.values():
            if difference.level and compared(theirs) != compared(ours):
                theirs, ours = difference.level(job, theirs, ours)
        assert compared(theirs) == compared(ours), f"seed {seed}: {job}"
    # Differences are the exception, and all ways to end are among what is equal.
    assert equal.total() > 0.85 * BATCH
    assert {"success", "failed", "suspended", "budget_exceeded"} <= equal.keys()


def test_the_generator_gives_the_same_job_for_the_same_seed():
    assert PeerJobs(7).job() == PeerJobs(7).job()
    assert PeerJobs(7).job() != PeerJobs(8).job()
    assert PeerJobs(7).job()["context"] == CONTEXT


FEATURES = {
    "a tool": lambda step, _: step["type"] == "tool",
    "a model": lambda step, _: step["type"] == "llm",
    "a model in parallel": lambda step, _: any(row["type"] == "llm" for row in step.get("parallel_steps", ())),
    "skip": lambda step, _: step.get("on_error") == "skip",
    "a condition that skips": lambda step, _: step["type"] == "condition" and step.get("on_error") == "skip",
    "retry": lambda step, _: step.get("on_error") == "retry" and step.get("max_retries", 3) > 1,
    "a model's retry": lambda step, _: step["type"] == "llm" and step.get("on_error") == "retry",
    "one attempt": lambda step, _: step.get("on_error") == "retry" and step.get("max_retries", 3) < 2,
    "an output key": lambda step, _: "output_key" in step,
    "answers": lambda step, _: "allowed_outputs" in step,
    "the first answer": lambda step, _: "allowed_outputs" in step and step.get("on_error") == "skip",
    "a fallback": lambda step, _: step.get("on_timeout") == "fallback",
    "an end in line": lambda step, _: step.get("is_terminal", False),
    "a bound on concurrency": lambda step, _: "max_concurrency" in step,
    "both targets": lambda step, _: {"then", "otherwise"} <= step.keys(),
    "one target": lambda step, _: ("then" in step) != ("otherwise" in step),
    "a loop": lambda step, job: step.get("next_step", "t") <= step["id"],
    "a rejoining target": lambda step, job: (
        "next_step" in step and any(step["id"] in (row.get("then"), row.get("otherwise")) for row in job["program"]["steps"])
    ),
    "a condition to a condition": lambda step, job: (
        step["type"] == "condition" and step.get("then") and steps_of(job)[step["then"]]["type"] == "condition"
    ),
    **{
        f"{word!r} in a condition": lambda step, _, word=word: word in step.get("condition", "")
        for word in (" and ", " or ", "not ", " in ", " not in ", " == ", " != ", " > ", " >= ", " < ", " <= ", ".output.n.m", "$missing", "None", "1.5", '"ok"')
    },
    "a value that is a reference": lambda step, _: str(step.get("args", {}).get("a")).startswith("$s"),
    "a text around a reference": lambda step, _: "v=$" in str(step.get("args")),
    "two references": lambda step, _: str(step.get("args", {}).get("a")).count("$") > 1,
    "a nested argument": lambda step, _: isinstance(step.get("args", {}).get("a"), dict),
    "a prompt with a reference": lambda step, _: "$" in step.get("prompt", ""),
    "the webhook": lambda step, _: "__webhook__" in str(step),
    **{
        name: lambda _, job, name=name: name in job["program"]
        for name in ("max_steps", "max_tokens", "max_stalled_steps")
    },
    "no budget": lambda _, job: job["program"].keys() == {"steps"},
    "an error": lambda step, job: {"error": "boom"} in job["script"].get(step["id"], ()),
    "an error of a model": lambda _, job: {"error": "down"} in job["script"]["llm"],
    "a model that hangs": lambda _, job: {"hang": True} in job["script"]["llm"],
    "a tool that suspends": lambda step, job: job["script"].get(step["id"]) == [{"value": "PENDING"}],
    "many resumes": lambda _, job: len(job["resumes"]) > 2,
    "odd texts": lambda step, job: any(text in str(job["script"].get(step["id"])) for text in ("é", "$user", "both")),
}  # fmt: skip


def test_the_generated_programs_have_every_feature():
    jobs = [PeerJobs(seed).job() for seed in range(1000)]
    found = Counter(
        name for job in jobs for step in steps_of(job).values() for name, has in FEATURES.items() if has(step, job)
    )
    assert {name: found[name] for name in FEATURES if found[name] < 5} == {}
