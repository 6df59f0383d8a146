"""Embedding models: vectors of texts by LiteLLM (extra `litellm`), or by a local static model (extra `embeddings`).

A local model is a folder that model2vec has saved: `config.json`, `tokenizer.json`, `model.safetensors`. Nothing is
fetched.
"""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from mcp_bridge.errors import extra_hint
from mcp_bridge.models.litellm_adapter import load_library, provider_message
from mcp_bridge.models.model import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FILES = ("config.json", "tokenizer.json", "model.safetensors")

# Texts of one request: services have a limit each, and this is under all of them.
_BATCH = 64

# LiteLLM takes seconds to load. It goes on with that after a search that has waited for so long.
_LOAD_SECONDS = 10.0

# Texts for a local model at once, which takes less than a tenth of a second.
_LOCAL_BATCH = 1_000


def make_embedder(name: str, *, local: bool, base_url: str | None, timeout: float) -> LocalEmbedder | LiteLLMEmbedder:
    """The embedding model of a name. This is cheap: what it needs is loaded by the first request.

    Args:
        name: A folder, or a LiteLLM name (`openai/text-embedding-3-small`).
        local: Whether it is a folder.
        base_url: The URL of a server that replaces the LiteLLM provider's.
        timeout: Seconds for one request; a local model's first one loads it.
    """
    if local:
        return LocalEmbedder(Path(name), timeout)
    return LiteLLMEmbedder(name, base_url, timeout)


class LocalEmbedder:
    """A static model in a folder.

    Attributes:
        name: The folder, and the size and time of the model's file.
    """

    def __init__(self, folder: Path, timeout: float) -> None:
        self._folder = folder
        self._timeout = timeout
        self._model: Any = None
        # It is loaded once, and one thread at a time uses it: each use changes the state of its tokenizer.
        self._lock = threading.Lock()
        try:
            status = (folder / _FILES[-1]).stat()
            self.name = f"{folder}:{status.st_size}:{status.st_mtime_ns}"
        except OSError:
            self.name = str(folder)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text.

        Raises:
            ModelError: `model_unavailable`: there is no such model, or the library isn't installed; `model_timeout`: it
                isn't loaded yet; `model_failed`: its files don't fit each other.
        """
        vectors: list[list[float]] = []
        for start in range(0, len(texts), _LOCAL_BATCH):
            batch = list(texts[start : start + _LOCAL_BATCH])
            with anyio.move_on_after(self._timeout) as scope:
                # A thread that is left behind goes on to load the model, for a later search.
                vectors += await anyio.to_thread.run_sync(self._embed, batch, abandon_on_cancel=True)
            if scope.cancelled_caught:
                raise _timeout_error(self._timeout)
        return vectors

    def _embed(self, texts: list[str]) -> list[list[float]]:
        # However often it is asked meanwhile, few threads wait for one that hangs.
        if not self._lock.acquire(timeout=self._timeout):
            raise _timeout_error(self._timeout)
        try:
            if self._model is None:
                self._model = _local_model(self._folder)
            # Threads of the library's own would take the whole machine.
            vectors: list[list[float]] = self._model.encode(texts, use_multiprocessing=False).tolist()
        except ModelError:
            raise
        except Exception as exc:  # noqa: BLE001 - as of `_local_model`
            message = f"The embedding model in {self._folder} failed: {str(exc)[:500]}."
            raise ModelError("model_failed", message, hint="Save the model again with model2vec.") from None
        finally:
            self._lock.release()
        return vectors


def _local_model(folder: Path) -> Any:
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            "model_unavailable",
            f"{folder} is no embedding model: it has no {' and no '.join(missing)}.",
            hint="Write the folder of a model that model2vec has saved into embeddings in [search].",
        )
    try:
        library = importlib.import_module("model2vec")
    except ImportError:
        raise ModelError(
            "model_unavailable",
            "The model2vec library isn't installed.",
            hint=extra_hint("embeddings"),
        ) from None
    try:
        return library.StaticModel.from_pretrained(folder)
    except Exception as exc:  # noqa: BLE001 - the libraries beneath raise whatever a file makes them raise
        message = f"The embedding model in {folder} can't be loaded: {str(exc)[:500]}."
        raise ModelError("model_unavailable", message) from None


class LiteLLMEmbedder:
    """A model with a LiteLLM name; its key is in the provider's environment variable.

    Attributes:
        name: The model's name and server.
    """

    def __init__(self, model: str, base_url: str | None, timeout: float) -> None:
        self._model = model
        self._base_url = base_url
        self._timeout = timeout
        self.name = f"{model}@{base_url or ''}"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text.

        Raises:
            ModelError: `model_unavailable`, `model_timeout`, `model_failed`, `model_bad_answer`.
        """
        with anyio.move_on_after(_LOAD_SECONDS) as scope:
            library = await anyio.to_thread.run_sync(load_library, abandon_on_cancel=True)
        if scope.cancelled_caught:
            raise ModelError("model_timeout", "LiteLLM isn't loaded yet.", hint="Search again in a while.")
        vectors: list[list[float]] = []
        for start in range(0, len(texts), _BATCH):
            batch = list(texts[start : start + _BATCH])
            answer = await self._ask(library, batch)
            if isinstance(answer, ModelError):
                raise answer
            vectors += _vectors(answer, len(batch))
        return vectors

    async def _ask(self, library: Any, texts: list[str]) -> Any:
        """The library's response, or an error for the caller to raise: see `LiteLLMModel`."""
        try:
            with anyio.move_on_after(self._timeout):
                return await library.aembedding(
                    model=self._model,
                    input=texts,
                    timeout=self._timeout,
                    api_base=self._base_url,
                    encoding_format="float",
                    max_retries=0,
                    num_retries=0,
                )
            failure = _timeout_error(self._timeout)
        except library.Timeout:
            failure = _timeout_error(self._timeout)
        except Exception as exc:  # noqa: BLE001 - the library raises whatever a provider's answer makes it raise
            message = f"The embedding model {self._model!r} failed: {provider_message(exc, None)}"
            failure = ModelError("model_failed", message, hint="Check embeddings and base_url in [search].")
        return failure.with_traceback(None)


def _timeout_error(seconds: float) -> ModelError:
    message = f"The embedding model didn't answer within {seconds:g} s."
    return ModelError("model_timeout", message, hint="Raise timeout in [search].")


def _vectors(answer: Any, count: int) -> list[list[float]]:
    """The vectors of an answer, in the order of the texts."""
    rows = getattr(answer, "data", None)
    found: list[list[float]] = []
    for row in rows if isinstance(rows, list) else []:
        vector = row.get("embedding") if isinstance(row, dict) else getattr(row, "embedding", None)
        if isinstance(vector, list) and vector and all(type(value) in {int, float} for value in vector):
            found.append(vector)
    if len(found) != count:
        raise ModelError("model_bad_answer", f"The embedding model gave {len(found)} vectors for {count} texts.")
    return found
