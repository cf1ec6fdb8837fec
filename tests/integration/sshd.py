"""A real OpenSSH server on a loopback port, with keys and configuration of its own, for tests of what goes by ssh."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from jobs import wait_until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"

RANKTOP = f'#!/bin/sh\nexec {sys.executable} -m ranktop.tui.cli "$@"\n'


def why_not() -> str:
    """Return why no server can be started here; empty when one can."""
    missing = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    if not os.access(SSHD, os.X_OK):
        missing.append("sshd")
    if missing:
        return f"no {', '.join(missing)} on this machine (openssh-client, openssh-server)"
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        if not os.path.isdir("/run/sshd"):
            return "sshd needs /run/sshd, which cannot be made"
    return ""


needs_sshd = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is one")


class Server:
    """sshd for one user, who is the one that runs the tests."""

    def __init__(self, folder: Path, run_directory: Path) -> None:
        self.folder = folder
        self.home, self.bin = folder / "home", folder / "bin"
        for made in (self.home, self.bin):
            made.mkdir(parents=True)
        self.run_directory = run_directory
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("host", "other", "user", "stranger"):
            self._key(folder / name)
        shutil.copy(folder / "user.pub", folder / "authorized")
        self.port = _free_port()
        self.ranktop(RANKTOP)
        self.know("host")
        self.configure()

    def _key(self, path: Path) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)

    def ranktop(self, script: str) -> None:
        """Have the far side's ``ranktop`` be this shell script."""
        path = self.bin / "ranktop"
        path.write_text(script)
        path.chmod(0o755)

    def know(self, key: str) -> None:
        """Have the client know this key as the server's."""
        kind, data = (self.folder / f"{key}.pub").read_text().split()[:2]
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {kind} {data}\n")

    def configure(self, *lines: str) -> None:
        """Write the client's configuration: the host ``far``, with these lines first."""
        self.config = self.folder / "config"
        self.config.write_text(
            "\n".join(
                [
                    *lines,
                    "Host *",
                    f"  User {self.user}",
                    f"  Port {self.port}",
                    f"  UserKnownHostsFile {self.folder / 'known'}",
                    "  GlobalKnownHostsFile /dev/null",
                    f"  IdentityFile {self.folder / 'user'}",
                    "  IdentitiesOnly yes",
                    "  IdentityAgent none",
                    "Host far",
                    "  HostName 127.0.0.1",
                    "",
                ]
            )
        )

    def start(self, *lines: str, path: str | None = None, **environment: str) -> None:
        """Start it, with further lines of sshd_config and variables of its sessions."""
        values = {
            "RANKTOP_RUN_DIR": str(self.run_directory),
            "RANKTOP_STATE_DIR": str(self.folder / "state"),
            "PATH": path if path is not None else f"{self.bin}:/usr/bin:/bin",
            "HOME": str(self.home),
            **environment,
        }
        settings = " ".join(f'"{name}={value}"' for name, value in values.items())
        configuration = self.folder / "sshd_config"
        configuration.write_text(
            "\n".join(
                [
                    *lines,
                    f"Port {self.port}",
                    "ListenAddress 127.0.0.1",
                    f"HostKey {self.folder / 'host'}",
                    f"AuthorizedKeysFile {self.folder / 'authorized'}",
                    "StrictModes no",
                    "UsePAM no",
                    "PidFile none",
                    "PasswordAuthentication no",
                    "KbdInteractiveAuthentication no",
                    "PermitRootLogin prohibit-password",
                    "PrintMotd no",
                    f"SetEnv {settings}",
                    "",
                ]
            )
        )
        with (self.folder / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(configuration)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until(self._listens, 10)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "sshd.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def sessions(self) -> list[psutil.Process]:
        """Return the server's processes for its connections."""
        if self._process is None or self._process.poll() is not None:
            return []
        found = []
        for child in psutil.Process(self._process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
        return found

    def cut(self) -> None:
        """End every connection, as a dropped network does in the end; the server goes on."""
        for child in self.sessions():
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [*child.children(recursive=True), child]:
                    if "sshd" in process.name():
                        process.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        """End the server and every connection."""
        if self._process is not None:
            self.cut()
            self._process.terminate()
            self._process.wait(10)
            self._process = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def server(folder: Path, run_directory: Path) -> Iterator[Server]:
    """Make a server in a folder; whatever became of it is ended on the way out."""
    made = Server(folder, run_directory)
    try:
        yield made
    finally:
        made.stop()
