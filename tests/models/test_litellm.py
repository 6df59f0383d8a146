"""The checks of the LiteLLM adapter, in the environment that has LiteLLM: see scripts/setup.sh."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("MCP_BRIDGE_LITELLM", ROOT / ".cache/litellm")) / "bin/python"


@pytest.mark.timeout(900)
def test_the_adapter_passes_its_checks_against_the_real_library():
    assert PYTHON.exists(), f"there is no {PYTHON}: `make test` makes it"
    # That environment has what runs the adapter, and nothing of what the other tests' fixtures need.
    argv = [
        str(PYTHON),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "tests/support/extras/litellm_checks.py",
    ]
    result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=880, check=False)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
