"""The LiteLLM adapter against the real library: its own mock, and a server on loopback that speaks OpenAI's format."""

import asyncio
import contextlib
import importlib
import json
import subprocess
import sys
import traceback

import anyio
import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.models import litellm_adapter
from mcp_bridge.models.config import ModelConfig
from mcp_bridge.models.factory import make_model
from mcp_bridge.models.litellm_adapter import LiteLLMModel
from mcp_bridge.models.model import Message, ModelError, Usage, estimate, estimate_text

# The library ignores these itself when it's imported; pytest's filters come after that.
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning:pydantic")]

KEY = "plain-looking-key-1234"
REFERENCE = "vault://secret/provider"
MESSAGES = [Message("system", "Be brief."), Message("user", "hello")]
ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "answering-1",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi there"}}],
    "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
}


class Provider:
    """One server: what it answers next, and what it was asked."""

    def __init__(self):
        self.status, self.body = 200, json.dumps(ANSWER)
        self.silent = self.dripping = False
        self.requests = []
        self.asked, self.left = anyio.Event(), anyio.Event()

    def says(self, status=200, body=None, **changes):
        self.status = status
        self.body = json.dumps(ANSWER | changes) if body is None else body

    async def serve(self, reader, writer):
        try:
            await self.answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self.left.set()

    async def answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (header.partition(": ") for header in lines)}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append((line, headers, body))
        self.asked.set()
        if self.silent:
            await reader.read()
            return
        data = self.body.encode()
        length = 1_000_000 if self.dripping else len(data)
        writer.write(
            f"HTTP/1.1 {self.status} x\r\ncontent-type: application/json\r\nx-secret-header: {KEY}\r\n"
            f"connection: close\r\ncontent-length: {length}\r\n\r\n".encode()
        )
        while self.dripping:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)
        writer.write(data)
        await writer.drain()


@pytest.fixture
async def provider():
    provider = Provider()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    yield provider
    server.close()
    await server.wait_closed()


@pytest.fixture
def litellm():
    """The library. Where it isn't installed these tests fail: they are the only ones that it's tried in."""
    return importlib.import_module("litellm")


async def resolve(reference):
    assert reference == REFERENCE
    return KEY


def model_at(provider, **config):
    given = {"name": "openai/unpriced-1", "api_key": REFERENCE, "base_url": provider.url}
    return make_model(ModelConfig(provider="litellm", **given | config), resolve_secret=resolve)


async def failure(model, messages=MESSAGES, **options):
    with pytest.raises(BridgeError) as caught:
        await model.complete(messages, **options)
    return caught.value


# --- answers ---


async def test_a_question_goes_out_once_with_key_limits_and_messages_and_its_answer_comes_back(provider):
    completion = await model_at(provider, max_tokens=50).complete(MESSAGES, max_tokens=40)
    assert (completion.text, completion.truncated) == ("hi there", False)
    assert completion.usage == Usage(11, 7, 18, None, "answering-1", estimated=False)
    [(line, headers, body)] = provider.requests
    assert line == "POST /v1/chat/completions HTTP/1.1"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert body == {
        "model": "unpriced-1",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
        "temperature": 0.0,
        "max_tokens": 40,
    }


async def test_without_a_limit_none_is_sent(provider):
    await model_at(provider).complete(MESSAGES, temperature=0.7)
    body = provider.requests[0][2]
    assert "max_tokens" not in body
    assert body["temperature"] == 0.7


async def test_a_parameter_that_the_model_does_not_have_is_left_out(provider):
    await model_at(provider, name="openai/o1").complete(MESSAGES)
    assert "temperature" not in provider.requests[0][2]


async def test_a_known_model_is_priced_by_the_library(provider, litellm):
    usage = (await model_at(provider, name="openai/gpt-4o-mini").complete(MESSAGES)).usage
    prices = litellm.model_cost["gpt-4o-mini"]
    assert usage.cost_usd == pytest.approx(11 * prices["input_cost_per_token"] + 7 * prices["output_cost_per_token"])
    assert usage.cost_usd > 0


