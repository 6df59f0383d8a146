"""The model behind Claude Code in scripts/newcomer-test.sh: it runs the code that it is asked to run, and repeats the answer.

Prints its address, and ends with its standard input.
"""

import re
import sys

from test_clients import ScriptedModel


class Repeating(ScriptedModel):
    """Asks for one call with the code between the marks of the prompt, and says what the tool has answered."""

    def answer(self, request):
        # A conversation has one prompt and one call; Claude Code's own words are around them.
        blocks = [block for message in request["messages"] for block in parts(message["content"])]
        for block in blocks:
            if block["type"] == "tool_result":
                return {"type": "text", "text": "\n".join(part.get("text", "") for part in parts(block["content"]))}
        for block in blocks if request.get("tools") else ():
            if asked := re.search(r"<run>(.*?)</run>", block.get("text", ""), re.DOTALL):
                return {"type": "tool_use", "id": "toolu_1", "name": self.tool, "input": {"code": asked[1]}}
        return {"type": "text", "text": "done"}


def parts(content):
    """A message's content as blocks, which a text alone may stand for."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


if __name__ == "__main__":
    with Repeating("mcp__bridge__run_python", "").served() as address:
        print(address, flush=True)
        sys.stdin.read()
