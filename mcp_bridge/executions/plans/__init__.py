"""Plans: the calls that a dry run of a script has listed, and a person's approval of them as a whole."""
