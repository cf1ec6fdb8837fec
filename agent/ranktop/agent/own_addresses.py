"""Under which addresses the other nodes of a job may reach this one."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Mapping

import psutil

MOST = 8
"""Addresses told, the best first."""


def own_addresses(towards_store: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return IP addresses of this node, the best first, at most ``MOST``.

    ``towards_store``: the one by which this node reaches the job's store; good unless it is a loopback one, as on the
    first node where the hosts file says so. ``RANKTOP_HUB_ADDRESS`` (addresses, host names or interfaces, separated
    by commas) replaces what is found.
    """
    named = environ.get("RANKTOP_HUB_ADDRESS", "")
    interfaces = _by_interface()
    if named:
        found: list[str] = []
        for part in map(str.strip, named.split(",")):
            # A link-local address means nothing on another node, where each try at one would cost seconds.
            of_interface = interfaces.get(part)
            found += _resolved(part) if of_interface is None else [one for one in of_interface if not _link_local(one)]
        return tuple(dict.fromkeys(found))[:MOST]
    # Gloo and NCCL are told which interface the nodes talk by: the others may lead elsewhere.
    preferred = [
        environ.get(name, "").split(",")[0].lstrip("=^") for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    ]
    candidates = [_plain(towards_store)]
    for name in preferred:
        candidates += interfaces.get(name, [])
    for addresses in interfaces.values():
        candidates += addresses
    usable = [address for address in dict.fromkeys(candidates) if _usable(address)]
    # With nothing but loopback all nodes are on one host, as in a test.
    return tuple(usable or candidates[:1])[:MOST]


def _by_interface() -> dict[str, list[str]]:
    """Return the addresses of each interface that is up; IPv4 first."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found: dict[str, list[str]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        if name in up:
            found[name] = [_plain(one.address) for one in addresses if one.family == socket.AF_INET]
            found[name] += [_plain(one.address) for one in addresses if one.family == socket.AF_INET6]
    return found


def _resolved(name: str) -> list[str]:
    try:
        return [_plain(str(found[4][0])) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def _plain(address: str) -> str:
    """Return an address without a scope, and an IPv4 one that is written as IPv6 as itself."""
    text = address.partition("%")[0]
    try:
        number = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = getattr(number, "ipv4_mapped", None)
    return str(mapped or number)


def _usable(address: str) -> bool:
    try:
        number = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (number.is_loopback or number.is_link_local or number.is_unspecified or number.is_multicast)


def _link_local(address: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_link_local
    return False
