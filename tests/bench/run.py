"""All benchmarks, one after the other: ``python tests/bench/run.py [--short] [--write] [name ...]`` (``make bench``).

A name is a script's without ``bench_`` (``hub``, ``viewer``); all of them by default. What a script prints goes to the
terminal as it comes. ``--write`` puts it into the page of ``docs/`` that has ``<!-- result: bench_hub.py -->``, in
place of the block that follows. Leave the machine alone meanwhile: other work shows in every number. Exit code 1: a
script failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCH = Path(__file__).parent

SCRIPTS = {
    "agent": [],
    "sampler": [],
    "guest": [],
    "report": [],
    "hub": [],
    "nodes": [],
    "recording": [],
    "viewer": [],
    "keys": [],
    "link": ["--ranks", "8", "64"],
    "scale": [],
    "hours": [],
    "export": [],
    "plan": [],
    "findings": ["table"],
}
"""Name -> arguments of a whole run, in the order in which they run."""

BLOCK = r"<!-- result: {script} -->\n```\n.*?^```$"


def run(name: str, short: bool) -> tuple[str, bool]:
    """Run a script; returns what it printed, and whether it came to its end."""
    command = [sys.executable, str(BENCH / f"bench_{name}.py"), *(["--short"] if short else SCRIPTS[name])]
    print(f"\n== bench_{name}.py {' '.join(command[2:])}", flush=True)
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=None, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    return "\n".join(lines).strip(), process.returncode == 0


def put(script: str, printed: str, pages: list[Path]) -> bool:
    """Replace a script's block in the page that has one; returns whether there is one."""
    pattern = re.compile(BLOCK.format(script=re.escape(script)), re.MULTILINE | re.DOTALL)
    block = f"<!-- result: {script} -->\n```\n{printed}\n```"
    for page in pages:
        text = page.read_text()
        if pattern.search(text):
            page.write_text(pattern.sub(lambda _: block, text))
            return True
    return False


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(SCRIPTS))
    parser.add_argument("--short", action="store_true", help="smoke runs, whose numbers mean nothing")
    parser.add_argument("--write", action="store_true", help="into docs/")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in SCRIPTS]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(SCRIPTS)}")
    if options.write and options.short:
        parser.error("--short prints numbers that mean nothing: they are not written into docs/")
    failed, began = [], time.monotonic()
    for name in options.names or SCRIPTS:
        printed, ended = run(name, options.short)
        if not ended:
            failed.append(name)
        elif options.write and not put(f"bench_{name}.py", printed, sorted((ROOT / "docs").glob("*.md"))):
            print(f"bench_{name}.py has no block in docs/: nothing was written", file=sys.stderr)
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
