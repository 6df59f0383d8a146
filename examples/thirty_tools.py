"""Thirty calls at once, to whatever servers are there: everything, time and filesystem.

Run it with those three configured: mcp-bridge run examples/thirty_tools.py
"""

import asyncio

from mcp.servers import everything, filesystem, time

root = (await filesystem.list_allowed_directories())["content"].splitlines()[-1]
zones = ["UTC", "Europe/Oslo", "America/New_York", "Asia/Tokyo", "Africa/Nairobi", "Australia/Sydney"]

calls = [time.get_current_time(timezone=zone) for zone in zones]
calls += [time.convert_time("Europe/Oslo", "12:00", zone) for zone in zones]
calls += [everything.get_sum(a=number, b=number) for number in range(8)]
calls += [everything.echo(message=f"message {number}") for number in range(6)]
calls += [
    filesystem.list_directory(path=root),
    filesystem.directory_tree(path=root),
    filesystem.get_file_info(path=root),
    filesystem.list_allowed_directories(),
]
results = await asyncio.gather(*calls)

print(f"{len(results)} results")
print(", ".join(result["datetime"][11:16] for result in results[:6]))
print(sum(int(result.split()[-1].rstrip(".")) for result in results[12:20]))
print(results[20:26] == [f"Echo: message {number}" for number in range(6)])
