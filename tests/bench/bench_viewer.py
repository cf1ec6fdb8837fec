"""What the dashboard costs: run ``python tests/bench/bench_viewer.py [first] [8] [64] [512] [1024] [beside] [sizes]``.

``first``: time from exec to the first painted frame. A number: CPU, memory and bytes to the terminal beside so many
ranks, in terminals of three sizes at once. ``beside``: the same of nvitop and nvtop on the same eight devices with the
same moving values, all at work at the same time on the same machine, so that its mood counts for all; ``sizes``: in a
small and in a large terminal. Prints tables; asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.measured import heading, ratios, spread
from bench.simulated import Running, running
from bench.terminal import Terminal
from nvml_stub.build import NvmlStub, build_library, compiler, device_uuid

RANKTOP = [sys.executable, "-m", "ranktop.tui.cli"]
COMMAND = Path(sys.executable).with_name("ranktop")
NVITOP_VERSION = "1.7.2"
SIZES = ((80, 24), (120, 40), (200, 60))
PARTS = ("first", "8", "64", "512", "1024", "beside", "sizes")
WARM = 8.0
"""Seconds that all are at work before they are measured."""


def viewer(size: tuple[int, int]) -> Terminal:
    """Open the dashboard on the only job."""
    return Terminal([str(COMMAND)] if COMMAND.exists() else RANKTOP, size)


def first_frames(runs: int) -> None:
    """Print the seconds from exec to the first frame at all, and to the first one with every rank's row."""
    print(f"\n{'time from exec, s':<34}{'median (range)':>28}")
    with running(8) as job:
        name = job.job.job.name
        screens: list[float] = []
        rows: list[float] = []
        imports: list[float] = []
        for turn in range(runs + 1):
            terminal = viewer((120, 40))
            screen, row = terminal.appeared("ranktop", name)
            terminal.close()
            began = time.monotonic()
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            if turn:  # the first one warms the caches
                screens.append(screen)
                rows.append(row)
                imports.append(time.monotonic() - began)
        job.stop()
    print(f"{'first frame':<34}{spread(screens):>28}")
    print(f"{'first frame with the ranks':<34}{spread(rows):>28}")
    print(f"{'(an empty Python process)':<34}{spread(imports):>28}")


class Meter:
    """CPU and bytes of one terminal, segment by segment."""

    def __init__(self, name: str, terminal: Terminal) -> None:
        self.name, self.terminal = name, terminal
        self.cpu: list[float] = []
        self.bytes: list[float] = []
        self._last = (time.monotonic(), terminal.cpu(), terminal.bytes)

    def cut(self) -> None:
        """End a segment."""
        now = (time.monotonic(), self.terminal.cpu(), self.terminal.bytes)
        seconds = now[0] - self._last[0]
        self.cpu.append(100 * (now[1] - self._last[1]) / seconds)
        self.bytes.append((now[2] - self._last[2]) / seconds)
        self._last = now

    def row(self) -> str:
        """Return a line of the table."""
        resident = self.terminal.resident() / 2**20
        return f"{self.name:<26}{spread(self.cpu):>26}{resident:>9.0f}{spread(self.bytes, '{:.0f}'):>28}"


def head(title: str) -> str:
    """Return the titles of a table."""
    return f"\n{title:<26}{'CPU, % of a core':>26}{'RSS MiB':>9}{'bytes/s':>28}"


def words(size: tuple[int, int]) -> str:
    """Return a size as it is written."""
    return f"{size[0]}x{size[1]}"


def measure(meters: Sequence[Meter], segments: int, seconds: float) -> None:
    """Let time pass and cut it for all meters alike."""
    for _ in range(segments):
        time.sleep(seconds)
        for meter in meters:
            meter.cut()


def alone(ranks: int, segments: int, seconds: float) -> None:
    """Print what the dashboard costs beside so many ranks, in every size at once."""
    with running(ranks) as job:
        terminals = [viewer(size) for size in SIZES]
        try:
            for terminal in terminals:
                terminal.appeared(job.job.job.name)
            time.sleep(8.0 + ranks / 100)  # many budgets are worked out first
            meters = [Meter(words(size), terminal) for size, terminal in zip(SIZES, terminals, strict=True)]
            measure(meters, segments, seconds)
            print(head(f"ranktop, {ranks} ranks, 1 Hz"))
            for meter in meters:
                print(meter.row(), flush=True)
        finally:
            for terminal in terminals:
                terminal.close()
        job.stop()


