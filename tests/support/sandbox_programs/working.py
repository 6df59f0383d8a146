"""Runs inside a sandbox: everything of the standard library that has to work there. Prints one JSON object."""

# The plain calls are what is being tried.
# ruff: noqa: BLE001, PLW1510, PTH211

import asyncio
import concurrent.futures
import ctypes
import json
import mmap
import multiprocessing
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from multiprocessing.shared_memory import SharedMemory


def square(number):
    return number * number


def put(queue, lock):
    with lock:
        queue.put("put")


def threads():
    found = []
    running = [threading.Thread(target=found.append, args=(number,)) for number in range(20)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sorted(found) == list(range(20))


def thread_pool():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return list(pool.map(square, range(4)))


def process_pool():
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        return list(pool.map(square, range(4)))


def processes(method):
    context = multiprocessing.get_context(method)
    lock, queue = context.Lock(), context.SimpleQueue()
    process = context.Process(target=put, args=(queue, lock))
    process.start()
    said = queue.get()
    process.join()
    with context.Pool(2) as pool:
        squares = pool.map(square, range(4))
    return [said, squares, context.Value("i", 7).value]


def shared_memory():
    block = SharedMemory(create=True, size=100_000)
    block.buf[:3] = b"abc"
    other = SharedMemory(block.name)
    found = bytes(other.buf[:3]).decode()
    other.close()
    block.close()
    block.unlink()
    return found


def sub_process():
    result = subprocess.run([sys.executable, "-c", "print(input() * 2)"], input="ab\n", capture_output=True, text=True)
    return [result.stdout, result.returncode]


async def loop():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(8)", stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()

    async def serve(_, writer):
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_unix_server(serve, "/tmp/socket")
    reader, writer = await asyncio.open_unix_connection("/tmp/socket")
    said = await reader.read()
    writer.close()
    server.close()
    return [output.decode(), said.decode(), await asyncio.to_thread(square, 3)]


def database():
    with sqlite3.connect("/workspace/data.db") as connection:
        mode = connection.execute("pragma journal_mode=wal").fetchone()[0]
        connection.execute("create table t (a)")
        connection.executemany("insert into t values (?)", [(number,) for number in range(1000)])
    return [mode, connection.execute("select sum(a) from t").fetchone()[0]]


def files():
    with tempfile.TemporaryDirectory() as directory:
        os.mkfifo(f"{directory}/fifo")
        shutil.copytree("/etc", f"{directory}/etc", ignore_dangling_symlinks=True, symlinks=True)
        os.symlink("x", f"{directory}/link")
        os.link("/workspace/data.db", "/workspace/data-2.db")
    with tempfile.TemporaryFile() as file:
        file.truncate(8192)
        with mmap.mmap(file.fileno(), 8192) as memory:
            memory[:2] = b"ab"
            return memory[:2].decode()


def signals():
    got = []
    signal.signal(signal.SIGALRM, lambda *_: got.append("alarm"))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(0.05)
    return got


def network_errors():
    """A library without a network must fail with an ordinary error, and at once."""
    begin = time.monotonic()
    try:
        socket.create_connection(("example.org", 80), timeout=5)
    except OSError as error:
        return [type(error).__name__, time.monotonic() - begin < 2]


def callback():
    return ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 5)()


def pseudo_terminal():
    primary, secondary = os.openpty()
    os.write(secondary, b"x")
    return os.read(primary, 1).decode()


def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(4)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    report = {}
    for name, call in {
        "threads": threads,
        "thread pool": thread_pool,
        "process pool": process_pool,
        "processes by fork": lambda: processes("fork"),
        "processes by spawn": lambda: processes("spawn"),
        "processes by fork server": lambda: processes("forkserver"),
        "shared memory": shared_memory,
        "subprocess": sub_process,
        "asyncio": lambda: asyncio.run(loop()),
        "sqlite": database,
        "files": files,
        "signals": signals,
        "no network": network_errors,
        "callback": callback,
        "terminal": pseudo_terminal,
        "fork": fork,
        "random": lambda: len({uuid.uuid4(), os.urandom(16)}),
        "affinity": lambda: len(os.sched_getaffinity(0)) > 0,
    }.items():
        try:
            report[name] = call()
        except BaseException as error:
            report[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(report))
