"""Parts of hostile scripts."""

import json

MEGABYTE = 1 << 20

SENDING = """
import json, os, sys, time
def raw(data):
    view = memoryview(data)
    while view: view = view[os.write(WRITE, view):]
def send(**message): raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")
def stay():
    while True: time.sleep(1)
"""
CHANNEL = (
    """
import os
def fds():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            flags = open(f"/proc/self/fdinfo/{name}").read().split("flags:")[1].split()[0]
        except OSError:
            continue
        if int(name) >= 100: found[int(name)] = int(flags, 8) & 3
    return found
WRITE = next(fd for fd, mode in fds().items() if mode == os.O_WRONLY)
READ = next(fd for fd, mode in fds().items() if mode == os.O_RDONLY)
"""
    + SENDING
)
"""A script's way to the channel's descriptors: they are hidden, not out of reach."""


def on_channel(language, code, before="before"):
    """A script in a language that prints a line, and then has code in Python meddle with the channel.

    In JavaScript, a child does: it inherits Node's own descriptors.
    """
    if language == "python":
        return f"{CHANNEL}\nprint({before!r}, flush=True)\ntime.sleep(0.1)\n{code}"
    child = f"WRITE, READ = 4, 3\n{SENDING}\n{code}"
    return (
        f"console.log({json.dumps(before)});\nawait new Promise((done) => setTimeout(done, 100));\n"
        "require('node:child_process').spawnSync('python3', ['-c', "
        f"{json.dumps(child)}], {{ stdio: ['ignore', 'inherit', 'inherit', 3, 4] }});"
    )


RESOURCES = {
    "a fork bomb": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", {"timeout"}),
    "a fork bomb in C": (
        "import ctypes\nlibc = ctypes.CDLL(None)\nwhile True: libc.fork()",
        {"timeout", "killed", "out_of_memory"},
    ),
    "a thread bomb": (
        "import threading, time\nwhile True:\n    try: threading.Thread(target=time.sleep, args=(99,)).start()\n    except RuntimeError: pass",
        {"timeout", "out_of_memory"},
    ),
    "ten gigabytes": ("x = []\nwhile True: x.append(b'x' * (64 << 20))", {"out_of_memory"}),
    "ten gigabytes in children": (
        "import os\nfor _ in range(4): os.fork()\nx = []\nwhile True: x.append(b'x' * (16 << 20))",
        {"out_of_memory", "error"},
    ),
    "zombies": ("import os\nwhile True:\n    try:\n        if os.fork() == 0: os._exit(0)\n    except OSError: pass", {"timeout"}),
    "orphans": ("import os\nwhile True:\n    try:\n        if os.fork() == 0:\n            os.fork()\n            os._exit(0)\n        os.wait()\n    except OSError: pass", {"timeout"}),
    "every descriptor opened": ("import os\nx = []\nwhile True: x.append(os.open('/dev/null', 0))", {"error"}),
}  # fmt: skip
