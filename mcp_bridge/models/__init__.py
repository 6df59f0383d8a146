"""Language models for `llm` steps and for planning: a small interface and its implementations.

This package is light to import: a provider's library takes seconds, so it is loaded on first use.
"""
