"""Network addresses in the one form in which two of them compare."""

from ipaddress import IPv4Address, IPv6Address, ip_address


def plain_address(text: str) -> IPv4Address | IPv6Address:
    """Return an address without its zone, and as IPv4 where IPv6 stands for that: sockets of both
    families name their IPv4 peers so. Raises ValueError for what is no address."""
    found = ip_address(text.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found
