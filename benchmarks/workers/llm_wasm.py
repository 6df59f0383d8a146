"""llm-wasm-sandbox, in its own environment: a new sandbox a call, whose files are beside the worker's."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from sandbox import RuntimeType, create_sandbox  # type: ignore[import-not-found]  # not in ours

from benchmarks.workers import work


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    # It logs on standard output, which is for the answers.
    with contextlib.redirect_stdout(sys.stderr):
        began = time.perf_counter()
        result = create_sandbox(runtime=RuntimeType.PYTHON).execute(asked["code"])
        return {"seconds": time.perf_counter() - began, "success": result.success}


if __name__ == "__main__":
    work.serve(answer)
