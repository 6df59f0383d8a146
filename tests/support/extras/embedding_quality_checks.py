"""What the tool search finds with a real embedding model, in the environment that has the libraries (`tests/models/test_embeddings.py`).

`MCP_BRIDGE_TEST_LONG=1` asks all of the queries that were learnt from; otherwise every fifth of them is asked.
"""

import os
from pathlib import Path

import pytest

from mcp_bridge.downstream.search.config import SearchConfig
from mcp_bridge.downstream.search.search import SearchIndex
from mcp_bridge.governance.search_embedder import search_embedder
from tests.support import tool_search
from tests.support.tool_search import with_model

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]


async def test_with_a_real_model_a_right_tool_is_among_the_first_for_19_queries_of_20(tmp_path: Path):
    """In every set of queries but those of free paraphrases, and for four of five of each kind."""
    with_model.save_model(tmp_path)
    index, sets = SearchIndex(tool_search.tools()), tool_search.sets()
    if not os.environ.get("MCP_BRIDGE_TEST_LONG"):
        # Half of all queries: these tell the least, and there are four for each tool, one in each style.
        sets["paraphrases"] = sets["paraphrases"][::5]
    embedder = search_embedder(SearchConfig(embeddings=str(tmp_path), timeout=60))
    hits = await with_model.results(index, embedder, {query.text for chosen in sets.values() for query in chosen})
    counted = {which: tool_search.found(hits.__getitem__, chosen) for which, chosen in sets.items()}
    good, of = counted.pop("free")["all"]
    assert good / of >= 0.85, "a static model does no good to these, and not much harm"
    good, of = counted.pop("paraphrases held out")["all"]
    assert good / of >= 0.8
    assert not {which: kinds for which, kinds in counted.items() if 20 * kinds["all"][0] < 19 * kinds["all"][1]}
    few = [(which, kind) for which, kinds in counted.items() for kind, (good, of) in kinds.items() if 5 * good < 4 * of]
    assert not few, counted
    others, chosen = SearchIndex(tool_search.tools("other_tools")), tool_search.queries("other_queries.tsv")
    hits = await with_model.results(others, embedder, {query.text for query in chosen})
    by_words = tool_search.found(others.search, chosen)
    assert tool_search.found(hits.__getitem__, chosen)["all"] > by_words["all"], "the model finds what words don't"
