"""The tool search with a real embedding model, in the environment that has model2vec (`.cache/litellm`).

The model is that of PyPI's `wordllama` (MIT): 256 numbers for each of 32,000 tokens, trained on pairs of sentences. Its two files
are saved as model2vec saves a model, and nothing of it is changed: its makers had never heard of these tools or queries.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.downstream.search.meaning_search import MeaningSearch
from mcp_bridge.downstream.search.vectors import FUSION_CANDIDATES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_bridge.downstream.search.search import Hit, SearchIndex
    from mcp_bridge.downstream.search.vectors import Embedder

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(os.environ.get("MCP_BRIDGE_EMBEDDING_MODEL", ROOT / ".cache/embedding-model")) / "wordllama"


def save_model(folder: Path) -> None:
    """Save the model as `[search] embeddings` takes one.

    Raises:
        RuntimeError: It isn't installed.
    """
    from model2vec import StaticModel
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    if not PACKAGE.exists():
        raise RuntimeError(f"there is no {PACKAGE}: `make test` makes it")
    [vectors] = load_file(PACKAGE / "weights/l2_supercat_256.safetensors").values()
    tokenizer = Tokenizer.from_file(str(PACKAGE / "tokenizers/l2_supercat_tokenizer_config.json"))
    StaticModel(vectors=vectors, tokenizer=tokenizer, normalize=True).save_pretrained(str(folder))


async def results(index: SearchIndex, embedder: Embedder, texts: Iterable[str]) -> dict[str, list[Hit]]:
    """What each query finds, by words and by meaning, best first: as `Catalog.search` does."""
    found = {}
    async with anyio.create_task_group() as tasks:
        meaning = MeaningSearch(embedder, None, tasks.start_soon)
        for text in texts:
            near, notice = await meaning.ranking(text, index.tools, lambda _: True)
            if notice is not None:
                raise RuntimeError(notice)
            found[text] = index.fused(index.search(text, FUSION_CANDIDATES), near)
    return found


if __name__ == "__main__":
    save_model(Path(sys.argv[1]))
