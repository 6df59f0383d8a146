"""What is written for a Node that reads nothing blocks nobody, and stays in order."""

import os
import threading

import pytest

from mcp_bridge.guest.javascript.node_pipe import NodePipe

FRAMES = [bytes([65 + number]) * (200_000 + number) + b"\n" for number in range(5)]
SECONDS = 30


@pytest.fixture
def made():
    """The pipe, and the end that Node reads."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as frames:
        yield NodePipe(writer), frames
    # Its thread waits for what there is to write, and ends with the process.


def started(work):
    ended = threading.Event()

    def run():
        work()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    return ended


def test_who_writes_is_not_blocked_and_all_arrives_in_order(made):
    pipe, frames = made
    for frame in FRAMES:
        pipe.write(frame)
    pipe.write(b"last\n")
    assert [frames.readline() for _ in FRAMES] == FRAMES
    assert frames.readline() == b"last\n"
    # What comes after that, too.
    pipe.write(FRAMES[0])
    assert frames.readline() == FRAMES[0]


def test_who_reads_for_node_waits_until_it_has_read(made):
    pipe, frames = made
    pipe.write(FRAMES[0])
    ended = started(pipe.wait)
    assert not ended.wait(0.05)
    assert frames.readline() == FRAMES[0]
    assert ended.wait(SECONDS)


def test_who_reads_for_node_does_not_wait_while_node_awaits_an_answer(made):
    pipe, frames = made
    pipe.write(FRAMES[0])
    ended = started(pipe.wait)
    pipe.node_awaits(answer=True)
    assert ended.wait(SECONDS)
    pipe.write(FRAMES[1])
    pipe.wait()
    pipe.node_awaits(answer=False)
    ended = started(pipe.wait)
    assert not ended.wait(0.05)
    assert [frames.readline(), frames.readline()] == FRAMES[:2]
    assert ended.wait(SECONDS)


def test_nobody_waits_for_a_node_that_has_ended(made):
    pipe, frames = made
    pipe.write(FRAMES[0])
    ended = started(pipe.wait)
    frames.close()
    assert ended.wait(SECONDS)
    pipe.write(FRAMES[1])
    pipe.wait()
