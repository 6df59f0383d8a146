"""Secrets and sensitive values: where they are kept, and what stands for them."""
