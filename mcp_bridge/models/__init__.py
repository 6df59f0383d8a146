"""Language models for `llm` steps and for planning: one small interface, and what stands behind it.

Light to import: a provider's library, which costs seconds, is loaded when a model is first asked.
"""
