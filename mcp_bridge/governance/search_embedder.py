"""The embedding model that the configuration names for the tool search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.downstream.search.config import is_local

if TYPE_CHECKING:
    from mcp_bridge.downstream.search.config import SearchConfig
    from mcp_bridge.downstream.search.vectors import Embedder


def search_embedder(config: SearchConfig) -> Embedder | None:
    """The model, or None. Nothing of it is loaded before the first search."""
    if config.embeddings is None:
        return None
    from mcp_bridge.models.embeddings import make_embedder  # noqa: PLC0415

    return make_embedder(
        config.embeddings, local=is_local(config.embeddings), base_url=config.base_url, timeout=config.timeout
    )
