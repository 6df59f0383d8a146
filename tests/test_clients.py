"""Clients that we did not write."""

import contextlib
import json
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from bridge_fixtures import COMMAND, DEADLINE_SECONDS
from server_fixtures import cached

pytestmark = pytest.mark.timeout(180)


def javascript(script, *arguments, setup, env=None):
    node = shutil.which("node") or pytest.fail("node is not on the PATH", pytrace=False)
    return subprocess.run(
        [node, str(cached(f"clients/node_modules/{script}")), *arguments],
        capture_output=True,
        text=True,
        env=setup.env | (env or {}),
        cwd=setup.home,
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


def inspector(*arguments, setup):
    """The MCP Inspector's command line."""
    target = ["--cli", "-e", f"MCP_BRIDGE_CONFIG={setup.config}", COMMAND]
    ended = javascript(
        "@modelcontextprotocol/inspector/clients/launcher/build/index.js", *target, *arguments, setup=setup
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def claude(*arguments, setup, env=None):
    """Claude Code. Its wrapper finds the native binary also where npm ran no install script."""
    ended = javascript("@anthropic-ai/claude-code/cli-wrapper.cjs", *arguments, setup=setup, env=env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_inspector_lists_and_calls_run_python(configure, time_server):
    setup = configure(time_server)
    listed = inspector("--method", "tools/list", setup=setup)
    assert [tool["name"] for tool in listed["tools"]] == ["run_python"]
    code = "from mcp.servers import time\nprint((await time.get_current_time('Asia/Tokyo'))['timezone'])"
    arguments = ("--method", "tools/call", "--tool-name", "run_python", "--tool-arg")
    result = inspector(*arguments, f"code={code}", setup=setup)
    assert result["content"] == [{"type": "text", "text": "Asia/Tokyo"}]
    assert result["structuredContent"]["status"] == "success"


def test_claude_code_says_that_it_is_connected(setup):
    claude("mcp", "add", "bridge", "-e", f"MCP_BRIDGE_CONFIG={setup.config}", "--", COMMAND, setup=setup)
    assert (setup.home / ".claude.json").is_file(), "the test's own home directory was used"
    listed = claude("mcp", "list", setup=setup)
    (line,) = [line for line in listed.splitlines() if line.startswith("bridge:")]
    assert line.endswith("Connected")


# --- what reaches Claude Code's model ---


class ScriptedModel:
    """Anthropic's API on loopback: asks for one call of a tool, and is done when it has the result.

    Attributes:
        requests: What it was asked with tools, in order.
    """

    def __init__(self, tool, code):
        self.requests = []
        self.tool = tool
        self.code = code

    def answer(self, request):
        """The content block of the answer."""
        last = request["messages"][-1]["content"]
        has_result = isinstance(last, list) and any(block["type"] == "tool_result" for block in last)
        if not request.get("tools") or has_result:
            return {"type": "text", "text": "done"}
        return {"type": "tool_use", "id": "toolu_1", "name": self.tool, "input": {"code": self.code}}

    def events(self, block):
        """The answer as it is streamed."""
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-test", "content": []}
        yield {"type": "message_start", "message": message | {"stop_reason": None, "usage": usage}}
        text = block["type"] == "text"
        begun = block | ({"text": ""} if text else {"input": {}})
        yield {"type": "content_block_start", "index": 0, "content_block": begun}
        whole = {"type": "text_delta", "text": block["text"]} if text else None
        delta = whole or {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "content_block_stop", "index": 0}
        ending = {"stop_reason": "end_turn" if text else "tool_use", "stop_sequence": None}
        yield {"type": "message_delta", "delta": ending, "usage": usage}
        yield {"type": "message_stop"}

    @contextlib.contextmanager
    def served(self):
        """Its address."""
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if not self.path.startswith("/v1/messages") or "count_tokens" in self.path:
                    return self.say(200, "application/json", b'{"input_tokens": 1}')
                if request.get("tools"):
                    model.requests.append(request)
                block = model.answer(request)
                if not request.get("stream"):
                    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-test"}
                    rest = {
                        "content": [block],
                        "stop_reason": "end_turn",
                        "usage": {"input_tokens": 1, "output_tokens": 1},
                    }
                    return self.say(200, "application/json", json.dumps(message | rest).encode())
                lines = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in model.events(block))
                return self.say(200, "text/event-stream", "".join(lines).encode())

            def do_GET(self):
                self.say(404, "application/json", b"{}")

            do_HEAD = do_GET  # noqa: N815  (http.server's name)

            def say(self, status, kind, body):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def test_claude_codes_model_sees_the_tool_its_instructions_and_no_more_than_the_limit(configure, everything_server):
    setup = configure(everything_server, max_output_chars=5000)
    code = "from mcp.servers import everything\nprint('begin' + 'x' * 3_000_000 + 'end')\nawait everything.get_tiny_image()"
    model = ScriptedModel("mcp__bridge__run_python", code)
    entry = {"type": "stdio", "command": COMMAND, "args": ["--config", str(setup.config)]}
    servers = setup.home / "servers.json"
    servers.write_text(json.dumps({"mcpServers": {"bridge": entry}}))
    with model.served() as address:
        env = {"ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": "sk-test", "DISABLE_AUTOUPDATER": "1"}
        env |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "ENABLE_TOOL_SEARCH": "true"}
        options = ["--mcp-config", str(servers), "--strict-mcp-config", "--allowedTools", model.tool]
        said = claude("-p", "go", *options, setup=setup, env=env)
    assert said.strip() == "done"
    first, *_, last = model.requests
    (tool,) = [tool for tool in first["tools"] if tool["name"] == model.tool]
    assert tool["description"].startswith("Run Python")
    assert "code" in tool["input_schema"]["properties"], "it isn't deferred"
    assert "These MCP servers are behind it: everything." in json.dumps(first)
    (result,) = [block for block in last["messages"][-1]["content"] if block["type"] == "tool_result"]
    texts = [block["text"] for block in result["content"] if block["type"] == "text"]
    assert texts[0].startswith("beginxxx")
    assert "runtime.output(" in texts[0]
    # What follows is Claude Code's own: where it keeps the image.
    assert len(texts[0]) <= 5000
    assert sum(map(len, texts)) <= 6000
    (image,) = [block for block in result["content"] if block["type"] == "image"]
    assert image["source"]["media_type"] == "image/png"
