"""Runs programs on llm-nano-vm, in an environment of its own: a JSON object a line in, a JSON object a line out."""

import asyncio
import json
import sys

import nano_vm.vm
from nano_vm import ExecutionVM, Program
from nano_vm.vm import WebhookEvent


class Scripted:
    """Tools and a model that answer from lists, over and over: `{"value": …}`, `{"error": …}`, or `{"hang": true}`."""

    def __init__(self, script):
        self._script = script
        self._calls = {}
        self.asked = []

    def _next(self, name):
        answers = self._script[name]
        number = self._calls[name] = self._calls.get(name, -1) + 1
        answer = answers[number % len(answers)]
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def tool(self, name):
        def call(**arguments):
            self.asked.append([name, arguments])
            return self._next(name)["value"]

        return call

    async def complete(self, messages, **_):
        self.asked.append(["llm", messages[-1]["content"]])
        answer = self._next("llm")
        if "hang" in answer:
            await asyncio.Event().wait()
        return answer["value"], {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


async def run(job):
    if "dump" in job:
        return {"dumps": [Program.model_validate(job["dump"]).model_dump(mode=mode) for mode in ("python", "json")]}
    scripted = Scripted(job["script"])
    tools = {name: scripted.tool(name) for name in job["script"] if name != "llm"}
    vm = ExecutionVM(llm=scripted, tools=tools)
    program = Program.model_validate(job["program"])
    trace = await vm.run(program, job["context"])
    for payload in job.get("resumes", []):
        if trace.status.value != "suspended":
            break
        trace = await vm.resume_with_program(WebhookEvent(trace.trace_id, payload), program)
    more = [vm.resume_with_program(WebhookEvent(trace.trace_id, {}), program) for _ in range(job.get("again", 0))]
    again = await asyncio.gather(*more, return_exceptions=True)
    return {
        "again": [type(end).__name__ if isinstance(end, Exception) else end.status.value for end in again],
        "status": trace.status.value,
        "output": trace.final_output,
        "steps": [[row.step_id, row.status.value, row.output, row.retries] for row in trace.steps],
        "asked": scripted.asked,
        "error": trace.error,
    }


async def no_wait(_seconds):
    return None


def main():
    nano_vm.vm.asyncio.sleep = no_wait
    for line in sys.stdin:
        try:
            job = json.loads(line)
            answer = asyncio.run(asyncio.wait_for(run(job), job.get("patience")))
            text = json.dumps(answer)
        except RecursionError:
            text = json.dumps({"crash": "RecursionError"})
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is the answer
            text = json.dumps({"crash": f"{type(exc).__name__}: {exc}"})
        print(text, flush=True)


if __name__ == "__main__":
    main()
