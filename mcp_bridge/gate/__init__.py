"""Every call to the outside passes here: it is decided, asked about, and made."""
