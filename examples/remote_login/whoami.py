"""Ask a remote server who has logged in. The code has no token: the host adds it to the request.

Run it with: mcp-bridge --config examples/remote_login/mcp-bridge.toml run examples/remote_login/whoami.py
"""

from mcp.servers import guarded

print("the server knows me as", await guarded.whoami())
