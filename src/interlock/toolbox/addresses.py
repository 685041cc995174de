"""Which IP addresses are public, and every way in which one can be written.

Sources: the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890 and its updates), the IPv6 global unicast
allocation 2000::/3, and the addresses at which clouds answer to their own machines. ``ipaddress.is_global`` is not used:
it differs between Python versions, and calls 192.0.0.192 (a cloud's metadata) global.
"""

from __future__ import annotations

import ipaddress
import re

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_SPECIAL_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared between carrier and customer; a cloud's metadata at 100.100.100.200
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # looks public: a cloud's host agent
        "169.254.0.0/16",  # link-local, most clouds' metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # IETF protocol assignments; a cloud's metadata at 192.0.0.192
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays, deprecated
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
# Only 2000::/3 is handed out as global unicast; everything outside it, and these parts of it, is special.
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_SPECIAL_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # IETF protocol assignments: Teredo, benchmarking, ORCHID, ...
        "2001:db8::/32",  # documentation
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
# Where an IPv6 address stands for an IPv4 one: the network, and how far the IPv4 address is from the right end.
# The local-use translation prefix 64:ff9b:1::/48, Teredo and IPv4-compatible addresses are never public.
_EMBEDDING = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4
)
# ISATAP interface identifiers: any prefix, then 0000:5efe or 0200:5efe, then the IPv4 address.
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})

_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")


def is_public(address: Address) -> bool:
    """Whether ``address``, and any IPv4 address inside it, belongs to the public internet."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _SPECIAL_V4)
    number = int(address)
    if (number >> 32) & 0xFFFFFFFF in _ISATAP and not is_public(ipaddress.IPv4Address(number & 0xFFFFFFFF)):
        return False
    for network, shift in _EMBEDDING:
        if address in network:
            return is_public(ipaddress.IPv4Address((number >> shift) & 0xFFFFFFFF))
    return address in _GLOBAL_V6 and not any(address in network for network in _SPECIAL_V6)


def parse(host: str) -> Address | None:
    """The address that ``host`` writes, in any form a resolver takes; None if it is a name.

    host: lower case, without brackets. Raises ValueError for what is meant as an address and is none, or could be read as
    two different ones.
    """
    if ":" in host:
        return ipaddress.IPv6Address(host.partition("%")[0])
    parts = host.split(".")
    if not _NUMBER.fullmatch(parts[-1]):
        return None
    return _ipv4(parts)


def _ipv4(parts: list[str]) -> ipaddress.IPv4Address:
    """1 to 4 numbers, decimal or hexadecimal; the last one fills what is left: 127.1, 0x7f.1, 2130706433."""
    if len(parts) > 4:
        raise ValueError("more than four numbers")
    numbers: list[int] = []
    for part in parts:
        if not _NUMBER.fullmatch(part) or len(part) > 12:
            raise ValueError(f"{part[:20]!r} is not a number")
        if len(part) > 1 and part[0] == "0" and part[1] != "x":
            raise ValueError(f"{part!r} is octal for some and decimal for others")
        numbers.append(int(part[2:] or "0", 16) if part.startswith("0x") else int(part))
    *front, last = numbers
    if any(number > 255 for number in front) or last >= 256 ** (4 - len(front)):
        raise ValueError("a number is out of range")
    value = sum(number << (8 * (3 - place)) for place, number in enumerate(front)) + last
    return ipaddress.IPv4Address(value)
