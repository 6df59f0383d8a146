"""Which servers there are: configuration files of the bridge and of clients."""
