"""The folder in which the bridge is started: the files that come with it, and whether the user has trusted them."""
