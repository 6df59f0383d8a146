"""Registered tools that write down what they get."""

# ruff: noqa: FBT001, FBT002

import mcp_bridge

ARRIVALS = []


def note(tool, **arguments):
    ARRIVALS.append({"server": "local", "tool": tool, "arguments": arguments, "listed": 0})
    return "done"


@mcp_bridge.tool(thread=False)
def wipe(path: str, recursive: bool = True, force: bool = False, TKMODE: bool = False) -> str:  # noqa: N803
    return note("wipe", path=path, recursive=recursive, force=force, TKMODE=TKMODE)


@mcp_bridge.tool(thread=False)
def pay(iban: str, amount: int = 1000, note_: str = "none") -> str:
    return note("pay", iban=iban, amount=amount, note_=note_)


@mcp_bridge.tool(name="run-query", thread=False)
def run_query(query: str, tags: list[str] = ["all"], options: dict | None = None) -> str:  # noqa: B006
    return note("run-query", query=query, tags=tags, options=options)
