"""Try to capture a payment without the program that may, in every way there is. Prints how each was refused.

SHOP_DIR=/tmp mcp-bridge --config examples/hostile/mcp-bridge.toml run examples/hostile/steal.py
"""

import asyncio
import gc

from mcp import MCPError, programs, runtime, sync
from mcp.servers import local

# The bridge's own modules are in the sandbox: nothing keeps a script from them.
from mcp_bridge.guest.channel import Channel, RequestError
from mcp_bridge.wire.messages import ProgramEffect, ProgramFinish, ProgramStart, ToolCall

channel = next(each for each in gc.get_objects() if isinstance(each, Channel))
capture = {"id": "capture", "type": "tool", "tool": "capture_payment"}
read = {"id": "read", "type": "tool", "tool": "list_payments"}
stolen = await programs.get("payment_pipeline")
refused = {}


async def attempt(what, way):
    try:
        trace = await way
        error = (trace.code, trace.error) if isinstance(trace, programs.Trace) and not trace.ok else None
    except (MCPError, RequestError) as exc:
        error = getattr(exc, "code", None) or exc.data["code"], str(exc)
    refused[what] = error
    print(f"{what}: {': '.join(error) if error else 'IT WORKED'}")


def run(*steps, **more):
    return programs.run({"steps": list(steps), **more})


async def blocking():
    return sync.servers.local.capture_payment()


async def saved(name):
    await programs.save(name, stolen)
    return await programs.run(name)


async def asked(*numbers):
    """Start the program, and ask for effects as it suits."""
    started = await channel.request_async(ProgramStart("payment_pipeline", {}))
    for number in numbers:
        await channel.request_async(ProgramEffect(started["execution"], number))


async def at_once():
    started = await channel.request_async(ProgramStart("payment_pipeline", {}))
    await asyncio.gather(
        *(channel.request_async(ProgramEffect(started["execution"], number)) for number in (3, 1)),
    )


async def finished():
    started = await channel.request_async(ProgramStart("payment_pipeline", {}))
    await channel.request_async(ProgramFinish(started["execution"], "0" * 64))


await attempt("call it", local.capture_payment())
await attempt("call it raw", local.capture_payment.raw())
await attempt("call it blocking", blocking())
await attempt("call it by name", runtime.call_tool("local", "capture_payment"))
await attempt("call it in capitals", runtime.call_tool("LOCAL", "CAPTURE_PAYMENT"))
await attempt("write the frame", channel.request_async(ToolCall("local", "capture_payment", {})))
await attempt("a program of one step", run(capture))
await attempt("with the server's name", run(capture | {"tool": "local.capture_payment"}))
await attempt("with the right program's name", run(capture, name="payment_pipeline"))
await attempt("the right program's text", programs.run(stolen))
await attempt("saved under its name", saved("payment_pipeline"))
await attempt("saved under another", saved("my_pipeline"))
await attempt("in a sub-program", run({"id": "sub", "type": "program", "program": stolen}))
await attempt("in a parallel step", run({"id": "fan", "type": "parallel", "parallel_steps": [capture, read]}))
await attempt("for each of a list", run({"id": "each", "type": "map", "over": [1, 2], "step": capture}))
await attempt(
    "as what undoes a step",
    run(read | {"compensate": {"tool": "capture_payment"}}, {"id": "fail", "type": "tool", "tool": "no_such_tool"}),
)
await attempt("skip to it", asked(1, 3))
await attempt("skip to it, all at once", at_once())
await attempt("do a step twice", asked(1, 1))
await attempt("call it done", finished())
await attempt("another's execution", channel.request_async(ProgramEffect("0" * 32, 3)))

print(f"{len(refused)} attempts, {sum(map(bool, refused.values()))} refused")
print("the till did:", await local.list_payments())
