"""Check that an address that a client names belongs to the public internet."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

GLOBAL_UNICAST = ip_network("2000::/3")
CARRIERS = tuple(map(ip_network, ("::ffff:0:0/96", "64:ff9b::/96")))
"""IPv4-mapped and translated (RFC 6052) addresses, which end with an IPv4 address."""
SIX_TO_FOUR = ip_network("2002::/16")
ISATAP = (0x00005EFE, 0x02005EFE)
"""Prefixes of an IPv4 address at the end of an IPv6 address of any network (RFC 5214)."""
SPECIAL = tuple(
    map(
        ip_network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
            *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
            *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
            *("168.63.129.16/32", "2001::/23", "2001:db8::/32", "3fff::/20"),
        ),
    )
)
"""IANA's special-purpose blocks of IPv4 and of IPv6's global unicast, and Azure's host."""


def is_public(address: str) -> bool:
    """Return whether an IP address in any notation is on the public internet.

    An IPv6 address is public if it is global unicast or represents an IPv4 address, and every IPv4
    address in it is public.
    """
    ip = ip_address(address.partition("%")[0])
    if any(ip in block for block in SPECIAL):
        return False
    if isinstance(ip, IPv4Address):
        return True
    carries = any(ip in block for block in CARRIERS)
    return (carries or ip in GLOBAL_UNICAST) and all(map(is_public, _within(ip, carries)))


def _within(ip: IPv6Address, carries: bool) -> list[str]:
    """Return the IPv4 addresses in an IPv6 address."""
    number, found = int(ip), []
    if carries or (number >> 32) & 0xFFFFFFFF in ISATAP:
        found.append(number & 0xFFFFFFFF)
    if ip in SIX_TO_FOUR:
        found.append((number >> 80) & 0xFFFFFFFF)
    return [str(IPv4Address(part)) for part in found]
