"""The packages of running scripts."""
