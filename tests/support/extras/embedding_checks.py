"""Search by meaning against the real libraries, in the environment that has them (`tests/models/test_embeddings.py`)."""

import json
import math
import os
import threading
from types import SimpleNamespace

import anyio
import numpy as np
import pytest
from model2vec import StaticModel
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from mcp_bridge.downstream.catalog.catalog import Catalog
from mcp_bridge.downstream.catalog.tools import listing_from_wire
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.search import meaning_search
from mcp_bridge.downstream.search.config import SearchConfig
from mcp_bridge.downstream.search.meaning_search import MeaningSearch
from mcp_bridge.downstream.search.vectors import (
    InvalidVectorsError,
    VectorIndex,
    fused,
    unit_vector,
    vectors_from_bytes,
    vectors_to_bytes,
)
from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.search_embedder import search_embedder
from mcp_bridge.models import embeddings
from mcp_bridge.models.litellm_adapter import load_library

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

MEANINGS = {"feline": (1, 0, 0), "cat": (0.9, 0.1, 0), "engine": (0, 1, 0), "motor": (0.1, 0.9, 0), "sky": (0, 0, 1)}
TOOLS = [
    {"name": "feed_cat", "description": "cat"},
    {"name": "start_motor", "description": "motor"},
    {"name": "paint", "description": "sky"},
]


