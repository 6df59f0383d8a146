"""The language of programs: their format, conditions and references. A program is parsed from untrusted data."""
