"""What masking tells whoever guesses: of a secret that can be guessed it may tell nothing."""

import textwrap
import uuid

import pytest
from execution_fixtures import printed

from mcp_bridge.governance.governance import load_governance

pytestmark = pytest.mark.timeout(120)

PIN = "482913"
KEY = "Zq9!kQ7t-41xw"

TOOLS = """
import mcp_bridge

@mcp_bridge.tool
def echo(text: str) -> str:
    return text

@mcp_bridge.tool
def fail(text: str) -> str:
    raise ValueError(text)

@mcp_bridge.tool
def unlock(pin: str) -> bool:
    return pin == "482913"
"""

ORACLES = """
from mcp import programs, runtime
from mcp.servers import local
guesses = " ".join(f"{n:06}" for n in range(482_000, 484_000))
print(guesses)                                   # the answer to the client
import sys; print(guesses, file=sys.stderr)
told = [await local.echo(text=guesses)]          # a result
try:
    await local.fail(text=guesses)
except Exception as exc:
    told.append(str(exc))                        # an error
trace = await programs.run(
    {"steps": [{"id": "a", "type": "tool", "tool": "echo", "args": {"text": "$text"}}]}, {"text": guesses}
)
told.append(str(trace.output))                   # a context, and what is given of it
await runtime.save_memory("guesses", guesses)
told.append(await runtime.load_memory("guesses"))
told.append(str(await runtime.search("echo")))
told.append(str([n for n in range(482_000, 484_000)]))
print(sum("vault://" in text for text in told))
try:
    print(await local.unlock(pin="vault://secret/pin"))
except Exception as exc:
    print(exc.code)
[guesses, {guesses: 482913}]                     # the last expression
"""


def _governance(folder, state, secret, value, monkeypatch):
    (folder / "tools").mkdir()
    (folder / "tools" / f"desk_{uuid.uuid4().hex}.py").write_text(textwrap.dedent(TOOLS))
    monkeypatch.setenv("GUESSED", value)
    tables = {
        "tools": {"path": ["tools"], "entry_points": False},
        "secrets": {"pin": {"env": "GUESSED", "tools": ["local.unlock"], **secret}},
    }
    return load_governance(tables, None, folder, state)


@pytest.mark.parametrize(
    ("secret", "unlocked"), [({}, "secret_missing"), ({"masked": False}, "True")], ids=["masked", "not masked"]
)
async def test_no_way_of_having_text_masked_tells_a_secret_that_can_be_guessed(
    sandboxes, tmp_path, monkeypatch, secret, unlocked
):
    governance = _governance(tmp_path, sandboxes.settings.state_dir, secret, PIN, monkeypatch)
    async with sandboxes.open(governance=governance, state_dir=tmp_path / "state") as bridge:
        record = await bridge.run(ORACLES, timeout=60)
        assert printed(record).splitlines()[1:] == ["0", unlocked]
        assert "vault://" not in str([record.stdout, record.stderr, record.value, record.displays])
        (row,) = governance.vault.status()
        assert (row.problem is None) == bool(secret)


async def test_a_secret_that_takes_years_to_guess_is_masked_as_before(sandboxes, tmp_path, monkeypatch):
    governance = _governance(tmp_path, sandboxes.settings.state_dir, {}, KEY, monkeypatch)
    async with sandboxes.open(governance=governance, state_dir=tmp_path / "state") as bridge:
        code = f"from mcp.servers import local\nprint(await local.echo(text={KEY!r}))"
        assert printed(await bridge.run(code)) == "vault://secret/pin\n"
