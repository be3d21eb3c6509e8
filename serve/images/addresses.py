"""Which addresses a server may connect to for a client: those of the public internet."""

import ipaddress

NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses whose last four bytes are those of an IPv4 address."""


def is_public(address: str) -> bool:
    """Whether an IP address is nobody's own: not loopback, private, link-local, multicast or
    reserved, nor one of these in IPv6's clothes."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return all(one.is_global and not one.is_multicast for one in (ip, *_within(ip)))


def _within(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> list[ipaddress.IPv4Address]:
    """IPv4 addresses that an IPv6 address leads to."""
    if isinstance(ip, ipaddress.IPv4Address):
        return []
    nat64 = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in NAT64 else None
    teredo = ip.teredo[1] if ip.teredo else None
    return [one for one in (ip.ipv4_mapped, ip.sixtofour, teredo, nat64) if one is not None]
