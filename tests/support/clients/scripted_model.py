"""A model on loopback that calls `run_python` with one script after another, and keeps what it was shown.

It speaks the four APIs that clients speak: Anthropic's Messages, OpenAI's Responses and Chat Completions, Gemini's
`generateContent`. As a client's proxy it refuses whatever is wanted of other hosts.
"""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

JSON = dict[str, Any]

DONE = "That was all."
"""What the model says when it has nothing more to call."""


@dataclass
class Shown:
    """What a model, or a program, was shown of one call's answer.

    Attributes:
        texts: The texts, in their order.
        images: The images' media types.
        failed: Whether it is marked as a failure, and not by its text alone.
    """

    texts: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    failed: bool = False

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


@dataclass
class Tool:
    """A tool as a model is told of it; `where` is its namespace, where the API has such."""

    name: str
    description: str
    schema: JSON
    where: str | None = None


def media_type(url: str) -> str:
    """Of a data URL."""
    return url.partition(";")[0].removeprefix("data:")


class Messages:
    """Anthropic's."""

    path = "/v1/messages"

    def tools(self, request: JSON) -> list[Tool]:
        told = request.get("tools") or []
        return [Tool(one["name"], one.get("description", ""), one.get("input_schema", {})) for one in told]

    def results(self, request: JSON) -> list[Shown]:
        blocks = [block for message in request["messages"] for block in listed(message["content"])]
        return [self._shown(block) for block in blocks if block["type"] == "tool_result"]

    def _shown(self, result: JSON) -> Shown:
        blocks = listed(result["content"])
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        images = [block["source"]["media_type"] for block in blocks if block["type"] == "image"]
        return Shown(texts, images, failed=result.get("is_error", False))

    def answer(self, tool: Tool | None, call: JSON, number: int) -> Iterator[JSON]:
        block: JSON = {"type": "text", "text": DONE}
        if tool is not None:
            block = {"type": "tool_use", "id": f"toolu_{number}", "name": tool.name, "input": call}
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "scripted", "content": []}
        yield {"type": "message_start", "message": message | {"stop_reason": None, "usage": usage}}
        empty: JSON = {"text": ""} if tool is None else {"input": {}}
        yield {"type": "content_block_start", "index": 0, "content_block": block | empty}
        delta = {"type": "text_delta", "text": DONE}
        if tool is not None:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(call)}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "content_block_stop", "index": 0}
        ending = {"stop_reason": "tool_use" if tool else "end_turn", "stop_sequence": None}
        yield {"type": "message_delta", "delta": ending, "usage": usage}
        yield {"type": "message_stop"}

    def whole(self, tool: Tool | None, call: JSON, number: int) -> JSON:
        """The answer to whoever doesn't want it streamed."""
        begun, start, *_ = self.answer(tool, call, number)
        block = start["content_block"] | ({"input": call} if tool else {"text": DONE})
        return begun["message"] | {"content": [block], "stop_reason": "tool_use" if tool else "end_turn"}


class Responses:
    """OpenAI's newer one. Tools may be in namespaces."""

    path = "/v1/responses"

    def tools(self, request: JSON) -> list[Tool]:
        told = []
        for one in request.get("tools") or []:
            where = one["name"] if one["type"] == "namespace" else None
            told += [
                Tool(tool["name"], tool.get("description", ""), tool.get("parameters", {}), where)
                for tool in (one["tools"] if where else [one])
                if tool["type"] == "function"
            ]
        return told

    def results(self, request: JSON) -> list[Shown]:
        items = [item for item in request["input"] if item["type"] == "function_call_output"]
        return [self._shown(listed(item["output"])) for item in items]

    def _shown(self, parts: list[JSON]) -> Shown:
        texts = [part["text"] for part in parts if "text" in part]
        return Shown(texts, [media_type(part["image_url"]) for part in parts if part["type"] == "input_image"])

    def answer(self, tool: Tool | None, call: JSON, number: int) -> Iterator[JSON]:
        message = {"type": "message", "role": "assistant", "id": f"msg_{number}", "status": "completed"}
        item: JSON = message | {"content": [{"type": "output_text", "text": DONE, "annotations": []}]}
        if tool is not None:
            item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": tool.name}
            item |= {"arguments": json.dumps(call), "status": "completed"}
            item |= {"namespace": tool.where} if tool.where else {}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        response: JSON = {"id": f"resp_{number}", "object": "response", "model": "scripted"}
        yield {"type": "response.created", "response": response | {"status": "in_progress", "output": []}}
        yield {"type": "response.output_item.added", "output_index": 0, "item": item}
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        ended = response | {"status": "completed", "output": [item], "usage": usage}
        yield {"type": "response.completed", "response": ended}

    def whole(self, tool: Tool | None, call: JSON, number: int) -> JSON:
        *_, last = self.answer(tool, call, number)
        return last["response"]


