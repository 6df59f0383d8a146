"""The files of memories, as somebody else may have left them."""

import json
import os

import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.memories import Memories


@pytest.mark.parametrize("odd", ["link", "fifo", "folder", "larger than any"])
def test_what_is_no_regular_file_is_no_memory_and_nobody_waits_for_it(tmp_path, odd):
    memories = Memories(tmp_path, "local")
    memories.save("a", 1, update=False)
    (file,) = (tmp_path / "memory").glob("*.json")
    file.unlink()
    match odd:
        case "link":
            (tmp_path / "elsewhere").write_text(json.dumps({"key": "a", "value": "secret"}))
            file.symlink_to(tmp_path / "elsewhere")
        case "fifo":
            os.mkfifo(file)
        case "larger than any":
            file.touch()
            os.truncate(file, 1 << 40)
        case _:
            file.mkdir()
    with pytest.raises(BridgeError, match="damaged"):
        memories.load("a")
    assert memories.keys("") == []
