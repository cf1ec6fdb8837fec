"""The commands as typer reads them. Each imports what it needs itself, so that none waits for another's libraries."""

from __future__ import annotations

import contextlib
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ranktop.tui import completion, run_commands
from ranktop.tui.cli import NONE, USAGE, configure, fail, matching
from ranktop.tui.remote import flags
from ranktop.tui.terminal import options as drawing

if TYPE_CHECKING:
    from ranktop.wire.endpoints import Found, JobEntry

UNCONFIGURED: Final = ("config", "plan", "explain")
"""Commands that work whatever the configuration says: two have no use for it, one tells what is wrong with it."""

QUICK: Final = 0.05
"""Seconds that the first picture waits for a search to end: with one job there is nothing to choose."""

FAULTS: Final = (
    "straggler, data, throttle, pcie, starved, tokens, activations, leak, copy, fragmentation, strays, nan, "
    "unsharded, no_sync, hang, stop, kill, oom, oomkill, restart, lost, missing, version, code"
)
"""What ``ranktop simulate`` can make go wrong."""

app = typer.Typer(
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Watch the ranks of a PyTorch job: expected beside measured memory, per rank, per category, live.",
)

JobOption = Annotated[
    str | None,
    typer.Option(
        "--job",
        metavar="ID",
        help="Watch this job (an id or the start of one, or a name).",
        autocompletion=completion.runs,
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"ranktop {version('ranktop')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def dashboard(
    context: typer.Context,
    job: JobOption = None,
    theme: drawing.Theme = None,
    ascii_only: drawing.Ascii = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Open the dashboard on the job that runs here; ask which if there are several, wait if there is none."""
    if context.invoked_subcommand not in UNCONFIGURED and not {"-h", "--help"} & set(sys.argv):
        configure(lenient=context.invoked_subcommand == "doctor")
    if context.invoked_subcommand is not None:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail("the dashboard needs a terminal; `ranktop status` prints, `ranktop status --json` is for scripts", USAGE)
    from ranktop.wire.endpoints import find_jobs

    entry = choose(job) if job else None
    found: list[Found] = []

    def look() -> None:
        # The dashboard itself searches on when this takes long, and shows what goes wrong.
        with contextlib.suppress(Exception):
            found.append(find_jobs())

    search = threading.Thread(target=look, daemon=True)
    if entry is None:
        search.start()  # while the libraries load
    from ranktop.tui.app import run
    from ranktop.tui.session.receiver import HubSource

    if entry is None:
        search.join(QUICK)
        entry = found[0].obvious() if found else None
    source = HubSource(entry.directory) if entry is not None else None
    raise typer.Exit(
        run(
            source,
            find=find_jobs,
            connect=lambda entry: HubSource(entry.directory),
            theme=theme,
            ascii=ascii_only,
        )
    )


@app.command()
def watch(
    target: flags.Target,
    job: JobOption = None,
    options: flags.Options = None,
    port: flags.Port = None,
    jump: flags.Jump = None,
    identity: flags.Identity = None,
    config: flags.Config = None,
    remote_command: flags.RemoteCommand = None,
    theme: drawing.Theme = None,
    ascii_only: drawing.Ascii = None,
) -> None:
    """Open the dashboard on a job of another machine, by way of your own ssh; no port is opened anywhere.

    Exit codes: 0 quit, 1 ssh or ranktop there cannot be used, 2 bad usage, 3 no such job.
    """
    by = flags.ways(options, remote_command, port=port, jump=jump, identity=identity, config=config)
    from ranktop.tui.remote.watch import watch as run

    raise typer.Exit(run(flags.way(target, by), job, theme=theme, ascii=ascii_only))


@app.command()
def status(
    target: flags.MaybeTarget = None,
    job: JobOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print the documented JSON instead of a table.")] = False,
    fail_on: Annotated[
        str | None,
        typer.Option(
            metavar="warning|critical",
            help="Exit code 1 when a finding is at least that grave.",
            autocompletion=completion.one_of("warning", "critical", "never"),
        ),
    ] = None,
    watch: Annotated[
        float | None, typer.Option(min=0.5, metavar="SECONDS", help="Print it again and again until Ctrl-C.")
    ] = None,
    options: flags.Options = None,
    port: flags.Port = None,
    jump: flags.Jump = None,
    identity: flags.Identity = None,
    config: flags.Config = None,
    remote_command: flags.RemoteCommand = None,
) -> None:
    """Print what all ranks of the jobs on a machine say now, and which of them is out of line.

    Exit codes: 0 a job was found, 1 a finding as grave as --fail-on says (or something went wrong), 2 bad usage,
    3 no job.
    """
    from ranktop.tui.config import given
    from ranktop.tui.status import print_status
    from ranktop.tui.status_findings import FAIL_ON
    from ranktop.tui.terminal.plain import again

    fail_on = given("status.fail_on", fail_on)
    if fail_on == "never":
        fail_on = None
    if fail_on is not None and fail_on not in FAIL_ON:
        fail(f"--fail-on takes {' or '.join(FAIL_ON)}, not {fail_on!r}", USAGE)
    if json and watch is not None:
        fail("--watch prints tables; ask for --json as often as you like", USAGE)
    if target is not None:
        from ranktop.tui.remote.passing import pass_on, words

        by = flags.ways(options, remote_command, port=port, jump=jump, identity=identity, config=config)
        look = partial(pass_on, flags.way(target, by), words("status", job=job, json=json, fail_on=fail_on))
    else:
        look = partial(print_status, job, as_json=json, fail_on=fail_on)
    raise typer.Exit(look() if watch is None else again(look, watch))


@app.command()
def doctor(
    job: JobOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print the documented JSON instead of lines.")] = False,
    wait: Annotated[float, typer.Option(min=1.0, max=600.0, help="Seconds to wait for what does not answer.")] = 9.0,
) -> None:
    """Check this machine, its jobs and the way to them. Exit code 1 when a check fails."""
    from ranktop.tui.doctor.command import doctor as run

    raise typer.Exit(run(job, json_wanted=json, wait=wait))


@app.command()
def config(
    json: Annotated[bool, typer.Option("--json", help="Print the documented JSON.")] = False,
    path: Annotated[bool, typer.Option("--path", help="Print where the file is, or would be.")] = False,
    example: Annotated[bool, typer.Option("--example", help="Print a file with all defaults, commented.")] = False,
) -> None:
    """Print which settings are in force and where each comes from. Exit code 2 when the file has errors."""
    from ranktop.tui.config.command import config as run

    if json + path + example > 1:
        fail("--json, --path and --example are different questions: ask one", USAGE)
    raise typer.Exit(run(as_json=json, path=path, example=example))


@app.command()
def demo(
    strategy: Annotated[
        str,
        typer.Option(
            help="fsdp2, fsdp1, ddp or single.", autocompletion=completion.one_of("fsdp2", "fsdp1", "ddp", "single")
        ),
    ] = "fsdp2",
    ranks: Annotated[int, typer.Option(min=0, max=64, help="Processes; 0: one per GPU, else 2.")] = 0,
    minutes: Annotated[float, typer.Option(min=0.1, help="How long the job trains.")] = 4.0,
) -> None:
    """Start a small real training job on this machine and watch it; it ends with the dashboard."""
    from ranktop.tui.demo import STRATEGIES, run_demo

    if strategy not in STRATEGIES:
        fail(f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)}", USAGE)
    raise typer.Exit(run_demo(strategy, ranks, minutes))


@app.command()
def simulate(
    ranks: Annotated[int, typer.Option(min=1, max=4096, help="Ranks of the job.")] = 8,
    local: Annotated[int, typer.Option(min=1, max=64, help="Ranks of one node.")] = 8,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:rank=K][:by=X][:from=STEP]",
            help=f"What goes wrong; may be repeated: {FAULTS}.",
            autocompletion=completion.faults,
        ),
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="fsdp2 or ddp.", autocompletion=completion.one_of("fsdp2", "ddp"))
    ] = "fsdp2",
    seconds: Annotated[float, typer.Option(min=0.01, max=600, help="Length of a healthy step.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Another one gives other luck, and faults on other ranks.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Without a terminal: print after so many.")] = 30,
    list_: Annotated[bool, typer.Option("--list", help="Print what each fault does and exit.")] = False,
) -> None:
    """Watch a simulated job, labelled as such, with faults of your choice: what they look like, without a GPU."""
    from ranktop.tui.simulate import STRATEGIES, Wish, list_faults, run_simulation

    if list_:
        raise typer.Exit(list_faults())
    if strategy not in STRATEGIES:
        fail(f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)}", USAGE)
    raise typer.Exit(run_simulation(Wish(ranks, local, strategy, seconds, seed, tuple(fault or ()), steps)))


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}
)
def serve(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORDS]", help="What follows `ranktop` in a terminal: --job ID, watch ..., replay ..."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="An address that only this machine reaches (127.0.0.1:8000)."),
    ] = None,
) -> None:
    """Serve the dashboard to a browser on this machine, at an address with a token that is good once.

    Exit codes: 0 ended, 1 it cannot listen there or textual-serve is missing, 2 bad usage.
    """
    from ranktop.tui.config import given
    from ranktop.tui.serve.command import serve as run

    raise typer.Exit(run(words or [], given("serve.listen", listen)))


@app.command(
    cls=completion.Planner,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
)
def plan(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[FLAGS]", hidden=True, autocompletion=completion.planned)
    ] = None,
) -> None:
    """Compare strategies for a model: memory per GPU, traffic, what fits."""
    from ranktop.tui.plan import plan as run

    raise typer.Exit(run(arguments or []))


@app.command(
    cls=completion.Planner,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
)
def explain(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="STRATEGY [FLAGS]", hidden=True, autocompletion=completion.planned)
    ] = None,
) -> None:
    """Tell what a strategy does for a model: who holds what, formulas, traffic, knobs."""
    from ranktop.tui.explain import explain as run

    raise typer.Exit(run(arguments or []))


run_commands.add_to(app)


def choose(wanted: str) -> JobEntry:
    """Return the one live job that ``wanted`` names; exits with one clear line otherwise."""
    from ranktop.wire.endpoints import find_jobs

    found = find_jobs()
    jobs = matching(found.jobs, wanted)
    running = [entry for entry in jobs if not entry.ended]
    if len(best := running or jobs) == 1:
        return best[0]
    if not jobs:
        fail(f"no live job {wanted!r} on this machine; {_instead(wanted)}", NONE)
    names = ", ".join(f"{entry.id} ({entry.name})" for entry in jobs)
    fail(f"{wanted!r} names several jobs: {names}", USAGE)


def _instead(wanted: str) -> str:
    """Say what to do where ``wanted`` names no live job."""
    from ranktop.tui.runs import NoRun, find_past
    from ranktop.wire.recordings import list_recordings

    try:
        past = find_past(wanted, list_recordings())
    except NoRun:
        return "`ranktop jobs` lists those there are"
    return f"it is over: ranktop replay {past.job_id}"
