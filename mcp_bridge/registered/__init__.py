"""The operator's own functions as tools: declared, loaded from the configuration, presented as one server, called.

They run in the host and are trusted like the configuration that names them. `declaring` is the decorator, `loading`
imports the modules, `registry` presents the tools as the server `local` and calls them.
"""
