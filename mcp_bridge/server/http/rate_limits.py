"""How often something may happen: for each name, so many times a minute, and so many at a time.

And by what name clients are counted, and how many requests the viewer's pages may make.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

VIEWER_REQUESTS_PER_MINUTE = 600
"""Of one principal. A page makes three for each look, and looks at most once a second."""

VIEWER_REQUESTS_AT_A_TIME = 12
"""Of one principal, its open pages included: the viewer shares the process with everybody's calls."""

_MINUTE = 60.0

_IPV6_SITE = 64
"""Bits of an IPv6 address that name a site: whoever has one address has all of the site's."""


def client_site(host: str) -> str:
    """The address that a client is counted by; of an IPv6 address, its site."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "no address"
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> _IPV6_SITE << _IPV6_SITE, _IPV6_SITE)))


class RateLimits:
    """Token buckets by name: each holds what is allowed in a minute, and fills up evenly.

    Args:
        most: For how many names; the one that was used the longest ago is forgotten first.
        clock: A clock that only goes forward, in seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, per_minute: int) -> float:
        """Count one for a name; 0.0 if it may happen, else the seconds until the next one may.

        Args:
            name: The name.
            per_minute: How many may happen in a minute.
        """
        now = self._clock()
        left, since = self._buckets.pop(name, (float(per_minute), now))
        left = min(float(per_minute), left + (now - since) * per_minute / _MINUTE)
        wait = 0.0 if left >= 1 else (1 - left) * _MINUTE / per_minute
        self._buckets[name] = (left if wait else left - 1, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return wait


class ConcurrencyLimit:
    """How many happen at a time, by name.

    Args:
        most: For one name.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count: Counter[str] = Counter()

    def has_room(self, name: str) -> bool:
        """Whether another one may begin."""
        return self._count[name] < self._most

    @contextmanager
    def one(self, name: str) -> Generator[None]:
        """Count one for a name while the block runs."""
        self._count[name] += 1
        try:
            yield
        finally:
            self._count[name] -= 1
            if not self._count[name]:
                del self._count[name]
