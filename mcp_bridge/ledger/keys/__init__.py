"""The keys of a ledger: where they are kept, and how they are read and made."""
