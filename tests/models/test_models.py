"""Models: the interface's promises, the scripted model, the client's sampling, accounting, configuration."""

import json
import math
import sys
import tomllib

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mcp_bridge.errors import BridgeError
from mcp_bridge.gate.model_steps import ModelSteps
from mcp_bridge.models import litellm_adapter
from mcp_bridge.models.answer_checks import MAX_ANSWER_CHARS
from mcp_bridge.models.config import ModelConfig
from mcp_bridge.models.factory import make_model
from mcp_bridge.models.model import Message, ModelError, Prices, Usage, estimate, estimate_text, usage_of, well_formed
from mcp_bridge.models.sampling import DEFAULT_MAX_TOKENS, SamplingReply
from mcp_bridge.policy.secrets.vault import Secrets


def asking(text):
    return [Message("user", text)]


def model_of(toml, **given):
    return make_model(ModelConfig.model_validate(tomllib.loads(toml)), **given)


def scripted(answers, **more):
    return make_model(ModelConfig(provider="scripted", answers=answers, **more))


async def failure(model, messages=None, **options):
    with pytest.raises(BridgeError) as caught:
        await model.complete(messages or asking("hello"), **options)
    return caught.value


# --- the scripted model ---


async def test_a_list_is_answered_in_its_order_and_then_fails():
    model = scripted(["one", "two"])
    assert [(await model.complete(asking("x"))).text for _ in range(2)] == ["one", "two"]
    error = await failure(model)
    assert (error.code, error.message) == ("model_failed", "The scripted model has no more answers.")


async def test_a_list_with_a_default_goes_on_with_it():
    model = scripted(["one"], default_answer="more")
    assert [(await model.complete(asking("x"))).text for _ in range(3)] == ["one", "more", "more"]


async def test_every_model_of_a_script_begins_at_its_start():
    config = ModelConfig(provider="scripted", answers=["one", "two"])
    assert (await make_model(config).complete(asking("x"))).text == "one"
    assert (await make_model(config).complete(asking("x"))).text == "one"


async def test_a_table_answers_by_the_first_part_that_the_prompt_contains():
    model = model_of("""
        provider = "scripted"
        default_answer = "dunno"
        [answers]
        "refund the order" = "yes"
        "refund" = "no"
    """)
    assert (await model.complete(asking("Please refund the order."))).text == "yes"
    assert (await model.complete(asking("refund?"))).text == "no"
    assert (await model.complete(asking("hello"))).text == "dunno"


async def test_a_table_is_matched_against_the_last_message_of_the_user_only():
    model = scripted({"first": "1", "second": "2", "rules": "3"})
    messages = [
        Message("system", "rules"),
        Message("user", "first"),
        Message("assistant", "first"),
        Message("user", "second"),
    ]
    assert (await model.complete(messages)).text == "2"


async def test_a_prompt_that_no_part_matches_fails_without_a_default():
    error = await failure(scripted({"refund": "yes"}))
    assert (error.code, error.message) == ("model_failed", "The scripted model has no answer for this prompt.")


async def test_an_empty_list_has_no_answers():
    assert (await failure(scripted([]))).code == "model_failed"


@pytest.mark.parametrize("content", [["one"], {"hello": "one"}, [{"text": "one"}]])
async def test_answers_come_from_a_json_file_beside_the_configuration(tmp_path, content):
    (tmp_path / "answers.json").write_text(json.dumps(content))
    config = ModelConfig(provider="scripted", answers="answers.json")
    assert (await make_model(config, directory=tmp_path).complete(asking("hello"))).text == "one"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "can't be read"),
        (b"{", "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        (b'"other.json"', "answers are a list or a table"),
        (b"7", "answers are a list or a table"),
        (b'[{"text": "a", "txt": 1}]', "0.txt: Extra inputs"),
        (b'{"a": {"error": "boom"}}', "a.error: Input should be 'model_timeout'"),
        (b"[[]]", "0: "),
        (b"[" * 100_000, "Invalid JSON"),
    ],
)
def test_a_bad_file_of_answers_is_an_error_that_names_it(tmp_path, content, told):
    if content is not None:
        (tmp_path / "answers.json").write_bytes(content)
    with pytest.raises(BridgeError) as caught:
        make_model(ModelConfig(provider="scripted", answers="answers.json"), directory=tmp_path)
    assert caught.value.code == "bad_config"
    assert str(tmp_path / "answers.json") in caught.value.message
    assert told in caught.value.message


