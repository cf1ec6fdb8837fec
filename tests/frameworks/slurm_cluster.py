"""A Slurm of one node on this machine: its own daemons, key, ports and folders, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "squeue")
PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


def missing() -> str:
    """Say why there can be no Slurm here; empty when there can."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if lacking:
        return f"no {', '.join(lacking)} (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "slurmd is root's"


class Slurm:
    """The daemons, and the commands that talk to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.environment = dict(os.environ) | {"PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        (self.folder / "slurm.conf").write_text(self._configuration())
        (self.folder / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\n"
        )
        munge = [f"--{name}-file={self.folder / 'munged'}.{name}" for name in ("pid", "log", "seed")]
        self._daemon("munged", "-F", "-f", f"--key-file={key}", f"--socket={self.folder / 'munge'}", *munge)
        self._daemon("slurmctld", "-D", "-i")
        self._daemon("slurmd", "-D", "-N", "n1")

    def _configuration(self) -> str:
        ports = [_free_port(), _free_port()]
        host = socket.gethostname().partition(".")[0]
        # As clusters have it, where this machine can: then the whole step is killed when its tasks have ended.
        tracking = "cgroup" if Path("/sys/fs/cgroup/freezer").is_dir() else "linuxproc"
        return f"""
ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={self.folder / "munge"}
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmctldPort={ports[0]}
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.pid
SlurmdSpoolDir={self.folder}/spool
StateSaveLocation={self.folder}/state
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd.log
ReturnToService=2
KillWait=5
NodeName=n1 NodeAddr=127.0.0.1 NodeHostname={host} Port={ports[1]} CPUs=8
SlurmdParameters=config_overrides
PartitionName=all Nodes=n1 Default=YES State=UP
"""

    def _daemon(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.out").open("wb") as out:
            self._daemons.append(
                subprocess.Popen([name, *arguments], stdout=out, stderr=out, env=self.environment, cwd=self.folder)
            )

    def run(self, *command: str, **more: str) -> str:
        """Run a command of Slurm's and return what it printed."""
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=self.environment | more, cwd=self.folder
        )
        return done.stdout.strip()

    def ready(self) -> bool:
        return "idle" in self.run("sinfo", "--noheader", "--format=%T")

    def stop(self) -> None:
        self.run("scancel", "--user", "root")
        for daemon in reversed(self._daemons):
            with contextlib.suppress(ProcessLookupError):
                daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for group in Path("/sys/fs/cgroup").glob("*/slurm_n1"):
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """Yield a Slurm whose node takes jobs."""
    slurm = Slurm(folder)
    try:
        slurm.start()
        deadline = time.monotonic() + 30.0
        while not slurm.ready():
            assert time.monotonic() < deadline, (folder / "slurmctld.out").read_text()
            time.sleep(0.1)
        yield slurm
    finally:
        slurm.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
