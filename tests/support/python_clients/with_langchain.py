"""langchain-mcp-adapters: the bridge's tool in an agent of LangChain's."""

import asyncio

from langchain.agents import create_agent
from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langchain_openai import ChatOpenAI
from session import cancel, pause, plan, progress, say


async def main():
    told = plan()
    model = ChatOpenAI(model="gpt-5", base_url=told["model"], api_key="sk-test")
    started = {"transport": "stdio", "command": told["command"], "args": told["args"], "env": told["env"]}
    bridge = {"transport": "streamable_http", "url": told["url"]} if told["url"] else started
    client = MultiServerMCPClient({"bridge": bridge})

    async def run(tools, prompt):
        return (await create_agent(model, tools).ainvoke({"messages": [("user", prompt)]}))["messages"]

    async with client.session("bridge") as session:
        tools = await load_mcp_tools(session, callbacks=Callbacks(on_progress=progress))
        for message in await run(tools, "checks"):
            if message.type == "tool":
                say("record", structured=(message.artifact or {}).get("structured_content"))
        say("ended", text=(await run(tools, "failures"))[-1].content)
        await cancel(run(tools, "cancel"))
        await pause("after", text=(await run(tools, "after"))[-1].content)
    # Without a session: each call starts a bridge, or a session, of its own.
    await cancel(run(await client.get_tools(), "cancel"))


asyncio.run(main())
