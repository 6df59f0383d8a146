"""A workload for power cuts: artifacts and memories, which are files beside the ledger.

python keeping.py DIRECTORY NUMBER
"""

import json
import sys
from pathlib import Path

from mcp_bridge.executions.artifacts import ArtifactWriter, Files
from mcp_bridge.executions.memories import Memories
from mcp_bridge.private_files import private_directory


def content(number):
    return f"{number} ".encode() * 3000


def main(directory, count):
    state = private_directory(directory / "state", durable=True)
    files, memories = Files(state), Memories(state)
    with (directory / "acknowledged").open("w", buffering=1) as told:
        for number in range(count):
            execution = f"{number:016x}"
            artifacts = ArtifactWriter(files, execution, 1 << 20)
            for name in ("a", "b"):
                artifacts.write(name, content(number)[:5000], first=True, last=False)
                artifacts.write(name, content(number)[5000:], first=False, last=True)
            artifacts.sync()
            told.write(json.dumps(["artifact", execution, number]) + "\n")
            memories.save("same", {"number": number}, update=False)
            memories.save(f"m{number}", number, update=False)
            told.write(json.dumps(["memory", number]) + "\n")
            if number % 2:
                memories.delete(f"m{number - 1}")
                told.write(json.dumps(["forgotten", number - 1]) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]))
