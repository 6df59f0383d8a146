"""openai-agents: an agent with the bridge as its MCP server."""

import asyncio

from agents import Agent, OpenAIProvider, RunConfig, Runner
from agents.mcp import MCPServerStdio
from session import PATIENCE_SECONDS, cancel, pause, plan, say


async def main():
    told = plan()
    provider = OpenAIProvider(base_url=told["model"], api_key="sk-test")
    config = RunConfig(model="gpt-5", model_provider=provider, tracing_disabled=True)
    params = {"command": told["command"], "args": told["args"], "env": told["env"]}
    say("patience", seconds=MCPServerStdio(params).client_session_timeout_seconds)
    async with MCPServerStdio(params, client_session_timeout_seconds=PATIENCE_SECONDS) as server:
        agent = Agent("agent", mcp_servers=[server])

        async def run(prompt):
            return (await Runner.run(agent, prompt, run_config=config)).final_output

        await run("checks")
        say("ended", text=await run("failures"))
        await cancel(run("cancel"))
        await pause("after", text=await run("after"))


asyncio.run(main())
