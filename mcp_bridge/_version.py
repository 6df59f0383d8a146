"""The version, the single source for the build and the program."""

__version__ = "0.1.0"