async def test_the_operators_price_counts_before_the_librarys(provider):
    model = model_at(provider, name="openai/gpt-4o-mini", input_cost_per_million=1e6, output_cost_per_million=0)
    assert (await model.complete(MESSAGES)).usage.cost_usd == 11.0


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}])
async def test_unreported_usage_is_estimated_and_priced_as_such(provider, usage):
    provider.says(usage=usage)
    found = (await model_at(provider, name="openai/gpt-4o-mini").complete(MESSAGES)).usage
    assert (found.prompt_tokens, found.completion_tokens) == (estimate(MESSAGES), estimate_text("hi there"))
    assert found.estimated
    assert found.cost_usd > 0


async def test_an_answer_cut_off_by_the_provider_is_marked(provider):
    provider.says(choices=[ANSWER["choices"][0] | {"finish_reason": "length"}])
    assert (await model_at(provider).complete(MESSAGES)).truncated


async def test_the_librarys_own_mock_answers_through_the_adapter(litellm, monkeypatch):
    real = litellm.acompletion
    monkeypatch.setattr(litellm, "acompletion", lambda **given: real(**given, mock_response="mocked"))
    model = LiteLLMModel(
        ModelConfig(provider="litellm", name="anthropic/claude-sonnet-4-5", api_key=REFERENCE), resolve
    )
    completion = await model.complete(MESSAGES)
    assert completion.text == "mocked"
    assert completion.usage.total_tokens > 0


async def test_many_questions_at_once_are_all_answered(provider):
    model = model_at(provider)
    texts = []

    async def ask():
        texts.append((await model.complete(MESSAGES)).text)

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(ask)
    assert texts == ["hi there"] * 20


# --- failures ---


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (400, None),
        (401, "Check api_key in [model]."),
        (403, "Check api_key in [model]."),
        (404, "Check name and base_url in [model]."),
        (429, "The provider limits how much may be asked: try again later."),
        (500, None),
        (503, None),
    ],
)
async def test_a_providers_error_is_told_in_its_words_and_not_repeated(provider, status, hint):
    provider.says(status, json.dumps({"error": {"message": "No, thanks.", "type": "x", "code": None}}))
    error = await failure(model_at(provider))
    assert (error.code, error.details) == ("model_failed", {"status": status})
    assert error.message == "The model 'openai/unpriced-1' failed: No, thanks."
    assert error.hint == hint
    assert len(provider.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        "garbage{",
        "<html>It works</html>",
        "",
        "{}",
        "[]",
        "null",
        "7",
        '{"choices": 5}',
        json.dumps(ANSWER | {"choices": [{}]}),
        json.dumps(ANSWER | {"usage": {"prompt_tokens": "many"}}),
        "[" * 100_000,
    ],
)
async def test_garbage_is_a_failure_in_one_line_without_a_traceback(provider, body):
    provider.says(200, body)
    error = await failure(model_at(provider))
    assert error.code in {"model_failed", "model_bad_answer"}
    assert "Traceback" not in error.message
    assert "\n" not in error.message
    assert len(error.message) < 600


async def test_a_page_instead_of_an_answer_is_no_models_interface(provider):
    provider.says(200, "<html>It works</html>")
    error = await failure(model_at(provider))
    assert "isn't a model's interface" in error.message, error.message
    assert error.hint.startswith("Check base_url in [model]")


@pytest.mark.parametrize(
    "choices",
    [
        [ANSWER["choices"][0] | {"message": {"role": "assistant", "content": None}}],
        [ANSWER["choices"][0] | {"message": {"role": "assistant", "content": ""}}],
        [],
    ],
)
async def test_an_answer_without_text_is_bad_and_paid_for(provider, choices):
    provider.says(choices=choices)
    error = await failure(model_at(provider))
    assert error.code == "model_bad_answer"
    assert error.usage.total_tokens == 18


async def test_a_provider_that_repeats_the_key_does_not_reach_the_user_with_it(provider):
    for status in (401, 400, 500, 200):
        provider.says(status, json.dumps({"error": {"message": f"Bad key {KEY}! Bearer {KEY}", "code": KEY}}))
        error = await failure(model_at(provider))
        frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
        ours = [names for names in frames if "provider" not in names]
        seen = [str(error), error.record(), error.__cause__, error.__context__, ours]
        assert KEY not in repr(seen)