class ChatCompletions:
    """OpenAI's older one, which most others speak too."""

    path = "/v1/chat/completions"

    def tools(self, request: JSON) -> list[Tool]:
        told = [one["function"] for one in request.get("tools") or []]
        return [Tool(one["name"], one.get("description", ""), one.get("parameters", {})) for one in told]

    def results(self, request: JSON) -> list[Shown]:
        """Images can't be in a tool's message: those of the next message are the answer's."""
        results: list[Shown] = []
        for message in request["messages"]:
            parts = listed(message.get("content") or [])
            if message["role"] == "tool":
                results.append(Shown([part["text"] for part in parts if part["type"] == "text"]))
            elif message["role"] == "user" and results:
                urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
                results[-1].images += map(media_type, urls)
        return results

    def _message(self, tool: Tool | None, call: JSON, number: int) -> JSON:
        if tool is None:
            return {"role": "assistant", "content": DONE}
        function = {"name": tool.name, "arguments": json.dumps(call)}
        called = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [called]}

    def answer(self, tool: Tool | None, call: JSON, number: int) -> Iterator[JSON]:
        chunk: JSON = {"id": f"chat_{number}", "object": "chat.completion.chunk", "created": 0, "model": "scripted"}
        message = self._message(tool, call, number)
        yield chunk | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]}
        reason = "tool_calls" if tool else "stop"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        yield chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}

    def whole(self, tool: Tool | None, call: JSON, number: int) -> JSON:
        *_, last = self.answer(tool, call, number)
        choice = last["choices"][0] | {"message": self._message(tool, call, number)}
        return last | {"object": "chat.completion", "choices": [choice]}


class GenerateContent:
    """Gemini's."""

    path = "/v1beta/models/"

    def tools(self, request: JSON) -> list[Tool]:
        told = [one for tool in request.get("tools") or [] for one in tool.get("functionDeclarations", [])]
        return [
            Tool(one["name"], one.get("description", ""), one.get("parametersJsonSchema", one.get("parameters", {})))
            for one in told
        ]

    def results(self, request: JSON) -> list[Shown]:
        """Images are parts of the response or stand after it."""
        results: list[Shown] = []
        for part in (part for content in request["contents"] for part in content.get("parts", [])):
            if response := part.get("functionResponse"):
                told = response["response"]
                text = told["output"] if list(told) == ["output"] else json.dumps(told)
                inside = [one["inlineData"]["mimeType"] for one in response.get("parts", [])]
                results.append(Shown([text], inside, failed="error" in told))
            elif results and "inlineData" in part:
                results[-1].images.append(part["inlineData"]["mimeType"])
            elif results and "text" in part:
                results[-1].texts.append(part["text"])
        return results

    def answer(self, tool: Tool | None, call: JSON, number: int) -> Iterator[JSON]:
        yield self.whole(tool, call, number)

    def whole(self, tool: Tool | None, call: JSON, _number: int) -> JSON:
        part: JSON = {"text": DONE} if tool is None else {"functionCall": {"name": tool.name, "args": call}}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}


Api = Messages | Responses | ChatCompletions | GenerateContent

APIS: tuple[Api, ...] = (Messages(), Responses(), ChatCompletions(), GenerateContent())


def listed(content: str | list[JSON]) -> list[JSON]:
    """Content as blocks, which all APIs let clients shorten to a string where it is one text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


@dataclass
class ScriptedModel:
    """Calls `run_python` with each script once, in order.

    Attributes:
        scripts: The scripts.
        requests: What it was asked with tools, in order.
        api: The API that it was asked by.
    """

    scripts: Sequence[str]
    requests: list[JSON] = field(default_factory=list)
    api: Api | None = None

    def tool(self) -> Tool:
        """`run_python`, as the first request told of it."""
        assert self.api is not None
        (tool,) = [tool for tool in self.api.tools(self.requests[0]) if tool.name.endswith("run_python")]
        return tool

    def results(self) -> list[Shown]:
        """What it was shown of each call's answer, by the last request, which holds the whole conversation."""
        assert self.api is not None
        return self.api.results(self.requests[-1])

    def next_call(self, api: Api, request: JSON) -> tuple[Tool | None, JSON, int]:
        """The tool to call, or None; its arguments; and how many calls there were before."""
        found = [tool for tool in api.tools(request) if tool.name.endswith("run_python")]
        number = len(api.results(request)) if found else 0
        if not found:
            return None, {}, number
        self.api = api
        self.requests.append(request)
        if number >= len(self.scripts):
            return None, {}, number
        return found[0], {"code": self.scripts[number]}, number

    @contextlib.contextmanager
    def served(self) -> Iterator[str]:
        """Its address."""
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                api = next((api for api in APIS if self.path.startswith(api.path)), None)
                if api is None or "count" in self.path.lower():
                    return self.say(404, "application/json", "{}")
                request = json.loads(body)
                call = model.next_call(api, request)
                if not (request.get("stream") or ":streamGenerateContent" in self.path):
                    return self.say(200, "application/json", json.dumps(api.whole(*call)))
                named = api.path in (Messages.path, Responses.path)
                events = [
                    (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n"
                    for event in api.answer(*call)
                ]
                ending = "data: [DONE]\n\n" if api.path == ChatCompletions.path else ""
                return self.say(200, "text/event-stream", "".join(events) + ending)

            def do_GET(self) -> None:
                self.say(404, "application/json", "{}")

            do_HEAD = do_CONNECT = do_GET  # noqa: N815  (http.server's names)

            def say(self, status: int, kind: str, body: str) -> None:
                data = body.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def log_message(self, *_: object) -> None:
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
