"""Where the project is known to differ from its peers here: what is wrong with it, by why the peer refuses.

Each is an error of the project's. A test that holds one of them is expected to fail, and has to be taken out of this
list when it no longer does.
"""

DIFFERENCES: dict[str, str] = {}
