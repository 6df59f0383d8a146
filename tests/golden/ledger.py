"""How `ledger-0.1.0.zip` was made: a state directory as version 0.1.0 left it, with an export and a proof of then.

It is kept so that every later version is seen to read it; it is never made again. It was made by 0.1.0's own code, the commit
75a7ac7, with its own `tests/support/tampered_fixtures.py` (a small ledger with something of everything):

    mkdir old && git archive 75a7ac7 mcp_bridge tests | tar x -C old
    cp tests/golden/ledger.py old && cd old && PYTHONPATH=.:tests/support python ledger.py ../ledger-0.1.0.zip

Its keys are in it, and were never anybody's.
"""

import asyncio
import sys
import tempfile
import zipfile
from pathlib import Path


async def more(path):
    """What a script has read twice, and programs that have ended or wait."""
    from tampered_fixtures import ENDED, Writer

    from mcp_bridge.ledger.log.entries import Entry
    from mcp_bridge.ledger.storage.database import Database

    async with Database(path) as database:
        writer = Writer(database)
        for number in range(2):
            value = {"found": True, "value": "SECRET " * 1000}
            await writer.recorder.append(
                Entry("outcome", ENDED, {"call": f"0#{number}", "status": "ok", "value": value})
            )


def make(target):
    """Make the directory and put it into a file."""
    from tampered_fixtures import build

    from mcp_bridge import __version__
    from mcp_bridge.ledger.audit import copies, proving
    from mcp_bridge.ledger.log.reading import open_ledger
    from mcp_bridge.ledger.storage.sealing import MasterKey

    assert __version__ == "0.1.0", __version__
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = asyncio.run(build(folder))
        asyncio.run(more(kept.path))
        master = MasterKey((folder / "master.key").read_bytes())
        with open_ledger(kept.path, master) as ledger:
            with (folder / "export.jsonl").open("wb") as file:
                copies.export(ledger, file, payloads=True)
            (folder / "entry-5.tlog-proof").write_bytes(proving.prove(ledger, 5, payload=True))
            (folder / "vkey").write_text(ledger.vkey)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA) as archive:
            for path in sorted(folder.iterdir()):
                if path.suffix != ".copy":
                    archive.write(path, path.name)


if __name__ == "__main__":
    make(sys.argv[1])