@pytest.mark.parametrize("code", ["model_timeout", "model_failed", "model_unavailable", "model_bad_answer"])
async def test_a_script_can_fail_with_any_code(code):
    model = scripted([{"error": code, "message": "as told"}, {"error": code}])
    assert (await failure(model)).message == "as told"
    assert (await failure(model)).code == code


async def test_the_error_for_a_key_that_is_missing_says_what_to_set(tmp_path):
    problem = BridgeError("secret_missing", "There is no value.", hint="Set the environment variable MODEL_KEY.")
    steps = ModelSteps(None, None, Secrets(problems={"model": problem}), None, None, tmp_path)
    with pytest.raises(BridgeError) as caught:
        await steps._key("vault://secret/model")
    assert (caught.value.code, caught.value.hint) == ("secret_missing", "Set the environment variable MODEL_KEY.")


async def test_a_delay_beyond_the_limit_is_a_timeout():
    model = scripted([{"text": "late", "delay": 3600}] * 2, timeout=0.01)
    error = await failure(model)
    assert (error.code, error.message) == ("model_timeout", "The model didn't answer within 0.01 s.")
    assert (await failure(model, timeout=0.02)).message == "The model didn't answer within 0.01 s."


async def test_a_call_can_narrow_the_time_for_an_answer():
    model = scripted([{"text": "late", "delay": 3600}], timeout=7200)
    error = await failure(model, timeout=0.01)
    assert (error.code, error.message) == ("model_timeout", "The model didn't answer within the step's 0.01 s.")
    assert "timeout_seconds" in error.hint


async def test_a_cancelled_question_ends_at_once():
    model = scripted([{"text": "late", "delay": 3600}], timeout=7200)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await model.complete(asking("x"))
    assert scope.cancelled_caught


async def test_scripted_usage_is_as_told_and_priced_by_the_operator():
    model = scripted(
        [{"text": "a", "prompt_tokens": 2_000_000, "completion_tokens": 1_000_000, "truncated": True}],
        input_cost_per_million=0.5,
        output_cost_per_million=2,
        name="m",
    )
    completion = await model.complete(asking("x"))
    assert completion.usage == Usage(2_000_000, 1_000_000, 3_000_000, 3.0, "m", estimated=False)
    assert completion.truncated


async def test_scripted_usage_is_estimated_and_free_where_nothing_is_told():
    completion = await scripted(["four words of text"]).complete(asking("six bytes"))
    assert completion.usage == Usage(7, 6, 13, 0.0, "scripted", estimated=True)


# --- what counts as an answer ---


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
async def test_an_answer_without_text_is_refused_with_what_it_cost(text):
    model = scripted([{"text": text, "prompt_tokens": 5, "completion_tokens": 3, "cost_usd": 0.25}])
    error = await failure(model)
    assert (error.code, error.message) == ("model_bad_answer", "The model answered without any text.")
    assert error.usage == Usage(5, 3, 8, 0.25, "scripted")
    assert error.hint is None


async def test_an_answer_that_used_up_its_tokens_before_any_text_says_so():
    error = await failure(scripted([{"text": "", "truncated": True}]))
    assert "set max_tokens in [model], or a higher one" in error.hint


async def test_an_answer_over_the_limit_is_refused_with_what_it_cost():
    model = scripted(["x" * MAX_ANSWER_CHARS, "x" * (MAX_ANSWER_CHARS + 1)])
    assert len((await model.complete(asking("x"))).text) == MAX_ANSWER_CHARS
    error = await failure(model)
    assert error.code == "model_bad_answer"
    assert str(MAX_ANSWER_CHARS) in error.message
    assert error.usage.completion_tokens > 0


