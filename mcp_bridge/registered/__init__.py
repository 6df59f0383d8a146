"""The operator's own functions as tools: declared, loaded from the configuration, listed as one server, called.

They run in the host process and are as trusted as the configuration that names them. `declaring` is the decorator,
`loading` imports the modules, and `registry` lists the tools as the server `local` and calls them.
"""
