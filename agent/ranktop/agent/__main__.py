"""``torchrun ... -m ranktop.agent train.py args``: run a script unchanged, with an agent in the process."""

from __future__ import annotations

import os
import sys

USAGE = """\
usage: torchrun [torchrun options] -m ranktop.agent SCRIPT [arguments...]
       torchrun [torchrun options] -m ranktop.agent -m MODULE [arguments...]
       deepspeed [deepspeed options] --module ranktop.agent SCRIPT [arguments...]
       python -m ranktop.agent --path     the file to give a launcher that takes no module: fabric run "$(...)" SCRIPT

Runs the script (or module) as it would run by itself, with a ranktop agent in the process.
RANKTOP_DISABLE=1 runs it without; RANKTOP_INTERVAL sets the seconds between samples (1).
"""


def _launchers_words(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Part what a launcher puts first (``deepspeed --module``: ``--local_rank=1``) from what the user has written."""
    count = 0
    while count < len(arguments) and arguments[count].startswith(("--local_rank=", "--local-rank=")):
        count += 1
    return arguments[:count], arguments[count:]


def main() -> None:
    """Start the agent, then run what the command line names."""
    told, arguments = _launchers_words(sys.argv[1:])
    if not arguments or arguments[0] in {"-h", "--help"}:
        out = sys.stdout if arguments else sys.stderr
        out.write(USAGE)
        raise SystemExit(0 if arguments else 2)
    if arguments == ["--path"]:
        sys.stdout.write(os.path.abspath(__file__) + "\n")
        raise SystemExit(0)
    module = arguments[0] == "-m"
    if module and len(arguments) < 2:
        sys.stderr.write("ranktop.agent: -m needs the name of a module\n" + USAGE)
        raise SystemExit(2)
    target, rest = (arguments[1], arguments[2:]) if module else (arguments[0], arguments[1:])
    rest = [*told, *rest]
    if not module and not os.path.exists(target):
        sys.stderr.write(f"ranktop.agent: can't open {target!r}: no such file\n")
        raise SystemExit(2)
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        # The current folder, which -m put there: a queue.py in it must not be taken for the library's by the agent.
        sys.path.pop(0)

    from ranktop.agent import attaching, runner

    attaching.start(target.rsplit(".", 1)[-1] if module else target)
    run = runner.run_module if module else runner.run_script
    runner.call(lambda: run(target, rest), attaching.ended)


if __name__ == "__main__":
    main()
