"""fastmcp's client. It has no model: what is reported is what the program that uses it is given."""

import asyncio

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from session import cancel, pause, plan, progress, say

TOOL = "run_python"


async def main():
    told = plan()
    transport = told["url"] or StdioTransport(told["command"], told["args"], env=told["env"])
    async with Client(transport, progress_handler=progress) as client:
        say("tools", tools=[tool.model_dump(mode="json", by_alias=True) for tool in await client.list_tools()])
        say("instructions", text=client.instructions)

        async def run(code, **options):
            return await client.call_tool(TOOL, {"code": code}, **options)

        for code in told["scripts"]["checks"]:
            result = await run(code, raise_on_error=False)
            content = [block.model_dump(mode="json", by_alias=True) for block in result.content]
            say("answer", content=content)
            say("record", structured=result.structured_content, meta=result.meta)
        for code in told["scripts"]["failures"]:
            try:
                await run(code)
            except ToolError as exc:
                say("raised", text=str(exc))
        await cancel(run(*told["scripts"]["cancel"]))
        await pause("after", text=(await run(*told["scripts"]["after"])).content[0].text)


asyncio.run(main())
