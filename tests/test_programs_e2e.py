"""Programs from inside a real container."""

import json

from execution_fixtures import printed
from servers.specs import faulty

PROGRAM = {
    "name": "greet",
    "steps": [
        {"id": "one", "type": "tool", "tool": "faulty.echo", "args": {"text": "$who"}, "output_key": "said"},
        {"id": "which", "type": "condition", "condition": "$said == 'you'", "then": "both", "otherwise": "one"},
        {
            "id": "both",
            "type": "parallel",
            "parallel_steps": [
                {"id": "left", "type": "tool", "tool": "faulty.echo", "args": {"text": "l $said"}},
                {"id": "right", "type": "tool", "tool": "faulty.echo", "args": {"text": "r $one.output"}},
            ],
            "next_step": "last",
        },
        {"id": "last", "type": "tool", "tool": "faulty.echo", "args": {"text": "$left and $right"}},
    ],
}


async def test_a_program_runs_from_inside(sandboxes):
    record = await sandboxes.run(
        f"""
from mcp import programs, sync
import json
program = json.loads({json.dumps(json.dumps(PROGRAM))})
trace = await programs.run(program, context={{"who": "you"}})
print(trace.status, trace.output, [step.id for step in trace.steps])
trace = sync.programs.run(program, {{"who": "you"}}, idempotency_key="k")
again = sync.programs.run(program, {{"who": "you"}}, idempotency_key="k")
print(trace.trace_id == again.trace_id, again.status)
print(await programs.validate({{"steps": []}}))
print(await programs.save("greet", program) is not None, await programs.list())
print((await programs.run("greet", {{"who": "you"}})).ok)
""",
        faulty(),
    )
    print(record)
    assert printed(record).splitlines()[:2] == [
        "success l you and r you ['one', 'which', 'left', 'right', 'both', 'last']",
        "True success",
    ], printed(record)
    print(printed(record))
