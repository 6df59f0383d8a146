#!/usr/bin/env bash
# Runs pytest with these arguments, in the environment of scripts/environment.sh.
#
# Where CI is set, tests that fail are tried once more, alone, if they are few. One that fails beside others and passes
# alone has a fault of its own, which is named here to be mended; it says nothing against the change that is tried. Where
# many fail, it is the change after all.
set -uo pipefail
few=3

.venv/bin/python -m pytest "$@"
status=$?
[ "$status" = 1 ] && [ "${CI:-}" = true ] || exit "$status"

.venv/bin/python - .pytest_cache/v/cache/lastfailed "$few" <<'EOF_PYTHON' || exit 1
import json, pathlib, sys
path = pathlib.Path(sys.argv[1])
failed = json.loads(path.read_text()) if path.exists() else []
print("\n=== failed at first:", *failed, sep="\n    ", flush=True)
sys.exit(not 0 < len(failed) <= int(sys.argv[2]))
EOF_PYTHON
.venv/bin/python -m pytest "$@" -n 0 --last-failed --last-failed-no-failures none || exit
echo "=== unsteady: what failed at first passes by itself; mend it"
