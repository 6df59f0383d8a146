"""The `[search]` table of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from mcp_bridge.configured_values import ConfiguredTable, expanded_home

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


_PATHS = ("/", "./", "../", "~")


def is_local(embeddings: str) -> bool:
    """Whether the name of an embedding model is the folder of a local one."""
    return embeddings.startswith(_PATHS)


def _local_or_named(embeddings: str) -> str:
    return str(expanded_home(Path(embeddings))) if embeddings.startswith("~") else embeddings


class SearchConfig(ConfiguredTable):
    """How tools are searched.

    Attributes:
        embeddings: The model that tells what queries and tools mean. A path (it begins with `/`, `./`, `../` or `~`) is
            the folder of a model that runs here; anything else is a LiteLLM name, and that service is sent each query
            and each tool's description.
        base_url: The URL of a server that replaces the LiteLLM provider's.
        timeout: Seconds for one request to the model; a search goes on without it then.
    """

    embeddings: Annotated[
        str | None,
        AfterValidator(_local_or_named),
        Field(min_length=1, max_length=4096, description="Embedding model: a LiteLLM name, or a local model's folder"),
    ] = None
    base_url: Annotated[
        str | None, Field(pattern=r"^https?://[^@\s?#]+$", description="Server that replaces the LiteLLM provider's")
    ] = None
    timeout: Annotated[Seconds, Field(description="How long a search waits for the embedding model")] = 5.0
