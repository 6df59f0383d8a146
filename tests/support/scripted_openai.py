"""A scripted model behind OpenAI's two APIs (chat completions, responses) on loopback, and what a client sends to it.

The user's message says which list of scripts the model asks for, one after the other; then it says that it is done.
"""

import contextlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOOL = "run_python"
DONE = "done"


@dataclass
class Shown:
    """What a model is shown of one answer of a tool: its texts, and its images as data URLs."""

    texts: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, content):
        """Of content in either API's form, or MCP's."""
        shown = cls()
        shown.add(content)
        return shown

    def add(self, content):
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            match part["type"]:
                case "text" | "input_text":
                    self.texts.append(part["text"])
                case "image_url":
                    self.images.append(part["image_url"]["url"])
                case "input_image":
                    self.images.append(part["image_url"])
                case "image":
                    self.images.append(f"data:{part['mimeType']};base64,{part['data']}")
                case kind:
                    raise ValueError(kind)


def items(request):
    """The conversation in a request."""
    return request["messages"] if "messages" in request else request["input"]


def answers(request):
    """What the model is shown of each answer of a tool, with what follows it as a message of the user."""
    found = []
    for item in items(request):
        if item.get("type") == "function_call_output":
            found.append(Shown.of(item["output"]))
        elif item.get("role") == "tool":
            found.append(Shown.of(item["content"]))
        elif item.get("role") == "user" and found:
            found[-1].add(item["content"])
    return found


def tools(request):
    """The tools of a request; one API has each in an object of its own."""
    return [tool.get("function", tool) for tool in request["tools"]]


class ScriptedModel:
    """The model.

    Args:
        scripts: Of each user's message, the scripts to ask for.

    Attributes:
        requests: What it was asked, in order, by the user's message.
    """

    def __init__(self, scripts):
        self.scripts = scripts
        self.requests = {message: [] for message in scripts}

    def answer(self, path, request):
        """The answer to a request, as the API at this path gives it."""
        message = next(Shown.of(item["content"]).texts[0] for item in items(request) if item.get("role") == "user")
        self.requests[message].append(request)
        number = len(answers(request))
        scripts = self.scripts[message][number:]
        call = {"name": TOOL, "arguments": json.dumps({"code": scripts[0]})} if scripts else None
        return (_completion if path.endswith("/chat/completions") else _response)(number, call)

    @contextlib.contextmanager
    def served(self):
        """Its address."""
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                body = json.dumps(model.answer(self.path, request)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _completion(number, call):
    message = {"role": "assistant", "content": None if call else DONE}
    if call:
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": call}]
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _response(number, call):
    if call:
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}"} | call
    else:
        content = [{"type": "output_text", "text": DONE, "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "content": content}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 0,
        "model": "scripted",
        "status": "completed",
        "output": [item | {"status": "completed"}],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2} | details,
    }
