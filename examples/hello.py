"""The smallest script. Run it with: mcp-bridge run examples/hello.py"""

import sys

print(f"hello from Python {sys.version_info.major}.{sys.version_info.minor}")
{"answer": 6 * 7}
