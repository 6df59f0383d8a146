#!/bin/sh
# A session that outlives its processes: each command here is a process and a container of its own.
# What it computed, drew at random and was told by a server, it has again; what it did, it does once.
#
#   examples/sessions/survive.sh CONFIG
set -eu
config=$1

bridge() { mcp-bridge --config "$config" "$@"; }
cell() { bridge run --session survivor "$@"; }

cell -c '
import random
from mcp.servers import time

drawn = [random.randint(1, 1000) for _ in range(3)]
asked = (await time.get_current_time(timezone="Europe/Oslo"))["datetime"]

def report():
    return f"drawn {drawn}, asked at {asked}"

print(report())'

# Another process: the session is rebuilt from its record. The server of the time is not asked again.
cell -c 'print(report())'

# A cell that ends its interpreter leaves nothing behind, and the session is what it was before.
cell -c 'drawn.clear(); import os; os._exit(1)' || true
cell -c 'print(report())'

# A second session goes on from the first cell, and goes its own way.
bridge run --session fork --fork survivor@1 -c 'drawn.append(0); print(report())'

bridge session show survivor
bridge session end survivor
bridge session end fork
