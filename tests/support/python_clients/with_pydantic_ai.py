"""pydantic-ai: an agent with the bridge as a toolset."""

import asyncio

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models import infer_model
from pydantic_ai.providers.openai import OpenAIProvider
from session import PATIENCE_SECONDS, cancel, pause, plan, progress, say


async def main():
    told = plan()
    provider = OpenAIProvider(base_url=told["model"], api_key="sk-test")
    model = infer_model("openai:gpt-5", provider_factory=lambda _: provider)
    transport = told["url"] or StdioTransport(told["command"], told["args"], env=told["env"])
    toolset = MCPToolset(transport, include_instructions=True, progress_handler=progress, init_timeout=PATIENCE_SECONDS)
    async with Agent(model, toolsets=[toolset]) as agent:
        await agent.run("checks")
        try:
            await agent.run("failures")
        except UnexpectedModelBehavior as exc:
            say("raised", text=str(exc))
        toolset.tool_error_behavior = "failed"
        say("ended", text=(await agent.run("failures")).output)
        await cancel(agent.run("cancel"))
        await pause("after", text=(await agent.run("after")).output)


asyncio.run(main())