@pytest.fixture
def folder(tmp_path):
    """A model of five words, saved as model2vec saves them."""
    words = {"[UNK]": 0} | {word: number for number, word in enumerate(MEANINGS, 1)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = Whitespace()
    vectors = np.array([(0.01, 0.01, 0.01), *MEANINGS.values()], dtype=np.float32)
    place = tmp_path / "model"
    StaticModel(vectors=vectors, tokenizer=tokenizer).save_pretrained(str(place))
    return place


class Service:
    """An embedding service that speaks OpenAI's API on loopback, with the vectors of `MEANINGS`."""

    def __init__(self):
        self.texts = []
        self.status = 200
        self.vector = None

    async def answer(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(
            next(line for line in head.decode().lower().split("\r\n") if line.startswith("content-length")).split(":")[
                1
            ]
        )
        texts = json.loads(await reader.readexactly(length))["input"]
        self.texts += texts
        body = {"error": {"message": "no such model"}}
        if self.status == 200:
            rows = [self.vector or self.meaning(text) for text in texts]
            data = [{"object": "embedding", "index": number, "embedding": row} for number, row in enumerate(rows)]
            body = {"object": "list", "model": "m", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        content = json.dumps(body).encode()
        lines = f"HTTP/1.1 {self.status} x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\nconnection: close\r\n\r\n"
        writer.write(lines.encode() + content)
        await writer.drain()
        writer.close()

    @staticmethod
    def meaning(text):
        found = [vector for word, vector in MEANINGS.items() if word in text.lower()]
        return [float(sum(column)) + 0.01 for column in zip(*found, strict=True)] if found else [0.01, 0.01, 0.01]


@pytest.fixture(scope="module")
def library():
    """LiteLLM, which takes longer to load than a search waits."""
    return load_library()


@pytest.fixture
async def service(monkeypatch, library):
    import asyncio

    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-key-of-nobody")
    running = Service()
    server = await asyncio.start_server(running.answer, "127.0.0.1", 0)
    running.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    yield running
    server.close()


class Local:
    """Tools of the host, so that no server is needed."""

    def __init__(self, tools):
        self._listing = listing_from_wire("local", "local", tools)

    def listing(self):
        return self._listing


async def search(embedder, state, query="feline", *, tools=TOOLS, **options):
    async with Fleet(()) as fleet:
        catalog = Catalog(fleet, state, embedder)
        catalog.add_local(Local(tools))
        return await catalog.search(query, **options)


def names(result):
    return [hit.tool.name for hit in result.hits]


async def test_a_local_model_finds_what_shares_no_word(folder, tmp_path):
    assert names(await search(None, None, "sky blue feline")) == ["paint"]
    embedder = search_embedder(SearchConfig(embeddings=str(folder)))
    result = await search(embedder, tmp_path)
    assert (names(result)[0], result.notices) == ("feed_cat", [])
    assert names(await search(embedder, tmp_path, "engine"))[0] == "start_motor"
    assert names(await search(embedder, tmp_path, "feline", strict=True)) == []
    assert len(names(await search(embedder, tmp_path, "feline", limit=1))) == 1
    assert [path.name.split("-")[0] for path in sorted((tmp_path / "catalog").iterdir())] == ["index", "vectors"]


async def test_a_service_is_asked_once_for_each_tool_and_its_vectors_are_kept(service, tmp_path):
    config = SearchConfig(embeddings="openai/m", base_url=service.url, timeout=60)
    assert names(await search(search_embedder(config), tmp_path))[0] == "feed_cat"
    assert service.texts[-1] == "feline"
    assert len(service.texts) == 4
    service.texts.clear()
    more = [*TOOLS, {"name": "stop_motor", "description": "motor"}]
    assert names(await search(search_embedder(config), tmp_path, "engine", tools=more))[:2] == [
        "start_motor",
        "stop_motor",
    ]
    assert len(service.texts) == 2, "only the new tool and the query"
    [path] = (tmp_path / "catalog").glob("vectors-*")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(path.read_bytes()[:-1])
    service.texts.clear()
    assert names(await search(search_embedder(config), tmp_path, "engine"))[0] == "start_motor"
    assert len(service.texts) == 4, "a damaged file is made again"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": 404}, "failed"),
        ({"vector": [0.0, 0.0, 0.0]}, "no vector"),
        ({"vector": ["x"]}, "failed"),
        ({"vector": [1e308, 1e308]}, "no vector"),
    ],
)
async def test_a_search_goes_on_without_a_service_that_fails_and_says_so(service, tmp_path, monkeypatch, changes, said):
    monkeypatch.setattr(meaning_search, "_PAUSE_SECONDS", 60.0)
    for name, value in changes.items():
        setattr(service, name, value)
    embedder = search_embedder(SearchConfig(embeddings="openai/m", base_url=service.url, timeout=60))
    async with Fleet(()) as fleet:
        catalog = Catalog(fleet, tmp_path, embedder)
        catalog.add_local(Local(TOOLS))
        result = await catalog.search("feed the cat")
        assert names(result)[0] == "feed_cat"
        [notice] = result.notices
        assert notice.startswith("not searched by meaning: ")
        assert said in notice
        assert "sk-a-key" not in notice
        asked = len(service.texts)
        assert (await catalog.search("feed the cat")).notices == [notice]
        assert len(service.texts) == asked, "a model that has failed is left alone for a while"
    assert not list((tmp_path / "catalog").glob("vectors-*"))


async def test_a_service_that_is_silent_holds_a_search_up_for_the_time_out_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(meaning_search, "_WAIT_SECONDS", 0.05)

    async def embed(_):
        await anyio.sleep(30)

    silent = SimpleNamespace(name="silent", embed=embed)
    result = await search(silent, tmp_path, "cat")
    assert names(result) == ["feed_cat"]
    assert result.notices == ["not searched by meaning: tools are being read"]


async def test_a_search_does_not_wait_until_litellm_is_loaded(tmp_path, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(embeddings, "load_library", lambda: go_on.wait(50))
    monkeypatch.setattr(embeddings, "_LOAD_SECONDS", 0.05)
    result = await search(search_embedder(SearchConfig(embeddings="openai/m")), tmp_path, "feed the cat")
    go_on.set()
    assert names(result)[0] == "feed_cat"
    assert result.notices == ["not searched by meaning: LiteLLM isn't loaded yet."]


async def test_a_local_model_that_loads_slowly_holds_no_search_up_and_is_loaded_once(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(meaning_search, "_PAUSE_SECONDS", 0.0)
    loaded, go_on, load = [], threading.Event(), embeddings._local_model

    def slowly(place):
        loaded.append(place)
        assert go_on.wait(50)
        return load(place)

    monkeypatch.setattr(embeddings, "_local_model", slowly)
    async with Fleet(()) as fleet:
        catalog = Catalog(fleet, tmp_path, search_embedder(SearchConfig(embeddings=str(folder), timeout=0.05)))
        catalog.add_local(Local(TOOLS))
        for _ in range(3):
            result = await catalog.search("feed the cat")
            assert names(result)[0] == "feed_cat"
            assert result.notices == ["not searched by meaning: The embedding model didn't answer within 0.05 s."]
        go_on.set()
        while (result := await catalog.search("feline")).notices:
            await anyio.lowlevel.checkpoint()
        assert names(result)[0] == "feed_cat"
    assert loaded == [folder]


async def test_a_tool_without_a_word_that_the_model_knows_is_near_to_nothing_and_spoils_nothing(folder, tmp_path):
    embedder = search_embedder(SearchConfig(embeddings=str(folder), timeout=60))
    strange = {"name": "zzz", "description": "qqq"}
    assert not any((await embedder.embed(["zzz: qqq ()"]))[0])
    result = await search(embedder, tmp_path, tools=[*TOOLS, strange])
    assert (names(result)[0], result.notices) == ("feed_cat", [])
    result = await search(embedder, tmp_path, tools=[*TOOLS, strange, {"name": "yyy", "description": "qqq"}])
    assert (names(result)[0], result.notices) == ("feed_cat", []), "one that comes later neither"


async def test_vectors_of_many_tools_are_made_into_unit_vectors_off_the_loop(folder, tmp_path, monkeypatch):
    threads = set()

    def watched(values):
        threads.add(threading.get_ident())
        return unit_vector(values)

    monkeypatch.setattr(meaning_search, "unit_vector", watched)
    embedder = search_embedder(SearchConfig(embeddings=str(folder), timeout=60))
    async with Fleet(()) as fleet:
        meaning = MeaningSearch(embedder, None, fleet.start_soon)
        tools = listing_from_wire("s", "s", TOOLS).tools
        _, notice = await meaning.ranking("qqq", tools, lambda _: True)
    assert notice is None
    assert threads
    assert threading.get_ident() not in threads


async def test_a_model_whose_files_do_not_fit_each_other_is_said_to_have_failed(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    count = len(tensors["embeddings"])
    save_file(tensors | {"mapping": np.full(count, 99, dtype=np.int64)}, folder / "model.safetensors")
    result = await search(search_embedder(SearchConfig(embeddings=str(folder), timeout=60)), tmp_path, "cat")
    assert names(result) == ["feed_cat"]
    assert result.notices[0].startswith(f"not searched by meaning: The embedding model in {folder} failed: ")


async def test_a_folder_without_a_model_is_said_to_be_none(tmp_path):
    for embedder in (
        search_embedder(SearchConfig(embeddings=str(tmp_path))),
        search_embedder(SearchConfig(embeddings="/nowhere/at-all")),
    ):
        result = await search(embedder, None, "cat")
        assert names(result) == ["feed_cat"]
        assert "is no embedding model: it has no config.json" in result.notices[0]
    for name in embeddings._FILES:
        (tmp_path / name).write_text("{}")
    result = await search(search_embedder(SearchConfig(embeddings=str(tmp_path))), None, "cat")
    assert "can't be loaded" in result.notices[0]


async def test_rankings_are_fused_by_score_and_words_count_more():
    def order(words, meaning):
        return [number for number, _ in fused(words, meaning)]

    assert order([(1, 9.0), (2, 8.0), (3, 7.9)], [(3, 1.0), (4, 0.5)]) == [3, 1, 2, 4]
    assert order([(1, 9.0), (2, 3.0)], [(2, 1.0), (4, 1.0)]) == [1, 2, 4], "a clear hit stays the first"
    assert order([], [(5, 1.0), (4, 0.2)]) == [5, 4]
    assert order([(7, 2.0), (8, 1.0)], []) == [7, 8]
    assert order([(7, 0.0)], [(8, 0.0)]) == [7, 8]


async def test_nearness_is_measured_against_all_tools():
    rows = [unit_vector([1.0, 0.1]), unit_vector([1.0, 0.2]), unit_vector([0.0, 1.0]), unit_vector([-1.0, 0.3])]
    index, query = VectorIndex(rows), unit_vector([1.0, 0.0])
    near = index.nearest(query, lambda _: True)
    assert [number for number, _ in near] == [0, 1]
    assert near[0][1] == 1 > near[1][1] > 0
    assert [number for number, _ in index.nearest(query, lambda number: number == 2)] == [2]
    assert VectorIndex([rows[0]]).nearest(query, lambda _: True) == [(0, 0.0)], "one tool is as near as most"
    assert VectorIndex(rows).nearest(query, lambda _: False) == []


async def test_a_model_is_left_alone_longer_the_more_often_it_fails(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(meaning_search, "time", SimpleNamespace(monotonic=lambda: now[0]))
    failing = [False]
    asked = []

    async def embed(texts):
        asked.append(texts)
        if failing[0]:
            raise BridgeError("model_unavailable", "It is down.")
        return [[1.0, 0.0] for _ in texts]

    async with anyio.create_task_group() as tasks:
        search = MeaningSearch(SimpleNamespace(name="m", embed=embed), None, tasks.start_soon)
        tools = listing_from_wire("s", "s", TOOLS).tools

        async def asks():
            before = len(asked)
            await search.ranking("cat", tools, lambda _: True)
            return len(asked) > before

        assert await asks()
        failing[0] = True
        pauses = []
        for _ in range(8):
            assert await asks()
            began = now[0]
            while not await asks():
                now[0] += 1
            pauses.append(now[0] - began)
            now[0] += 1000
        failing[0] = False
        assert await asks()
        failing[0] = True
        assert await asks()
        now[0] += 2
        assert await asks(), "after a success the first pause is short again"
    assert pauses[0] <= 4
    assert pauses == sorted(pauses)
    assert pauses[-1] == 60


async def test_vectors_are_read_as_they_were_written_and_others_refused():
    vectors = {"a": unit_vector([3.0, 4.0]), "b": unit_vector([0.0, 1.0])}
    data = vectors_to_bytes("m", vectors)
    assert vectors_from_bytes(data, "m") == vectors
    assert math.isclose(vectors["a"][0], 0.6, rel_tol=1e-6)
    assert vectors_from_bytes(vectors_to_bytes("m", {}), "m") == {}
    for wrong, model in (
        (b"", "m"),
        (data[:-1], "m"),
        (data, "other"),
        (data + b"\0" * 4, "m"),
        (os.urandom(200), "m"),
    ):
        with pytest.raises(InvalidVectorsError):
            vectors_from_bytes(wrong, model)
    for values in ([], [0.0], [math.nan], [math.inf]):
        with pytest.raises(BridgeError):
            unit_vector(values)
