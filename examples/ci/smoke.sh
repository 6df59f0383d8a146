#!/bin/sh
# A smoke test for a pipeline: fails when a server that the agents rely on does not answer.
#
#   examples/ci/smoke.sh CONFIG
set -eu
config=$1

mcp-bridge --config "$config" doctor --json >doctor.json

# The script's exit status is the command's: 0, its own, 124 for a time-out, 3 for no working sandbox.
mcp-bridge --config "$config" run --server time --timeout 20 - <<'SCRIPT'
import sys
from mcp.servers import time

now = await time.get_current_time(timezone="UTC")
if now["timezone"] != "UTC":
    sys.exit(f"the time server answered {now}")
print("the time server answers")
SCRIPT

# The whole record, for the pipeline's own checks.
mcp-bridge --config "$config" run --json -c 'print("ok")' >record.json
