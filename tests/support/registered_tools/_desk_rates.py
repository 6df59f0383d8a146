"""A helper of its neighbour: begins with _, so that it isn't loaded as a module of tools."""

RATES = {"EUR": 1.0, "USD": 0.5}
