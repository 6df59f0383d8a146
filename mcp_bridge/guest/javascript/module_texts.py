"""Our modules in JavaScript, as texts. `host/guest_bundle` fills them in: the container has no files of ours."""

BOOT = ""
"""The text of `node -e`."""

MODULES: dict[str, str] = {}
"""The other modules, by name."""
