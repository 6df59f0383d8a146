"""The operator's files by the command line, by MCP and in a folder that others have made; and one larger than the memory.

`MCP_BRIDGE_TEST_LONG=1` asks for a file of 2 GiB.
"""

import hashlib
import json

import pytest
from crash_fixtures import LONG
from execution_fixtures import Peak, lines

from mcp_bridge.governance.governance import inputs_of, load_governance
from mcp_bridge.settings import Layer
from mcp_bridge.workspace.folder_content import Content

pytestmark = pytest.mark.xdist_group("files")

SIZE = 2 << 30 if LONG else 256 << 20
"""Twice what the sandbox may use, at least, and four times by how much the host may grow."""

LIST = "print([row['name'] for row in runtime.files()])"


def names(ended):
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.decode().replace("'", '"'))


@pytest.fixture
def user(setup, tmp_path):
    """The user's own configuration, with one file; runs commands in a folder."""
    home = tmp_path / "own"
    (home / "mcp-bridge").mkdir(parents=True)
    (tmp_path / "own.txt").write_text("the user's")
    text = setup.config.read_text() + f'\n[files]\nown = "{tmp_path}/own.txt"\n'
    (home / "mcp-bridge/config.toml").write_text(text)

    def run(*arguments, cwd):
        return setup.run(*arguments, config=False, cwd=cwd, env={"XDG_CONFIG_HOME": str(home)})

    return run


def test_a_folders_files_take_part_once_it_is_trusted_and_replace_none_of_the_users(user, tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "data.txt").write_text("the folder's")
    (folder / "mcp-bridge.toml").write_text('[files]\ndata = "data.txt"\nown = "data.txt"\n')
    assert names(user("run", "-c", LIST, cwd=folder)) == ["own"]
    shown = user("trust", "--yes", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert b"files" in shown.stdout
    assert names(user("run", "-c", LIST, cwd=folder)) == ["data", "own"]
    read = "print(open('/workspace/in/own').read(), open('/workspace/in/data').read())"
    assert user("run", "-c", read, cwd=folder).stdout == b"the user's the folder's\n"
    assert names(user("run", "--file", "data", "-c", LIST, cwd=folder)) == ["data"]
    refused = user("run", "--file", "daata", "-c", LIST, cwd=folder)
    assert (refused.returncode, b"unknown_input" in refused.stderr, b"data" in refused.stderr) == (2, True, True)
    (folder / "mcp-bridge.toml").write_text(f'[files]\nelsewhere = "{tmp_path}/own.txt"\n')
    assert names(user("run", "-c", LIST, cwd=folder)) == ["own"]
    assert user("trust", "--yes", cwd=folder).returncode == 0
    refused = user("run", "-c", LIST, cwd=folder)
    assert refused.returncode == 2
    assert b"mcp-bridge.toml, line 2: files.elsewhere leads out of the folder" in refused.stderr


async def test_a_call_narrows_the_files_and_never_widens_them(configure, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    setup = configure()
    setup.config.write_text(setup.config.read_text() + '\n[files]\nalpha = "a"\nbeta = "b"\n')
    async with setup.client() as client:

        async def called(**arguments):
            result = await client.call_tool("run_python", {"code": LIST} | arguments)
            return result.content[0].text

        assert await called() == "['alpha', 'beta']"
        assert await called(files=["beta"]) == "['beta']"
        assert await called(files=[]) == "[]"
        assert "unknown_input" in await called(files=["beta", "/etc/passwd"])
        assert "bad_arguments" in await called(files="beta")
        # What is taken away while it serves is gone; what is added isn't there yet.
        setup.config.write_text(setup.config.read_text().replace('alpha = "a"', 'gamma = "a"'))
        assert (await called()).startswith("['beta']")


def test_two_layers_of_configuration_are_joined(tmp_path):
    folder = tmp_path / "folder"
    layers = (
        Layer(tmp_path / "config.toml", tmp_path, {}, {"files": {"a": "x", "b": "y"}}),
        Layer(
            folder / "mcp-bridge.toml",
            folder,
            {},
            {"files": {"b": "z", "c": "z"}},
            Content(folder / "mcp-bridge.toml", b""),
        ),
    )
    assert {name: str(source.path) for name, source in inputs_of(layers, tmp_path / "state").items()} == {
        "a": f"{tmp_path}/x",
        "b": f"{tmp_path}/y",
        "c": f"{folder}/z",
    }


async def test_a_file_larger_than_the_memory_is_streamed_in_bounded_memory_on_both_sides(sandboxes, tmp_path):
    size, block = SIZE, bytes(range(256)) * 4096
    with (tmp_path / "big").open("wb") as file:
        for _ in range(size // len(block)):
            file.write(block)
    governance = load_governance({"files": {"big": "big"}}, None, tmp_path, tmp_path / "nowhere")
    code = """
import hashlib, resource
whole = hashlib.sha256()
with runtime.open_input("big") as file:
    while part := file.read(1 << 20):
        whole.update(part)
print(file.tell() if not file.closed else "closed", whole.hexdigest())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""
    try:
        async with sandboxes.open(governance=governance, memory=128 << 20) as bridge:
            await bridge.run("1")
            peak = Peak()
            digest, mebibytes = lines(await bridge.run(code, timeout=90))
        whole = hashlib.sha256()
        for _ in range(size // len(block)):
            whole.update(block)
        assert digest == f"closed {whole.hexdigest()}"
        assert int(mebibytes) < 64
        assert peak.growth < 64 << 20
    finally:
        (tmp_path / "big").unlink()
