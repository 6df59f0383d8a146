"""Where the project is known to differ from its peers here: what is wrong with it, by why the peer refuses.

Each is an error of the project's. A test that holds one of them is expected to fail, and has to be taken out of this
list when it no longer does.
"""

from peers.ledger_peer import RETIRED

DIFFERENCES = {
    RETIRED: "a key that was rotated away or lost still signs what came later",
    "who has cosigned": "only the last checkpoint's cosignatures count, and of any time, 0 and ten years ahead as well",
    "another root of the same size": "a witness answers 409, by tlog-witness it is 422",
    "an empty tree's root": "a witness cosigns any root of an empty tree",
    "monitoring": "a witness tells nobody which checkpoint of a log is its latest",
}
