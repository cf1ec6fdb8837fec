"""The network as ranks of several nodes need it. Nothing is opened but a test socket on 127.0.0.1."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from ranktop.tui.doctor.check import Check, Result, failed, passed, skipped, warned
from ranktop.tui.doctor.scene import Scene

_RESOLVE_SECONDS: Final = 3.0
_CONNECT_SECONDS: Final = 2.0
_NODES: Final = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "PET_NNODES", "GROUP_WORLD_SIZE")


def several_nodes(scene: Scene) -> bool:
    """Tell whether a launcher's variables speak of more than one node."""
    return any(value.isdigit() and int(value) > 1 for name in _NODES if (value := scene.environ.get(name, "")))


def look_at_hostname(scene: Scene) -> Result:
    """Tell whether this machine's name leads to an address."""
    name = socket.gethostname()
    addresses = resolved(name, min(_RESOLVE_SECONDS, scene.left()))
    facts = {"hostname": name, "addresses": addresses}
    add = f"add a line '127.0.1.1 {name}' to /etc/hosts"
    if addresses is None:
        return warned(f"{name}: the name server does not answer", add, **facts)
    if not addresses:
        return warned(f"{name} resolves to no address: gloo and torchrun ask for it", add, **facts)
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        found = f"{name} is {addresses[0]}, which other nodes cannot reach"
        if several_nodes(scene):
            return warned(found, "export GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the node's interface", **facts)
        return passed(f"{found}; fine for one node", **facts)
    return passed(f"{name} is {', '.join(addresses[:3])}", **facts)


def resolved(name: str, seconds: float) -> list[str] | None:
    """Return the addresses of a name, none for one that is not known, None when that takes too long."""

    def ask() -> list[str]:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return []
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    found: list[str] | None = _within(seconds, ask)
    return found


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return what a call gives, None when it has not ended in time; the name server's time-outs are longer."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None


def look_at_loopback(scene: Scene) -> Result:
    """Bind a port on 127.0.0.1 and talk to it, as ranks of one node do."""
    port = None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            server.bind(("127.0.0.1", 0))
            server.listen(1)
            port = int(server.getsockname()[1])
            with socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_SECONDS):
                pass
    except OSError as error:
        what = "no connection to its port" if port else "no port can be bound"
        return failed(f"127.0.0.1: {what} ({error.strerror or error})", "sudo ip link set lo up", connected=False)
    addresses = resolved("localhost", min(_RESOLVE_SECONDS, scene.left()))
    if not addresses:
        advice = "add a line '127.0.0.1 localhost' to /etc/hosts"
        return failed("localhost does not resolve: torchrun --standalone asks for it", advice, connected=True)
    return passed("a port can be bound and reached on 127.0.0.1; localhost resolves", connected=True)


def look_at_master(scene: Scene) -> Result | list[Result]:
    """Tell whether MASTER_ADDR and MASTER_PORT, where a launcher set them, lead to somebody."""
    address, port = scene.environ.get("MASTER_ADDR", ""), scene.environ.get("MASTER_PORT", "")
    facts: dict[str, object] = {"address": address or None, "port": port or None}
    if not address and not port:
        return skipped("MASTER_ADDR and MASTER_PORT are not set: torchrun sets them for its ranks", **facts)
    if not address or not port:
        missing, there = ("MASTER_ADDR", "MASTER_PORT") if port else ("MASTER_PORT", "MASTER_ADDR")
        return warned(f"{there} is set, {missing} is not", f"export {missing}, or unset both", **facts)
    if not port.isdigit() or not 0 < int(port) < 65536:
        return failed(f"MASTER_PORT={port!r} is no port", "export MASTER_PORT=29500", **facts)
    addresses = resolved(address, min(_RESOLVE_SECONDS, scene.left()))
    if not addresses:
        words = "is not answered by the name server" if addresses is None else "resolves to no address"
        return failed(f"MASTER_ADDR={address} {words}", "export MASTER_ADDR to the first node's address", **facts)
    return _reached(address, int(port), facts)


def _reached(address: str, port: int, facts: dict[str, object]) -> Result:
    place = f"{address}:{port}"
    try:
        with socket.create_connection((address, port), timeout=_CONNECT_SECONDS):
            return passed(f"{place}: somebody listens", **facts, reached=True)
    except TimeoutError:
        advice = "open the port in the firewall between the nodes"
        return failed(f"{place}: no answer in {_CONNECT_SECONDS:.0f} s", advice, **facts, reached=False)
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            return passed(
                f"{place}: reachable, nobody listens now (rank 0 does while a job runs)", **facts, reached=True
            )
        advice = "check the route from this node to the first one: ip route get"
        return failed(f"{place}: {error.strerror or error}", advice, **facts, reached=False)


def look_at_interfaces(scene: Scene) -> Result:
    """List the interfaces and hold NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME against them."""
    up = interfaces()
    facts: dict[str, object] = {"interfaces": up}
    for variable, matches in (("NCCL_SOCKET_IFNAME", nccl_matches), ("GLOO_SOCKET_IFNAME", gloo_matches)):
        wanted = scene.environ.get(variable, "")
        facts[variable] = wanted or None
        if wanted and not any(matches(wanted, name) for name in up):
            there = ", ".join(up) or "none"
            return failed(f"{variable}={wanted} names no interface that is up ({there})", f"unset {variable}", **facts)
    outer = {name: found for name, found in up.items() if name != "lo"}
    if not outer:
        return passed("lo alone: one node only", **facts)
    words = ", ".join(f"{name} ({found[0]})" if found else name for name, found in list(outer.items())[:4])
    more = f" and {len(outer) - 4} others" if len(outer) > 4 else ""
    return passed(f"{words}{more}", **facts)


def interfaces() -> dict[str, list[str]]:
    """Return the interfaces that are up, with their IP addresses."""
    import psutil

    states: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        states = psutil.net_if_stats()
    found = {}
    for name, addresses in psutil.net_if_addrs().items():
        if name in states and not states[name].isup:
            continue
        found[name] = [
            str(entry.address).partition("%")[0]
            for entry in addresses
            if entry.family in (socket.AF_INET, socket.AF_INET6)
        ]
    return found


def nccl_matches(wanted: str, name: str) -> bool:
    """Tell whether NCCL would take an interface: prefixes, ``=`` exact names, ``^`` all but these.

    >>> nccl_matches("eth", "eth0"), nccl_matches("=eth", "eth0"), nccl_matches("^docker,lo", "eth0")
    (True, False, True)
    """
    inverted = wanted.startswith("^")
    text = wanted.removeprefix("^")
    exact = text.startswith("=")
    names = [part.partition(":")[0] for part in text.removeprefix("=").split(",") if part]
    hit = any(name == part if exact else name.startswith(part) for part in names)
    return hit != inverted


def gloo_matches(wanted: str, name: str) -> bool:
    """Tell whether gloo would take an interface: exact names, separated by commas."""
    return name in wanted.split(",")


CHECKS = (
    Check("network.hostname", "host name", look_at_hostname),
    Check("network.loopback", "loopback", look_at_loopback),
    Check("network.master", "rendezvous", look_at_master),
    Check("network.interfaces", "interfaces", look_at_interfaces),
)
