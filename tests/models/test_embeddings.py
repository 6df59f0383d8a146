"""The checks of search by meaning, in the environment that has the libraries: see scripts/setup.sh."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("MCP_BRIDGE_LITELLM", ROOT / ".cache/litellm")) / "bin/python"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checks", ["embedding_checks", "embedding_quality_checks"])
def test_search_by_meaning_passes_its_checks_against_the_real_libraries(checks):
    assert PYTHON.exists(), f"there is no {PYTHON}: `make test` makes it"
    path = f"tests/support/extras/{checks}.py"
    argv = [str(PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", path]
    result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
