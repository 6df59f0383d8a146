"""The model behind Claude Code in scripts/newcomer-test.sh: it runs the code that it is asked to run, and repeats the answer.

Prints its address, and ends with its standard input.
"""

import json
import re
import sys

from clients import scripted_model

TOOL = "mcp__bridge__run_python"


class Repeating(scripted_model.ScriptedModel):
    """Asks for one call with the code between the marks of the prompt, and says what the tool has answered."""

    def next_call(self, api, request):
        # A conversation has one prompt and one call; Claude Code's own words are around them.
        if shown := api.results(request):
            scripted_model.DONE = shown[-1].text
            return None, {}, 2
        tool = next((tool for tool in api.tools(request) if tool.name == TOOL), None)
        asked = re.search(r"<run>(.*?)</run>", json.dumps(request["messages"]))
        if tool is None or asked is None:
            scripted_model.DONE = "nothing to call" if asked else "nothing asked"
            return None, {}, 1
        return tool, {"code": json.loads(f'"{asked[1]}"')}, 1


if __name__ == "__main__":
    with Repeating([]).served() as address:
        print(address, flush=True)
        sys.stdin.read()
