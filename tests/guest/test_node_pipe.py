"""What is written for a Node that reads nothing blocks nobody, and stays in order."""

import os
import threading
import time

import pytest

from mcp_bridge.guest.javascript.node_pipe import MAX_UNREAD, NodePipe

FRAMES = [bytes([65 + number]) * (200_000 + number) + b"\n" for number in range(5)]
MUCH = b"m" * (MAX_UNREAD + (4 << 20)) + b"\n"
READ = 1 << 20
CAPACITY = 1 << 20
"""At least what the pipe itself holds."""

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


def test_what_is_written_first_comes_before_the_frames_that_have_not_begun(made):
    pipe, frames = made
    pipe.write_first(b"at once\n")
    for frame in FRAMES:
        pipe.write(frame)
    pipe.write_first(b"stop\n")
    assert frames.readline() == b"at once\n"
    assert [frames.readline() for _ in range(len(FRAMES) + 1)] == [FRAMES[0], b"stop\n", *FRAMES[1:]]


def test_small_frames_without_number_are_queued_and_written_in_little_time(made):
    pipe, frames = made
    many = [b"%d\n" % number for number in range(300_000)]
    began = time.monotonic()
    for frame in many:
        pipe.write(frame)
    assert [frames.readline() for _ in many] == many
    assert time.monotonic() - began < SECONDS


def test_who_reads_for_node_waits_for_little_unread_never(made):
    pipe, frames = made
    pipe.write(FRAMES[0])
    pipe.wait()
    assert frames.readline() == FRAMES[0]


def test_who_reads_for_node_waits_while_much_is_unread_and_node_reads(made):
    pipe, frames = made
    pipe.write(MUCH)
    ended = started(pipe.wait)
    left = len(MUCH)
    while left - READ > MAX_UNREAD + CAPACITY:
        left -= len(frames.read(READ))
        assert not ended.is_set()
    while left:
        left -= len(frames.read(min(READ, left)))
    assert ended.wait(SECONDS)


def test_who_reads_for_node_does_not_wait_for_a_node_that_reads_nothing(made, monkeypatch):
    pipe, frames = made
    pipe.write(MUCH)
    pipe.wait()
    with monkeypatch.context() as patched:
        # What it would wait for.
        patched.setattr(pipe, "_less", None)
        pipe.write(MUCH)
        pipe.wait()
    assert frames.readline() == MUCH


def test_nobody_waits_for_a_node_that_has_ended(made):
    pipe, frames = made
    pipe.write(MUCH)
    ended = started(pipe.wait)
    frames.close()
    assert ended.wait(SECONDS)
    pipe.write(MUCH)
    pipe.wait()
