"""The description of the program format for a model: complete, and as short as possible.

A test compares it with the kernel: it contains every step type and field, and its examples are valid programs.
"""

PROGRAM_FORMAT = """\
# Programs

A program is one JSON object; only "steps" is required:
{"name": "…", "description": "…", "version": "1.0", "steps": […], "max_steps": 100, "max_stalled_steps": 5,
 "max_tokens": 20000}
- max_steps: how many steps may be executed, repetitions counted. max_tokens: what its llm steps may use together.
- max_stalled_steps: the program ends as "stalled" after so many steps in a row whose output was what it was before.

Steps run in the order of the list. Each has an "id" (unique; letters, digits and _) and a "type". There are no other
fields than the ones described here. The output of the program is the output of the step that succeeded last.

## Types of step

tool: calls a tool.
  "tool": its name (required); "args": object of its arguments; "compensate": {"tool": "…", "args": {…}}.
  Output: what the tool returns. Many tools return JSON as text, which has no parts to refer to: with "parse": "json"
  the output is the value, and a text that is no JSON fails the step. If the program fails later, the compensations of
  the steps that had succeeded are called, the latest first; their args may refer to the step's own output.
llm: asks a language model.
  "prompt" (required), "system": text; "allowed_outputs": list of texts; "on_timeout": "fail" (default) or "fallback".
  Output: text. With allowed_outputs it must be exactly one of them, or the step fails: so say in the prompt which
  words are allowed. After a time-out "fallback" gives the first of them. With "parse": "json" as for tools.
condition: branches.
  "condition" (required); "then", "otherwise": ids of steps, at least one, and both unless the other case is a failure.
  THE STEP BRANCHED TO IS THE LAST ONE, unless it has "next_step" or is a condition too.
  Give it "next_step" to go on from there.
parallel: runs tool and llm steps at once.
  "parallel_steps": list of steps with ids, without next_step and is_terminal (required); "max_concurrency": number.
  Output: object of their outputs by id; each can also be referred to by its own id.
map: runs one step for every item of a list, all at once.
  "over": a list or a reference to one (required); "step": a tool, llm or program step without id, next_step and
  is_terminal (required); "as": name of the item in it, default "item"; "max_concurrency": number.
  Inside, $item is the item and $index its number from 0. Output: list of outputs in the order of the items.
approval: asks a person; the program is suspended until the decision.
  "message": text (required); "details": any JSON to show; "otherwise": id of the step to branch to if denied; without
  it a denial fails the program. Output: {"approved": true, …}. Has none of on_error, max_retries, retry.
wait: pauses, for a time or until something happens elsewhere.
  "seconds": number or reference; or "event": name. Output of an event: its payload. Has none of max_retries, retry.
program: runs a program as one step.
  "program": a program's name or a whole program object (required); "context": object with the values that it can refer
  to; it sees no others. Output: its output.

## Fields of every step

- "next_step": id of the step that follows, instead of the next one in the list; going back makes a loop.
- "is_terminal": true ends the program with success after this step.
- "output_key": a further name for the output.
- "on_error": "fail" (default) fails the program; "skip" goes on without an output (llm with allowed_outputs: with the
  first of them, if the answer was none of them); "retry" tries again, "max_retries" attempts in all (default 3),
  waiting 1, 2, 4… seconds, at most 30.
- "retry": instead, {"schedule": [1, 5, 30]}, the seconds before each further attempt, or {"max_attempts": 3,
  "delay_seconds": 1, "multiplier": 2, "max_delay_seconds": 30}.
- "timeout_seconds": number.

## References

Texts in prompt, system, args, message, details, over, seconds and context may refer to values:
- $name: a value that the program is given when it is run. Use one for whatever the task leaves open.
- $step_id or $step_id.output: the output of an earlier step; $step_id.field.other.0 goes into objects and lists.
- A text that is nothing but a reference becomes the value itself, of any type; within a longer text it becomes text.
- A reference that leads nowhere stays as it is written. $$ is a dollar sign.

## Conditions

Comparisons with == != > >= < <= in, not in, contains; joined by and, or, not and parentheses. Operands: references,
'text', numbers, True, False, None, ['a', 'b']. There are no functions and no arithmetic. A reference that leads nowhere
is None. "$kind == 'refund' and ($order.total <= 50 or $order.vip == True)"; "$kind in ['a', 'b']"; "$text contains 'x'"
A name with other characters than letters, digits and _ is quoted here, and in over and seconds: $mail['content-type'].

## Examples

```json
{
  "name": "refund",
  "steps": [
    {"id": "order", "type": "tool", "tool": "shop.get_order", "args": {"id": "$order_id"}, "on_error": "retry"},
    {"id": "judge", "type": "llm", "prompt": "Is this order damaged? $order.note\\nAnswer yes or no.",
     "allowed_outputs": ["no", "yes"]},
    {"id": "route", "type": "condition", "condition": "$judge == 'yes' and $order.total <= 50",
     "then": "refund", "otherwise": "ask"},
    {"id": "ask", "type": "approval", "message": "Refund $order.total for order $order_id?", "details": "$order",
     "otherwise": "decline", "next_step": "refund"},
    {"id": "refund", "type": "tool", "tool": "shop.refund", "args": {"id": "$order_id", "amount": "$order.total"},
     "compensate": {"tool": "shop.cancel_refund", "args": {"refund": "$refund.id"}}, "next_step": "tell"},
    {"id": "tell", "type": "tool", "tool": "mail.send", "args": {"to": "$order.email", "text": "Refunded."},
     "is_terminal": true},
    {"id": "decline", "type": "tool", "tool": "mail.send", "args": {"to": "$order.email", "text": "Declined."}}
  ]
}
```

```json
{
  "name": "digest",
  "steps": [
    {"id": "gather", "type": "parallel", "parallel_steps": [
      {"id": "issues", "type": "tool", "tool": "tracker.list", "args": {"label": "bug"}},
      {"id": "people", "type": "tool", "tool": "team.members"}]},
    {"id": "summaries", "type": "map", "over": "$issues.items", "as": "issue", "max_concurrency": 4,
     "step": {"type": "llm", "prompt": "One sentence about: $issue.title"}},
    {"id": "post", "type": "tool", "tool": "chat.post", "args": {"to": "$people", "lines": "$summaries"}}
  ]
}
```
"""
