"""Calls `run_python` of a bridge over HTTP, for scripts/compose-test.sh.

    python scripts/compose_client.py URL TOKEN

Exit status: 0 if the script's output came back, 1 if the bridge refused the token.
"""

import sys

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def main(url: str, token: str) -> int:
    """Call the tool once."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        if (await http.post(url, json={})).status_code == httpx2.codes.UNAUTHORIZED:
            return 1
        async with Client(streamable_http_client(url, http_client=http)) as client:
            result = await client.call_tool("run_python", {"code": "import os; print(6 * 7, os.listdir('/tmp'))"})
    text = "".join(getattr(block, "text", "") for block in result.content)
    if "42 []" not in text:
        print(text)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(anyio.run(main, *sys.argv[1:]))