async def test_lone_surrogates_in_an_answer_are_replaced():
    model = scripted(["a\ud800b \ud83d\ude00 \udc00"])
    assert (await model.complete(asking("x"))).text == "a\ufffdb 😀 \ufffd"


@given(st.text(st.characters(exclude_categories=())))
def test_what_is_well_formed_stays_and_all_else_becomes_so(text):
    fixed = well_formed(text)
    fixed.encode()
    if not any("\ud800" <= char <= "\udfff" for char in text):
        assert fixed == text


async def test_without_configuration_there_is_no_model():
    error = await failure(make_model(None))
    assert error.code == "model_unavailable"
    assert "[model]" in error.hint


# --- accounting ---

usages = st.builds(
    Usage,
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.none() | st.integers(0, 1 << 30).map(float),
    st.sampled_from(["", "a", "b", "c/d:e", "a, b"]),
    st.booleans(),
)


@given(usages, usages, usages)
def test_usage_adds_up_in_any_order(one, two, three):
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)
    assert one + Usage() == one


def test_a_sum_with_an_unknown_price_is_unknown():
    assert (Usage(cost_usd=1.0) + Usage(cost_usd=None)).cost_usd is None


def test_a_sum_names_all_models_and_tells_of_estimates():
    total = Usage(1, 2, 3, 0.5, "b") + Usage(1, 2, 3, 0.5, "a", estimated=True) + Usage(1, 2, 3, 0.5, "b")
    assert total == Usage(3, 6, 9, 1.5, "a, b", estimated=True)
    assert total.record() == {
        "prompt_tokens": 3,
        "completion_tokens": 6,
        "total_tokens": 9,
        "cost_usd": 1.5,
        "model": "a, b",
        "estimated": True,
    }


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ((3, 4, 7), (3, 4, 7, False)),
        ((3, 4, None), (3, 4, 7, False)),
        ((3, 4, 50), (3, 4, 50, False)),
        ((3, 4, 1), (3, 4, 7, False)),
        ((0, 4, 4), (0, 4, 4, False)),
        ((0, 0, 0), (5, 1, 6, True)),
        ((0, 0, 9), (5, 1, 9, True)),
        ((None, None, 9), (5, 1, 9, True)),
        ((None, None, 2), (5, 1, 6, True)),
        ((3, None, 9), (5, 1, 9, True)),
        ((-3, 4, 1), (5, 1, 6, True)),
        ((3, True, 4), (5, 1, 6, True)),
        ((3, "4", 7), (5, 1, 7, True)),
        ((3.0, 4.0, 7), (5, 1, 7, True)),
        ((3, 10**40, 7), (5, 1, 7, True)),
        ((None, None, 10**40), (5, 1, 6, True)),
    ],
)
def test_tokens_are_estimated_where_the_report_makes_no_sense(reported, expected):
    prompt, written, total = reported
    usage = usage_of(
        asking("abc"), "ok", model="m", prompt_tokens=prompt, completion_tokens=written, total_tokens=total
    )
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.estimated) == expected


@pytest.mark.parametrize(
    ("cost", "expected"),
    [(0.5, 0.5), (0, 0.0), (None, None), (-1.0, None), (math.nan, None), (math.inf, None), ("1", None)],
)
def test_a_price_that_makes_no_sense_is_unknown(cost, expected):
    assert usage_of(asking("x"), "y", model="m", cost_usd=cost).cost_usd == expected


def test_the_operators_price_counts_before_the_librarys():
    usage = usage_of(
        asking("x"), "y", model="m", prompt_tokens=10, completion_tokens=1, cost_usd=9.0, prices=Prices(1e5, 1e6)
    )
    assert usage.cost_usd == 2.0


@given(st.text())
def test_an_estimate_of_ordinary_text_is_not_below_a_token_for_four_bytes(text):
    assert estimate_text(text) * 4 >= len(text.encode())
    assert estimate(asking(text)) > estimate_text(text)


