"""Nodes for the tests: network namespaces that a bridge connects, each with a host name and a monotonic clock.

A job talks over the first network, 10.213.1.0/24 on ``job0``; a second, 10.213.2.0/24 on ``side0``, can be given to the
hubs alone (``RANKTOP_HUB_ADDRESS=side0``), so that a test cuts a hub off while the job goes on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jobs import wait_until

from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.state import Session
from ranktop.tui.status import job_json
from ranktop.wire.endpoints import VIEWERS_SOCKET, is_listening

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
SCRIPT = Path(__file__).with_name("nodes_train.py")
NETWORKS = {"job0": "10.213.1", "side0": "10.213.2"}


@cache
def refused() -> str:
    """Return why there can be no nodes here; empty where there can."""
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            return f"no {tool} here (iproute2, util-linux)"
    if os.geteuid():
        return "network namespaces need root"
    name = f"rtprobe{os.getpid()}"
    made = _run("ip", "netns", "add", name)
    if made.returncode:
        return f"network namespaces are not permitted: {made.stderr.strip()[:100]}"
    try:
        tried = [
            _run("ip", "-n", name, "link", "add", "br0", "type", "bridge"),
            _run("ip", "-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1"),
            _run("ip", "netns", "exec", name, *_unshare(1.0), "hostname", "probe"),
        ]
    finally:
        _run("ip", "netns", "del", name)
    failed = next((one for one in tried if one.returncode), None)
    return "" if failed is None else f"{' '.join(failed.args)[:60]}: {failed.stderr.strip()[:100]}"


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)


def _must(*command: str) -> None:
    done = _run(*command)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def _unshare(ahead: float) -> list[str]:
    return ["unshare", "--uts", "--time", "--monotonic", str(int(ahead)), "--fork", "--kill-child"]


@dataclass
class Node:
    """One node."""

    number: int
    name: str
    """Of its network namespace."""
    host: str
    ahead: float
    """Seconds by which its monotonic clock is ahead of this machine's."""
    directory: Path
    environment: dict[str, str]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Return its address on the job's network."""
        return f"{NETWORKS['job0']}.{self.number + 1}"

    @property
    def log(self) -> str:
        """Return what its launcher and ranks have written."""
        return (self.directory / "job.log").read_text(errors="replace")

    def start(self, command: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
        """Start a command on this node, its output in ``job.log``."""
        entry = ["sh", "-c", 'hostname "$0" && exec "$@"', self.host, *command]
        with (self.directory / "job.log").open("ab") as log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *_unshare(self.ahead), *entry],
                cwd=self.directory, env={**self.environment, **environment}, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def link(self, up: bool, network: str = "side0") -> None:
        """Plug a network cable in, or pull it: at the switch's end, as the node's own addresses would go with it."""
        _must("ip", "-n", self.name.rpartition("-")[0] + "-sw", "link", "set", f"{network}.{self.number}",
              "up" if up else "down")  # fmt: skip

    def pids(self) -> list[int]:
        """Return the processes on this node."""
        return [int(pid) for pid in _run("ip", "netns", "pids", self.name).stdout.split()]

    def kill(self) -> None:
        """End everything on this node at once, as a power cut does."""
        wait_until(self._killed, 10)
        for process in self.started:
            process.wait(10)

    def _killed(self) -> bool:
        for pid in (found := self.pids()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    def jobs(self) -> list[Path]:
        """Return the directories of its jobs whose hub takes connections."""
        run = self.directory / "run"
        paths = sorted(run.iterdir()) if run.is_dir() else []
        return [path for path in paths if is_listening(path, VIEWERS_SOCKET)]


@dataclass
class Lab:
    """Nodes and the switch between them."""

    nodes: list[Node]

    def torchrun(self, node: Node, ranks: int, *options: str, **environment: str) -> None:
        """Start the training on a node."""
        command = [*TORCHRUN, "--nproc-per-node", str(ranks), *options, "-m", "ranktop.agent", str(SCRIPT)]
        node.start(command, GLOO_SOCKET_IFNAME="job0", **environment)

    def static(self, **environment: str) -> None:
        """Start one job on all nodes with static rendezvous, two ranks on each."""
        for node in self.nodes:
            self.torchrun(
                node,
                2,
                *("--nnodes", str(len(self.nodes)), "--node-rank", str(node.number)),
                *("--master-addr", self.nodes[0].address, "--master-port", "29500"),
                **environment,
            )

    def c10d(self, node: Node, nnodes: str, run_id: str, port: int, **environment: str) -> None:
        """Have a node join a job with c10d rendezvous, one rank on it."""
        self.torchrun(
            node,
            1,
            *("--nnodes", nnodes, "--rdzv-backend", "c10d", "--rdzv-id", run_id, "--local-addr", node.address),
            # Ranks that lose a peer before they are told to start anew have failed, for torchrun.
            *("--max-restarts", "3"),
            # Else it looks up the host's name, which nobody resolves here.
            *("--rdzv-conf", f"last_call_timeout=1,is_host={int(node.number == 0)}"),
            *("--rdzv-endpoint", f"{self.nodes[0].address}:{port}"),
            **environment,
        )

    def output(self) -> str:
        """Return the end of what every node has written, for a test that fails."""
        return "\n".join(f"--- {node.host}\n{node.log[-3000:]}" for node in self.nodes if node.started)


@contextlib.contextmanager
def lab(directory: Path, hosts: Sequence[str], ahead: Sequence[float], **environment: str) -> Iterator[Lab]:
    """Make one node for each host name; on the way out all that runs on them is ended."""
    prefix = f"rt{os.getpid()}"
    switch = f"{prefix}-sw"
    made: list[str] = []
    nodes: list[Node] = []
    try:
        _must("ip", "netns", "add", switch)
        made.append(switch)
        for network in NETWORKS:
            _must("ip", "-n", switch, "link", "add", network, "type", "bridge")
            _must("ip", "-n", switch, "link", "set", network, "up")
        for number, host in enumerate(hosts):
            name = f"{prefix}-{number}"
            _must("ip", "netns", "add", name)
            made.append(name)
            _must("ip", "-n", name, "link", "set", "lo", "up")
            for network, net in NETWORKS.items():
                end = f"{network}.{number}"
                _must("ip", "-n", switch, "link", "add", end, "type", "veth", "peer", "name", network, "netns", name)
                _must("ip", "-n", switch, "link", "set", end, "master", network, "up")
                _must("ip", "-n", name, "addr", "add", f"{net}.{number + 1}/24", "dev", network)
                _must("ip", "-n", name, "link", "set", network, "up")
            folder = directory / f"n{number}"
            (folder / "state").mkdir(parents=True)
            nodes.append(Node(number, name, host, ahead[number], folder, _environment(folder, environment)))
        yield Lab(nodes)
    finally:
        for node in nodes:
            with contextlib.suppress(Exception):
                node.kill()
        for name in made:
            _run("ip", "netns", "del", name)


def _environment(folder: Path, more: dict[str, str]) -> dict[str, str]:
    return {
        **os.environ,
        "RANKTOP_INTERVAL": "0.5",
        "RANKTOP_HUB_LINGER": "60",
        "OMP_NUM_THREADS": "1",
        "RANKTOP_RUN_DIR": str(folder / "run"),
        "RANKTOP_STATE_DIR": str(folder / "state"),
        **more,
    }


class NodeViewer:
    """Follows the newest job of one node, from this machine's own clock and network."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.session = Session()
        self.source: HubSource | None = None

    def state(self, wait: float = 0.05) -> dict[str, Any]:
        """Return the job as ``ranktop status --json`` prints it; empty before there is one."""
        if self.source is None:
            found = self.node.jobs()
            if not found:
                time.sleep(0.02)
                return {}
            self.source = HubSource(found[-1])
        self.source.poll(wait)
        self.session.feed(self.source.drain())
        return job_json(self.session.snapshot()) if self.session.job is not None else {}

    def close(self) -> None:
        """Let go of the hub."""
        if self.source is not None:
            self.source.close()


def ranks_by_node(state: dict[str, Any]) -> dict[int, tuple[int, ...]]:
    """Return node_rank -> its ranks that were heard of."""
    return {one["node_rank"]: tuple(one["ranks"]) for one in state.get("nodes") or ()}
