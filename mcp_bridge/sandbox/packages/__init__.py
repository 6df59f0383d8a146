"""Packages that scripts ask for: the operator's list of them, their exact sets, and the cache that has them."""