@pytest.mark.filterwarnings("ignore:open_binary is deprecated:DeprecationWarning")  # of the tokenizer's own import
def test_an_estimate_is_no_less_than_what_a_tokenizer_counts():
    from bpe_openai import get_encoding

    from mcp_bridge.models.program_format import PROGRAM_FORMAT

    real = get_encoding("o200k_base")
    for text in (
        PROGRAM_FORMAT,
        "Der Preis beträgt 17,50 €.",
        "这个订单已经退款了请通知客户",
        "the quick brown fox",
    ):
        assert estimate_text(text) >= len(real.encode(text))


# --- sampling ---


class Client:
    """Answers like an MCP client, and keeps what it was asked."""

    def __init__(self, reply):
        self.reply = reply
        self.requests = []

    async def __call__(self, request):
        self.requests.append(request)
        if isinstance(self.reply, BaseException):
            raise self.reply
        return self.reply


def sampling(client, **config):
    return make_model(ModelConfig(provider="sampling", **config), sampler=client)


async def test_sampling_asks_the_client_in_the_protocols_terms():
    client = Client(SamplingReply("hi", "claude-x", "endTurn"))
    model = sampling(client, name="claude", temperature=0.5, max_tokens=100)
    messages = [Message("system", "a"), Message("user", "b"), Message("system", "c"), Message("assistant", "d")]
    completion = await model.complete(messages)
    [request] = client.requests
    assert (request.system_prompt, request.messages) == ("a\n\nc", (messages[1], messages[3]))
    assert (request.max_tokens, request.temperature, request.model_hints) == (100, 0.5, ("claude",))
    assert (completion.text, completion.truncated) == ("hi", False)


async def test_sampling_asks_for_a_limit_where_nobody_set_one():
    client = Client(SamplingReply("hi", "m"))
    model = sampling(client)
    await model.complete(asking("x"))
    await model.complete(asking("x"), max_tokens=7, temperature=1.0)
    assert [request.max_tokens for request in client.requests] == [DEFAULT_MAX_TOKENS, 7]
    assert [request.temperature for request in client.requests] == [0.0, 1.0]
    assert [request.system_prompt for request in client.requests] == [None, None]


async def test_a_call_can_narrow_max_tokens_and_never_widen_it():
    client = Client(SamplingReply("hi", "m"))
    model = sampling(client, max_tokens=50)
    await model.complete(asking("x"), max_tokens=10)
    await model.complete(asking("x"), max_tokens=500)
    assert [request.max_tokens for request in client.requests] == [10, 50]


async def test_usage_of_sampling_is_estimated_under_the_clients_name_and_its_price_unknown():
    usage = (await sampling(Client(SamplingReply("hi", "claude-x"))).complete(asking("abc"))).usage
    assert usage == Usage(5, 1, 6, None, "claude-x", estimated=True)


async def test_sampling_is_priced_where_the_operator_says_how():
    model = sampling(Client(SamplingReply("hi", "m")), input_cost_per_million=1e6, output_cost_per_million=0)
    assert (await model.complete(asking("abc"))).usage.cost_usd == 5.0


async def test_an_answer_cut_off_by_the_client_is_marked():
    model = sampling(Client(SamplingReply("hi", "m", "maxTokens")))
    assert (await model.complete(asking("x"))).truncated


async def test_an_answer_of_the_client_that_is_no_text_is_refused():
    assert (await failure(sampling(Client(SamplingReply(None, "m"))))).code == "model_bad_answer"


async def test_a_client_that_cannot_be_asked_makes_the_model_unavailable():
    error = await failure(sampling(None))
    assert error.code == "model_unavailable"
    assert "sampling" in error.message


async def test_a_refusal_of_the_client_is_passed_on():
    refusal = ModelError("model_failed", "The user said no.")
    assert await failure(sampling(Client(refusal))) is refusal