async def test_no_log_shows_the_key_or_what_the_library_raised(provider, caplog, capfd):
    caplog.set_level("DEBUG")
    provider.says(401, json.dumps({"error": {"message": f"Bad key {KEY}"}}))
    await failure(model_at(provider))
    provider.says()
    await model_at(provider).complete(MESSAGES)
    out, err = capfd.readouterr()
    assert KEY not in caplog.text + out + err
    assert out == ""


async def test_neither_model_nor_configuration_shows_the_key(provider):
    model = model_at(provider)
    await model.complete(MESSAGES)
    assert KEY not in repr(model) + repr(vars(model)) + repr(model._config)


async def test_a_server_that_is_not_there_is_a_failure(provider):
    error = await failure(model_at(provider, base_url="http://127.0.0.1:1/v1"))
    assert error.code == "model_failed"
    assert "onnection" in error.message


NAMES = ["openai/unpriced-1", "anthropic/claude-sonnet-4-5"]
"""The library sends to the first with httpx, to the second with aiohttp."""


async def warm(model):
    """What is loaded at a provider's first use isn't to be timed; its answer doesn't matter."""
    with contextlib.suppress(ModelError):
        await model.complete(MESSAGES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["silent", "dripping"])
async def test_a_provider_that_does_not_finish_is_a_timeout_and_is_hung_up_on(provider, name, way):
    model = model_at(provider, name=name, timeout=1)
    await warm(model)
    setattr(provider, way, True)
    provider.left = anyio.Event()
    error = await failure(model)
    assert (error.code, error.message) == ("model_timeout", "The model didn't answer within 1 s.")
    await provider.left.wait()


@pytest.mark.parametrize("name", NAMES)
async def test_a_cancelled_question_is_hung_up_and_leaves_no_task(provider, name):
    model = model_at(provider, name=name)
    await warm(model)
    before = asyncio.all_tasks()
    provider.silent, provider.asked, provider.left = True, anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(model.complete, MESSAGES)
        await provider.asked.wait()
        tasks.cancel_scope.cancel()
    await provider.left.wait()
    left = [repr(task) for task in asyncio.all_tasks() - before]
    assert not [task for task in left if "serve" not in task and "LoggingWorker" not in task]


# --- what is missing ---


async def test_a_name_without_a_provider_is_unavailable_and_the_error_says_how_to_write_it(provider):
    error = await failure(model_at(provider, name="some-model"))
    assert error.code == "model_unavailable"
    assert "openai/gpt-4o-mini" in error.hint
    assert provider.requests == []


async def test_a_missing_secret_is_the_vaults_error(provider):
    missing = BridgeError("secret_missing", "There is no secret 'provider'.")

    async def nothing(reference):
        raise missing

    config = ModelConfig(provider="litellm", name="openai/m", api_key=REFERENCE, base_url=provider.url)
    assert await failure(make_model(config, resolve_secret=nothing)) is missing
    assert (await failure(make_model(config))).code == "model_unavailable"
    assert provider.requests == []


async def test_a_missing_key_is_told_in_the_librarys_words(provider, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    error = await failure(model_at(provider, api_key=None))
    assert isinstance(error, ModelError)
    assert error.code == "model_failed"
    assert "OPENAI_API_KEY" in error.message


# --- loading ---

LOADING = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
seen = []
sys.addaudithook(lambda event, given: seen.append(f"{event} {given}") if event in NETWORK else None)
NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
before = dict(os.environ)
from mcp_bridge.models import factory, planner, config
early = "litellm" in sys.modules
from mcp_bridge.models.litellm_adapter import load_library
library = load_library()
changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
print(json.dumps([early, seen, changed, bool(library.suppress_debug_info), len(library.model_cost)]))
"""


def test_loading_the_library_asks_no_network_reads_no_env_file_and_prints_nothing(tmp_path):
    (tmp_path / ".env").write_text("LITELLM_FROM_A_FILE=1\n")
    root = litellm_adapter.__file__.removesuffix("mcp_bridge/models/litellm_adapter.py")
    command = [sys.executable, "-c", LOADING, root]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    early, seen, changed, quiet, prices = json.loads(done.stdout)
    assert not early
    assert seen == []
    assert {name for name in changed if name not in litellm_adapter.ENVIRONMENT} <= {"TIKTOKEN_CACHE_DIR"}
    assert quiet
    assert prices > 100
    assert done.stderr == ""
