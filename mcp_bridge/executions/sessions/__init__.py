"""Sessions: scripts that run one after the other in one namespace."""