def find_nvitop(folder: Path) -> tuple[Path | None, str]:
    """Return nvitop's command, installed into ``folder`` when there is none, or why there is none."""
    found = shutil.which("nvitop")
    if found:
        return Path(found), ""
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", f"nvitop=={NVITOP_VERSION}"]
        subprocess.run(pip, check=True, capture_output=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"nvitop cannot be installed: {error}"
    return folder / "bin" / "nvitop", ""


def quiet(*command: str) -> list[str]:
    """Return the command with its warnings kept off the screen: the stand-in lacks functions that nvitop tries."""
    return ["sh", "-c", 'exec "$@" 2>/dev/null', "sh", *command]


def steer(stub: NvmlStub, job: Running, stop: threading.Event) -> None:
    """Move the stand-in's devices as the simulated ranks say that theirs move."""
    pid = job.processes[0].pid
    while True:
        settings: dict[str, object] = {"devices": job.job.ranks}
        for rank in range(job.job.ranks):
            reading = job.job.device(rank, time.monotonic() - job.epoch)
            values: dict[str, object] = {
                "uuid": device_uuid(rank), "name": "NVIDIA%20H100%2080GB%20HBM3", "index": rank,
                "total": reading.total, "used": reading.used, "free": reading.free, "reserved": 0,
                "util": reading.utilization, "memutil": 60, "power": int(1000 * (reading.power or 0)),
                "limit": 700_000, "temp": reading.temperature, "sm": reading.sm_clock, "mem": reading.memory_clock,
                "procs": f"{pid}:{reading.process_used}", "pci": f"00000000:{0x19 + 0x10 * rank:02X}:00.0",
                "pcie_gen": 5, "pcie_max_gen": 5, "pcie_width": 16, "pcie_max_width": 16, "pcie_tx": 1_240_000,
                "pcie_rx": 880_000, "t_slowdown": 87, "max_sm": 1980, "max_mem": 2619, "encoder": 0, "decoder": 0,
            }  # fmt: skip
            settings.update({f"d{rank}.{key}": value for key, value in values.items()})
        stub.settings = settings
        stub.write()
        if stop.wait(1.0):
            return


def others(folder: Path) -> dict[str, list[str]]:
    """Return name -> command of the other monitors that are at hand; says of the others in a line why not."""
    found: dict[str, list[str]] = {}
    nvitop, why = find_nvitop(folder / "venv")
    if nvitop is None:
        print(f"nvitop: skipped, {why}")
    else:
        for mode in ("auto", "full"):
            found[f"nvitop -m {mode}"] = quiet(str(nvitop), "-m", mode, "--interval", "1")
    nvtop = shutil.which("nvtop")
    if nvtop is None:
        print("nvtop: skipped, it is not installed (Debian has it in contrib)")
    else:
        found["nvtop"] = quiet(nvtop, "--delay", "10")  # tenths of a second
    return found


def beside(size: tuple[int, int], segments: int, seconds: float) -> None:
    """Print ranktop's and others' costs on the same eight devices at the same time, and the ratios."""
    if compiler() is None:
        print("nvitop, nvtop: skipped, no C compiler to build the stand-in NVML library")
        return
    with tempfile.TemporaryDirectory() as folder, running(8) as job:
        commands = others(Path(folder))
        stub = NvmlStub(build_library(Path(folder) / "nvml"), Path(folder))
        stop = threading.Event()
        mover = threading.Thread(target=steer, args=(stub, job, stop))
        mover.start()
        environment = {key: value for key, value in stub.environment().items() if key != "NVML_STUB_CALLS"}
        environment.update(XDG_CONFIG_HOME=folder)
        while not stub.steering.exists():
            time.sleep(0.01)
        terminals = [viewer(size), *(Terminal(command, size, environment) for command in commands.values())]
        try:
            terminals[0].appeared(job.job.job.name)
            for terminal in terminals[1:]:
                terminal.appeared("H100")
            time.sleep(WARM)
            meters = [Meter(*pair) for pair in zip(("ranktop", *commands), terminals, strict=True)]
            measure(meters, segments, seconds)
            print_beside(meters, size)
        finally:
            for terminal in terminals:
                terminal.close()
            stop.set()
            mover.join()
        job.stop()


def print_beside(meters: Sequence[Meter], size: tuple[int, int]) -> None:
    """Print the lines and the ratios of their segments."""
    mine, *rest = meters
    print(f"{head(f'8 devices, {words(size)}, 1 Hz')}\n{mine.row()}")
    for other in rest:
        cpu, sent = spread(ratios(mine.cpu, other.cpu)), spread(ratios(mine.bytes, other.bytes))
        print(f"{other.row()}\n{'  ratio ranktop / it':<26}{cpu:>26}{'':>9}{sent:>28}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--segments", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one segment")
    parser.add_argument("--short", action="store_true", help="a smoke run, whose numbers mean nothing")
    options = parser.parse_args()
    wanted = options.what or (["first", "beside"] if options.short else PARTS)
    if unknown := [word for word in wanted if word not in PARTS]:
        parser.error(f"no part is called {', '.join(unknown)}")
    runs, segments, seconds = (1, 2, 1.0) if options.short else (options.runs, options.segments, options.seconds)
    heading("What the dashboard costs", "nvitop")
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ["RANKTOP_RUN_DIR"] = f"{folder}/run"
        for part in wanted:
            if part == "first":
                first_frames(runs)
            elif part == "beside":
                beside(SIZES[1], segments, seconds)
            elif part == "sizes":
                beside(SIZES[0], segments, seconds)
                beside(SIZES[2], segments, seconds)
            else:
                alone(int(part), segments, seconds)


if __name__ == "__main__":
    main()
