"""Records a new history. Those that are recorded already are never written again.

    PYTHONPATH=tests/support:tests .venv/bin/python -m golden.record tests/golden/NAME.json…

Such a file has `about`, `program`, `context`, `events`, and `uses` where the program runs others by name: pairs of name
and program, innermost first. An event is `{"event": "outcome", "effect": 1, "status": "ok", "value": …}`, or a `resume`,
`cancel` or `redo`, with the fields of `mcp_bridge.kernel.events`; with `"refused": CODE` it is one that the machine refuses.
This adds `states`: SHA-256 and bytes of the state at the start and after each event. Look at them before you commit.
"""

import json
import sys
from pathlib import Path

from golden.replay import read, recorded, states_of


def record(path):
    """Add the states to a history.

    Raises:
        ValueError: It has them already, or the machine refuses an event.
    """
    history = read(path)
    if "states" in history:
        raise ValueError(f"{path} is recorded: a state that has changed is a fault, or wants a history of its own")
    history["states"] = [recorded(data) for data in states_of(history)]
    path.write_text(json.dumps(history, indent=1) + "\n", encoding="utf-8")


def main():
    if not sys.argv[1:]:
        print(__doc__)
        return 2
    for name in sys.argv[1:]:
        try:
            record(Path(name))
        except ValueError as exc:
            print(exc, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
