"""The commands about runs that may be over: jobs, export, compare, replay. Each imports what it needs itself."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from ranktop.tui.cli import USAGE, fail
from ranktop.tui.completion import jobs as jobs_here
from ranktop.tui.completion import one_of, runs
from ranktop.tui.remote import flags
from ranktop.tui.terminal import options as drawing

RUN = "FILE|JOB|HOST/JOB"


Run = Annotated[
    str | None,
    typer.Argument(metavar=RUN, help="A recording's file, a job's id or name, here or there.", autocompletion=runs),
]

ServedJob = Annotated[
    str | None,
    typer.Option(
        "--job", metavar="ID", help="Serve only this job (an id or its start, or a name).", autocompletion=jobs_here
    ),
]

Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="csv|json|parquet|recording",
        help="By default by --output's ending, or csv.",
        autocompletion=one_of("csv", "json", "parquet", "recording"),
    ),
]


def jobs(
    target: flags.MaybeTarget = None,
    json: Annotated[bool, typer.Option("--json", help="Print the documented JSON instead of a table.")] = False,
    options: flags.Options = None,
    port: flags.Port = None,
    jump: flags.Jump = None,
    identity: flags.Identity = None,
    config: flags.Config = None,
    remote_command: flags.RemoteCommand = None,
) -> None:
    """List the jobs of a machine, live and past.

    Exit codes: 0 there is one, 1 something went wrong, 2 bad usage, 3 there is none.
    """
    if target is not None:
        from ranktop.tui.remote.passing import pass_on, words

        by = flags.ways(options, remote_command, port=port, jump=jump, identity=identity, config=config)
        raise typer.Exit(pass_on(flags.way(target, by), words("jobs", json=json)))
    from ranktop.tui.jobs import print_jobs

    raise typer.Exit(print_jobs(as_json=json))


def export(
    run: Run = None,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Serve the live jobs of this machine as metrics instead.")
    ] = False,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where to serve them (127.0.0.1:9400).")
    ] = None,
    job: ServedJob = None,
    form: Form = None,
    output: Annotated[str, typer.Option("--output", metavar="FILE", help="- is standard output.")] = "-",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    first: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="10:42, +90 s from the start, -5m before the end, 40%.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="TIME", help="The same.")] = None,
    every: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="One row per rank in so many seconds.")
    ] = 0.0,
    options: flags.Options = None,
    port: flags.Port = None,
    jump: flags.Jump = None,
    identity: flags.Identity = None,
    config: flags.Config = None,
    remote_command: flags.RemoteCommand = None,
) -> None:
    """Write a recording to a file, or serve live metrics.

    A file has a row per rank and sample, or is a copy of the recording. --prometheus serves the metrics of this
    machine's live jobs until Ctrl-C.

    Exit codes: 0 written, 1 it cannot be read or written, 2 bad usage, 3 no such job.
    """
    if prometheus:
        given = {
            "RUN": run is not None, "--format": form is not None, "--output": output != "-", "--force": force,
            "--from": first is not None, "--to": last is not None, "--every": every > 0, "-o": options is not None,
            "-p": port is not None, "-J": jump is not None, "-i": identity is not None, "-F": config is not None,
            "--remote-command": remote_command is not None,
        }  # fmt: skip
        _serve_metrics([name for name, there in given.items() if there], listen, job)
    if listen is not None or job is not None:
        option = "--listen" if listen is not None else "--job"
        fail(f"{option} goes with --prometheus; a recording is named: ranktop export {RUN}", USAGE)
    if run is None:
        fail(f"name what to export: ranktop export {RUN}, or --prometheus for the live jobs' metrics", USAGE)
    from ranktop.tui.export.command import FORMATS, Wish
    from ranktop.tui.export.command import export as write

    if form is not None and form not in FORMATS:
        fail(f"--format takes {', '.join(FORMATS)}, not {form!r}", USAGE)
    wish = Wish(form=form, output=output, force=force, first=first, last=last, every=every)
    by = flags.ways(options, remote_command, port=port, jump=jump, identity=identity, config=config)
    raise typer.Exit(write(run, wish, by))


def _serve_metrics(unfit: list[str], listen: str | None, job: str | None) -> NoReturn:
    """Serve the live jobs' metrics. ``unfit``: what was given that is for recordings alone."""
    if unfit:
        fail(f"--prometheus serves the live jobs of this machine: leave out {', '.join(unfit)}", USAGE)
    from ranktop.tui.config import given
    from ranktop.tui.prometheus.command import export as serve

    raise typer.Exit(serve(given("prometheus.listen", listen), job))


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar=f"{RUN}...", help="Two or more; the first is the base.", autocompletion=runs)
    ],
    json: Annotated[bool, typer.Option("--json", help="Print the documented JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a report.")] = False,
    first: Annotated[int | None, typer.Option("--from", min=1, metavar="STEP", help="Compare from this step.")] = None,
    last: Annotated[int | None, typer.Option("--to", min=1, metavar="STEP", help="Compare up to this step.")] = None,
    options: flags.Options = None,
    port: flags.Port = None,
    jump: flags.Jump = None,
    identity: flags.Identity = None,
    config: flags.Config = None,
    remote_command: flags.RemoteCommand = None,
) -> None:
    """Lay runs beside each other: memory, step time, traffic, and what differs between their plans.

    Exit codes: 0 compared, 1 one cannot be read, 2 bad usage, 3 no such job.
    """
    from ranktop.tui.compare.command import Wish, run

    if json and markdown:
        fail("--json and --markdown are two forms: give one", USAGE)
    form = "json" if json else "markdown" if markdown else "page"
    by = flags.ways(options, remote_command, port=port, jump=jump, identity=identity, config=config)
    raise typer.Exit(run(runs, Wish(form, first, last), by))


def replay(
    run: Annotated[
        str,
        typer.Argument(metavar=RUN, help="A recording's file, a job's id or name, here or there.", autocompletion=runs),
    ],
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Begin at: 10:42, +90 s from the start, -5m before the end, 40%."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as the JSON of `ranktop status`.")] = False,
    theme: drawing.Theme = None,
    ascii_only: drawing.Ascii = None,
    options: flags.Options = None,
    port: flags.Port = None,
    jump: flags.Jump = None,
    identity: flags.Identity = None,
    config: flags.Config = None,
    remote_command: flags.RemoteCommand = None,
) -> None:
    """Open the dashboard on a recording, at its end: play, pause, step to the next finding. Pipes get a table.

    Exit codes: 0 shown, 1 it cannot be read, 2 bad usage, 3 no such job.
    """
    from ranktop.tui.replay.command import replay as show

    by = flags.ways(options, remote_command, port=port, jump=jump, identity=identity, config=config)
    raise typer.Exit(show(run, by, at=at, as_json=json, theme=theme, ascii=ascii_only))


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (jobs, export, compare, replay):
        app.command()(command)
