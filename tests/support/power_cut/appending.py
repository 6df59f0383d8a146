"""A workload for power cuts, and for several bridges at once: writers that append to one ledger.

    python appending.py DIRECTORY NAME WRITERS ENTRIES [ROTATIONS [PARTIES]]

The ledger is DIRECTORY/state, made if need be. Of several PARTIES each waits until all are there. What has been acknowledged goes to DIRECTORY/acknowledged, a line of JSON
each: `["entry", execution, number]`, `["execution", id]`, `["key", vkey]`.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from mcp_bridge.ledger.admin.key_rotation import rotate_key
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.private_files import private_directory


def payload(execution, number):
    """What an entry holds: of a few bytes to a few pages."""
    return {"number": number, "text": f"{execution} {number} " * (number * 37 % 300)}


def execution_of(name):
    return StoredExecution(
        id=name,
        kind="program",
        principal="local",
        key=name,
        request="r",
        status="running",
        program="p",
        bundle={"program": name},
        origin="agent",
        owner="o",
        state=name.encode(),
        record=None,
        due=None,
        started=time.time(),
    )


async def write(database, name, entries, acknowledge):
    recorder, store = SqliteRecorder(database), ProgramStore(database)
    assert await store.add(execution_of(name), {"ref": f"value of {name}"}, Entry("start", name, payload(name, 0)))
    acknowledge("execution", name)
    acknowledge("entry", name, 0)
    for number in range(1, entries, 2):
        # One that waits for no disk, and one that does.
        recorder.post(Entry("outcome", name, payload(name, number)))
        await recorder.append(Entry("intent", name, payload(name, number + 1)))
        acknowledge("entry", name, number)
        acknowledge("entry", name, number + 1)
    await store.update(name, status="success", state=None, record={"of": name}, due=None)
    acknowledge("end", name)


async def main(directory, name, writers, entries, rotations=0):
    told = os.open(directory / "acknowledged", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def acknowledge(*words):
        os.write(told, (json.dumps(words) + "\n").encode())

    state = private_directory(directory / "state", durable=True)
    async with Database(state / FILE_NAME) as database, asyncio.TaskGroup() as tasks:
        for number in range(writers):
            tasks.create_task(write(database, f"{name}{number}", entries, acknowledge))
        for _ in range(rotations):
            acknowledge("key", await rotate_key(database))
            await asyncio.sleep(0.01)


def wait_for_others(directory, name, parties):
    (directory / f"ready {name}").touch()
    while len(list(directory.glob("ready *"))) < parties:
        time.sleep(0.001)


if __name__ == "__main__":
    directory, name, *numbers = sys.argv[1:]
    if len(numbers) > 3:
        wait_for_others(Path(directory), name, int(numbers.pop()))
    asyncio.run(main(Path(directory).resolve(), name, *map(int, numbers)))
