"""The script's text, and the name that reports of Python give it."""

FILENAME = "<script>"


class Source:
    """The script's text, as a module's loader gives it."""

    def __init__(self, code: str) -> None:
        self.code = code

    def get_source(self, name: str) -> str:  # noqa: ARG002
        """The text."""
        return self.code

    def give_to_linecache(self) -> None:
        """For tracebacks and `inspect`: linecache asks no loader about a name in angle brackets."""
        import linecache

        # Every line with its end, the last too: tracebacks place their carets by it.
        lines = [line + "\n" for line in self.code.split("\n")]
        linecache.cache[FILENAME] = (len(self.code), None, lines, FILENAME)
