"""openai-agents: an agent with the bridge as its MCP server."""

import asyncio

from agents import Agent, OpenAIProvider, RunConfig, Runner
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from session import PATIENCE_SECONDS, cancel, pause, plan, say


async def main():
    told = plan()
    provider = OpenAIProvider(base_url=told["model"], api_key="sk-test")
    config = RunConfig(model="gpt-5", model_provider=provider, tracing_disabled=True)
    started = {"command": told["command"], "args": told["args"], "env": told["env"]}
    server_type, params = (MCPServerStreamableHttp, {"url": told["url"]}) if told["url"] else (MCPServerStdio, started)
    say("patience", seconds=server_type(params).client_session_timeout_seconds)
    async with server_type(params, client_session_timeout_seconds=PATIENCE_SECONDS) as server:
        agent = Agent("agent", mcp_servers=[server])

        async def run(prompt):
            return (await Runner.run(agent, prompt, run_config=config)).final_output

        await run("checks")
        say("ended", text=await run("failures"))
        await cancel(run("cancel"))
        await pause("after", text=await run("after"))


asyncio.run(main())
