"""Which tools there are: listings, search, descriptions, arguments, results."""