async def test_a_client_that_never_answers_is_a_timeout_and_is_let_go():
    let_go = anyio.Event()

    async def silent(request):
        try:
            await anyio.sleep_forever()
        finally:
            let_go.set()

    assert (await failure(sampling(silent, timeout=0.01))).code == "model_timeout"
    assert let_go.is_set()


async def test_cancelling_a_question_cancels_the_clients():
    asked, let_go = anyio.Event(), anyio.Event()

    async def silent(request):
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            let_go.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sampling(silent).complete, asking("x"))
        await asked.wait()
        tasks.cancel_scope.cancel()
    assert let_go.is_set()


# --- LiteLLM without the library ---


@pytest.fixture
def without_litellm(monkeypatch):
    monkeypatch.setitem(sys.modules, "litellm", None)
    litellm_adapter._load.cache_clear()
    yield
    litellm_adapter._load.cache_clear()


async def test_without_its_extra_litellm_is_unavailable_and_the_error_says_what_to_install(without_litellm):
    error = await failure(make_model(ModelConfig(provider="litellm", name="openai/m")))
    assert error.code == "model_unavailable"
    assert "mcp-code-bridge[litellm]" in error.hint


@given(st.text(min_size=1), st.text(), st.text())
def test_no_error_of_a_provider_shows_the_key(key, before, after):
    told = litellm_adapter.provider_message(ValueError(f"{before}{key}{after}"), key)
    hidden = litellm_adapter.provider_message(ValueError(f"{before}{after}"), None)
    assert (
        key not in told or key in "[REDACTED]" or key in " ".join(hidden.split()) or key in type(ValueError()).__name__
    )


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-proj-abcdefghijkl.",
        "bad header Authorization: Bearer abcdefghijkl",
        "https://x.example/v1?alt=json&key=abcdefghijkl refused",
        "AIzaabcdefghijklabcdefghijkl is unknown",
    ],
)
def test_what_looks_like_a_key_is_hidden_whoever_sent_it(text):
    told = litellm_adapter.provider_message(ValueError(text), None)
    assert "abcdefghijkl" not in told
    assert "[REDACTED]" in told


def test_a_key_from_the_environment_is_hidden(monkeypatch):
    monkeypatch.setenv("SOME_PROVIDER_API_KEY", "plainpassword")
    assert litellm_adapter.provider_message(ValueError("no plainpassword here"), None) == "no [REDACTED] here"


@pytest.mark.parametrize("form", ["a%2Fb%2Bc%22d", 'a/b+c\\"d', "YS9iK2MiZA=="])
def test_a_key_in_another_writing_is_hidden(form):
    assert litellm_adapter.provider_message(ValueError(f"<{form}>"), 'a/b+c"d') == "<[REDACTED]>"


def test_a_providers_message_is_unwrapped_and_has_no_traceback():
    error = ValueError(
        "litellm.InternalServerError: InternalServerError: OpenAIException - Invalid\n response object "
        'Traceback (most recent call last):\n  File "/home/me/x.py", line 1'
    )
    assert litellm_adapter.provider_message(error, None) == "Invalid response object"
    assert litellm_adapter.provider_message(ValueError(""), None) == "ValueError"


