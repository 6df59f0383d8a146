"""Who reads in a guest: its event loop while only that waits for answers, and otherwise a thread.

In a process of its own, which ends when its host's end is closed, against a host that answers every request.
"""

import subprocess
import sys

import pytest

GUEST = """
import asyncio, os, select, threading, time
from mcp_bridge.guest import channel as module
from mcp_bridge.guest.channel import Channel
from mcp_bridge.wire import jsonrpc
from mcp_bridge.wire.framing import LineDecoder
from mcp_bridge.wire.messages import HostBeat, MemoryList, notification

host_reads, guest_writes = os.pipe()
guest_reads, host_writes = os.pipe()

class Frames:
    marks = 0
    def mark(self):
        self.marks += 1

noticed = threading.Event()
frames = Frames()
channel = Channel(guest_reads, guest_writes, lambda method, params: noticed.set(), frames)
channel.start()
held = threading.Event()
held.set()

def host():
    decoder = LineDecoder()
    while True:
        for line in decoder.feed(os.read(host_reads, 65536)):
            message = jsonrpc.decode(line)
            if isinstance(message, jsonrpc.Request):
                held.wait()
                os.write(host_writes, jsonrpc.encode(jsonrpc.Response(message.id, message.params["prefix"])))

threading.Thread(target=host, daemon=True).start()

async def ask(prefix):
    return await channel.request_async(MemoryList(prefix))

def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)

async def warm():
    # The first answer comes by the thread, which then lets this loop read.
    assert await ask("first") == "first"
    while channel._loop is None:
        await asyncio.sleep(0)
    before = channel._reads
    assert await ask("second") == "second"
    assert channel._reads > before
"""

CASES = {
    "the loop that waits reads": """
asyncio.run(warm())
""",
    "many at once": """
async def main():
    await warm()
    names = [str(number) for number in range(500)]
    assert await asyncio.gather(*map(ask, names)) == names
asyncio.run(main())
""",
    "a blocking request in between": """
async def main():
    for number in range(20):
        await warm()
        assert channel.request(MemoryList(str(number))) == str(number)
asyncio.run(main())
""",
    "a thread that waits while the loop is busy": """
async def main():
    await warm()
    answers = []
    thread = threading.Thread(target=lambda: answers.append(channel.request(MemoryList("thread"))))
    thread.start()
    until(lambda: answers)
    thread.join()
    await warm()
asyncio.run(main())
""",
    "one loop after the other": """
for _ in range(5):
    asyncio.run(warm())
assert channel.request(MemoryList("blocking")) == "blocking"
""",
    "a loop in a thread beside": """
async def main():
    for _ in range(20):
        await warm()
        other = threading.Thread(target=asyncio.run, args=(ask("other"),))
        other.start()
        assert await ask("mine") == "mine"
        while other.is_alive():
            await asyncio.sleep(0)
asyncio.run(main())
""",
    "a busy loop leaves unread what has come": """
module.PARKED_SECONDS = 0.05
async def main():
    await warm()
    os.write(host_writes, jsonrpc.encode(notification(HostBeat())))
    # Without an await: only the thread can read it.
    assert noticed.wait(30)
    await warm()
asyncio.run(main())
""",
    "an answer that comes late": """
module.PARKED_SECONDS = 0.02
async def main():
    await warm()
    held.clear()
    late = asyncio.create_task(ask("late"))
    await asyncio.sleep(0.3)
    assert channel._loop is asyncio.get_running_loop()
    held.set()
    assert await late == "late"
asyncio.run(main())
""",
    "answers that are taken in the loop, which asks for more": """
module.PARKED_SECONDS = 0.02
async def main():
    await warm()
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    taken = []
    def ask_more():
        # More than a pipe holds: the host reads no further while nobody reads its answers.
        channel.send(MemoryList("x" * 100_000), module.InLoop(loop, take))
    def take(answer):
        taken.append(threading.get_ident())
        if len(taken) <= 90:
            ask_more()
        if len(taken) == 100:
            ended.set_result(None)
    for _ in range(10):
        ask_more()
    await ended
    assert set(taken) == {threading.get_ident()}
asyncio.run(main())
""",
    "a loop that is told of what the thread has read since": """
async def main():
    await warm()
    loop = asyncio.get_running_loop()
    held.clear()
    late = asyncio.create_task(ask("late"))
    await asyncio.sleep(0)
    def thread_reads():
        # Before the loop's reader is called, which is due in this turn of the loop.
        channel._take_back()
        until(lambda: channel._loop is loop)
    held.set()
    until(lambda: select.select([guest_reads], [], [], 0)[0])
    loop.call_soon(thread_reads)
    assert await late == "late"
    await warm()
asyncio.run(main())
""",
    "a loop that is closed": """
module.PARKED_SECONDS = 0.05
asyncio.run(warm())
os.write(host_writes, jsonrpc.encode(notification(HostBeat())))
assert noticed.wait(30)
""",
    "a request that is cancelled": """
async def main():
    await warm()
    held.clear()
    task = asyncio.create_task(ask("never"))
    await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    held.set()
    await warm()
asyncio.run(main())
""",
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_answer_reaches_whoever_waits_for_it(case):
    code = f"{GUEST}{case}\nassert frames.marks\nos._exit(0)\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
