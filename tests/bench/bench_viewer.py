"""What the dashboard costs: run ``python tests/bench/bench_viewer.py [first] [alone] [nvitop]``.

``first``: time from exec to the first painted frame. ``alone``: CPU, memory and bytes to the terminal at 8 and 1024
ranks. ``nvitop``: the same of nvitop on the same eight devices with the same moving values, both at work at the same
time on the same machine, so that its mood counts for both. Prints tables; asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.simulated import Running, running
from bench.terminal import Terminal
from nvml_stub.build import NvmlStub, build_library, compiler, device_uuid

RANKTOP = [sys.executable, "-m", "ranktop.tui.cli"]
COMMAND = Path(sys.executable).with_name("ranktop")
NVITOP_VERSION = "1.7.2"


def viewer(size: tuple[int, int]) -> Terminal:
    """Open the dashboard on the only job."""
    return Terminal([str(COMMAND)] if COMMAND.exists() else RANKTOP, size)


def spread(values: list[float], form: str = "{:.2f}") -> str:
    """Write median and range of some values."""
    middle, low, high = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low} .. {high})"


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
            screen, row = terminal.appeared(" ranktop ", name)
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

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
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

    def row(self, name: str) -> str:
        """Return a line of the table."""
        resident = self.terminal.resident() / 2**20
        return f"{name:<26}{spread(self.cpu):>26}{resident:>8.0f}{spread(self.bytes, '{:.0f}'):>28}"


HEAD = f"{'120x40, 1 Hz':<26}{'CPU, % of a core':>26}{'RSS MiB':>8}{'bytes/s':>28}"


def measure(meters: list[Meter], segments: int, seconds: float) -> None:
    """Let time pass and cut it for all meters alike."""
    for _ in range(segments):
        time.sleep(seconds)
        for meter in meters:
            meter.cut()


def alone(ranks: int, segments: int, seconds: float) -> str:
    """Return the dashboard's line for so many ranks."""
    with running(ranks) as job:
        terminal = viewer((120, 40))
        try:
            terminal.appeared(job.job.job.name)
            time.sleep(8.0)
            meter = Meter(terminal)
            measure([meter], segments, seconds)
            line = meter.row(f"ranktop, {ranks} ranks")
        finally:
            terminal.close()
        job.stop()
    return line


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
                "procs": f"{pid}:{reading.process_used}",
            }  # fmt: skip
            settings.update({f"d{rank}.{key}": value for key, value in values.items()})
        stub.settings = settings
        stub.write()
        if stop.wait(1.0):
            return


def beside_nvitop(segments: int, seconds: float) -> None:
    """Print ranktop's and nvitop's costs on the same eight devices at the same time, and their ratios."""
    if compiler() is None:
        print("nvitop: skipped, no C compiler to build the stand-in NVML library")
        return
    with tempfile.TemporaryDirectory() as folder, running(8) as job:
        nvitop, why = find_nvitop(Path(folder) / "venv")
        if nvitop is None:
            print(f"nvitop: skipped, {why}")
            return
        stub = NvmlStub(build_library(Path(folder) / "nvml"), Path(folder))
        stop = threading.Event()
        mover = threading.Thread(target=steer, args=(stub, job, stop))
        mover.start()
        environment = {key: value for key, value in stub.environment().items() if key != "NVML_STUB_CALLS"}
        while not stub.steering.exists():
            time.sleep(0.01)
        others = [Terminal(quiet(str(nvitop), "-m", mode, "--interval", "1"), (120, 40), environment)
                  for mode in ("auto", "full")]  # fmt: skip
        mine = viewer((120, 40))
        try:
            mine.appeared(job.job.job.name)
            for other in others:
                other.appeared("H100")
            time.sleep(8.0)
            meters = [Meter(terminal) for terminal in (mine, *others)]
            measure(meters, segments, seconds)
            print_beside(meters)
        finally:
            for terminal in (mine, *others):
                terminal.close()
            stop.set()
            mover.join()
        job.stop()


def print_beside(meters: list[Meter]) -> None:
    """Print the lines and the ratios of their segments."""
    mine, *others = meters
    print(f"\n{HEAD}\n{mine.row('ranktop, 8 ranks')}")
    for name, other in zip(("nvitop, 8 devices", "nvitop -m full, 8 devices"), others, strict=True):
        print(other.row(name))
        cpu = [a / b for a, b in zip(mine.cpu, other.cpu, strict=True) if b]
        sent = [a / b for a, b in zip(mine.bytes, other.bytes, strict=True) if b]
        print(f"{'  ratio ranktop / it':<26}{spread(cpu):>26}{'':>8}{spread(sent):>28}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help="first, alone, nvitop; all by default")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--segments", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one segment")
    options = parser.parse_args()
    wanted = set(options.what) or {"first", "alone", "nvitop"}
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ["RANKTOP_RUN_DIR"] = f"{folder}/run"
        if "first" in wanted:
            first_frames(options.runs)
        if "alone" in wanted:
            print(f"\n{HEAD}")
            for ranks in (8, 1024):
                print(alone(ranks, options.segments, options.seconds), flush=True)
        if "nvitop" in wanted:
            beside_nvitop(options.segments, options.seconds)


if __name__ == "__main__":
    main()