# --- configuration ---


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        ("", "provider: Field required"),
        ('provider = "openai"', "provider: Input should be 'litellm', 'sampling' or 'scripted'"),
        ('provider = "litellm"', "provider 'litellm' needs name"),
        ('provider = "scripted"', "provider 'scripted' needs answers or default_answer"),
        ('provider = "sampling"\nmodel = "x"', "model: Extra inputs are not permitted"),
        ('provider = "sampling"\nname = ""', "name: String should have at least 1 character"),
        (
            'provider = "sampling"\napi_key = "vault://secret/x"',
            "api_key is for provider 'litellm', not for 'sampling'",
        ),
        ('provider = "sampling"\nbase_url = "https://x"', "base_url is for provider 'litellm', not for 'sampling'"),
        ('provider = "sampling"\nanswers = ["x"]', "answers is for provider 'scripted', not for 'sampling'"),
        ('provider = "sampling"\ndefault_answer = "x"', "default_answer is for provider 'scripted'"),
        ('provider = "sampling"\ntemperature = 3', "temperature: Input should be less than or equal to 2"),
        ('provider = "sampling"\ntemperature = nan', "temperature: Input should be"),
        ('provider = "sampling"\nmax_tokens = 0', "max_tokens: Input should be greater than or equal to 1"),
        ('provider = "sampling"\ntimeout = 0', "timeout: Input should be greater than 0"),
        ('provider = "sampling"\ntimeout = inf', "timeout: Input should be a finite number"),
        ('provider = "sampling"\ninput_cost_per_million = 1', "give both input_cost_per_million and output"),
        (
            'provider = "sampling"\ninput_cost_per_million = -1\noutput_cost_per_million = 1',
            "input_cost_per_million: Input should be greater than or equal to 0",
        ),
        ('provider = "scripted"\nanswers = 7', "answers: answers are a list, a table or a file"),
        ('provider = "scripted"\nanswers = ""', "answers.file: String should have at least 1 character"),
        ('provider = "scripted"\nanswers = [7]', "answers.list.0: Input should be"),
        ('provider = "scripted"\nanswers = [{}]', "answers.list.0: Value error, an answer has either text or error"),
        ('provider = "scripted"\nanswers = [{text="a", error="model_failed"}]', "either text or error"),
        ('provider = "scripted"\nanswers = [{text="a", message="b"}]', "message is an error's"),
        (
            'provider = "scripted"\nanswers = [{text="a", prompt_tokens=1}]',
            "give both prompt_tokens and completion_tokens",
        ),
        ('provider = "scripted"\nanswers = [{text="a", delay=-1}]', "delay: Input should be greater"),
        ('provider = "litellm"\nname = "x"\nbase_url = "x"', "base_url: Value error, write an address such as"),
        ('provider = "litellm"\nname = "x"\nbase_url = "ftp://x"', "base_url: Value error, write an address such as"),
        ('provider = "litellm"\nname = "x"\nbase_url = "http://x:99999"', "base_url: Value error, write an address"),
        ('provider = "litellm"\nname = "x"\nbase_url = "http://[x"', "base_url: Value error, write an address such as"),
        ('provider = "litellm"\nname = "x"\nbase_url = "http://me:pw@x"', "a key belongs in api_key"),
        ('provider = "litellm"\nname = "x"\nbase_url = "http://x/?key=k"', "a key belongs in api_key"),
    ],
)
def test_a_wrong_table_is_refused_with_what_is_wrong(toml, told):
    with pytest.raises(ValidationError) as caught:
        ModelConfig.model_validate(tomllib.loads(toml))
    errors = caught.value.errors()
    assert told in "\n".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in errors)


@pytest.mark.parametrize(
    "key",
    [
        "sk-abcdef",
        "vault://secret/",
        "vault://secret/a b",
        "vault://other/x",
        "vault://secret/../x",
        "vault://secret/ä",
    ],
)
def test_a_key_in_the_configuration_is_refused_and_not_repeated(key):
    with pytest.raises(ValidationError) as caught:
        ModelConfig(provider="litellm", name="openai/m", api_key=key)
    assert "never the key itself" in str(caught.value)
    assert "input_value" not in str(caught.value)
    assert key not in str(caught.value) or key == "vault://secret/"


def test_the_table_is_decoded_and_frozen():
    config = ModelConfig.model_validate(
        tomllib.loads("""
            provider = "litellm"
            name = "openai/gpt-4o-mini"
            api_key = "vault://secret/open-ai_1.x"
            base_url = "http://127.0.0.1:4000/v1"
            input_cost_per_million = 0.15
            output_cost_per_million = 0.6
        """)
    )
    assert (config.temperature, config.max_tokens, config.timeout) == (0.0, None, 60.0)
    assert config.prices == Prices(0.15, 0.6)
    with pytest.raises(ValidationError, match="frozen"):
        config.timeout = 5
