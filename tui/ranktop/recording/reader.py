"""Opens a recording and answers from it, by the rows of ``ranktop export`` and the session of a replay."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from ranktop.recording.sample import BY_NAME, Held, Sample, Series
from ranktop.recording.times import Time, moment
from ranktop.tui.export.columns import COLUMNS
from ranktop.tui.export.events import events
from ranktop.tui.export.rows import Stretch, rows
from ranktop.tui.runs import NoRun, find_run
from ranktop.tui.view.text import plain
from ranktop.wire.recording import Recording
from ranktop.wire.recording_file import RecordingError

if TYPE_CHECKING:
    import pandas

    from ranktop.tui.session.findings.finding import Finding
    from ranktop.tui.session.state import Snapshot

PANDAS: dict[str, str] = {"int": "Int64", "float": "Float64", "text": "string"}
"""Type of a column -> that of pandas, in which what is not known is missing."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Whose recording it is."""

    id: str
    name: str
    world_size: int
    launcher: str
    """``torchrun``, ...; empty: not known."""
    simulated: bool
    host: str
    """Of the hub that wrote it."""
    started: float
    """Wall clock, seconds since the epoch."""
    ended: float | None
    """Wall clock of the end; None while it is being written."""


def open_recording(path_or_job: str | PathLike[str]) -> Reader:
    """Open a file, or the recording of a job of this machine by its id (or its beginning) or name, live or past.

    ``user@host/job`` is fetched through your own ssh. Raises RecordingError: one line, what is wrong and what to do.
    """
    try:
        run = find_run(fspath(path_or_job))
        if run.path is None:
            raise RecordingError(f"job {plain(run.job_id)} is not recorded; `ranktop status --json` tells of it")
        return Reader(Recording.open(run.path))
    except NoRun as error:
        raise RecordingError(str(error)) from None


class Reader:
    """One open recording; a context manager. For one thread at a time. Whatever it does may raise RecordingError.

    A time is given as seconds since the epoch, as a datetime, or as ``ranktop export --from`` takes it: ``"10:40"``,
    ``"+90"`` from the start, ``"-5m"`` before the end, ``"40%"``. ``first`` and ``last``: of what is wanted, None: all.
    ``every``: the first sample of each rank in so many seconds. ``ranks``: None for all.
    """

    def __init__(self, recording: Recording) -> None:
        """Use ``open_recording``."""
        self._recording = recording

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._recording.close()

    def refresh(self) -> None:
        """Look again at the recording of a job that runs: ``end`` and ``job`` are of the last look."""
        self._recording.refresh()

    @property
    def path(self) -> str:
        """The file."""
        return str(self._recording.path)

    @property
    def job(self) -> JobFacts:
        """Whose it is."""
        about, job = self._recording, self._recording.job
        return JobFacts(
            id=plain(job.id), name=plain(job.name), world_size=job.world_size, launcher=plain(job.launcher),
            simulated=about.simulated, host=plain(about.host), started=about.started, ended=about.ended,
        )  # fmt: skip

    @property
    def live(self) -> bool:
        """Whether it is still being written."""
        return self._recording.live

    @property
    def begin(self) -> float:
        """When it begins, wall clock, seconds since the epoch."""
        return self._recording.wall(self._recording.begin)

    @property
    def end(self) -> float:
        """Up to when it tells, wall clock, seconds since the epoch."""
        return self._recording.wall(self._recording.end)

    @property
    def duration(self) -> float:
        """Seconds from begin to end, also where the wall clock was set meanwhile."""
        return self._recording.end - self._recording.begin

    @property
    def steps(self) -> int:
        """The largest step that any rank finished."""
        return self._recording.steps

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have spoken, ascending."""
        found = self._recording.rows("SELECT DISTINCT rank FROM lives WHERE rank >= 0 ORDER BY rank LIMIT 1000000")
        return tuple(rank for (rank,) in found if isinstance(rank, int))

    @property
    def cards(self) -> dict[int, dict[str, Any]]:
        """Rank -> what it last said of itself: node, device, model, parameters, strategy, versions (docs/export.md)."""
        told = (each for each in events(self._recording, self._stretch()) if each["kind"] == "card")
        return {each["rank"]: each["body"] for each in told if each["rank"] is not None}

    @property
    def strategy(self) -> str | None:
        """The strategy in words, as the first rank with a model tells it; None before a model has run."""
        cards = self.cards
        return next((cards[rank]["strategy_words"] for rank in sorted(cards) if cards[rank]["strategy_words"]), None)

    @property
    def columns(self) -> dict[str, str]:
        """Column -> unit (``B``, ``s``, ``%``, ``W``, ...; empty for counts and texts): docs/export.md."""
        return {column.name: column.unit for column in COLUMNS}

    def samples(
        self, first: Time | None = None, last: Time | None = None, *, every: float = 0.0,
        ranks: Collection[int] | None = None,
    ) -> Iterator[Sample]:  # fmt: skip
        """Yield what the ranks said, in order of time; nothing is held in memory."""
        for row in rows(self._recording, self._stretch(first, last, every)):
            if ranks is None or row.header.rank in ranks:
                yield Sample(row)

    def series(
        self, column: str, first: Time | None = None, last: Time | None = None, *, every: float = 0.0,
        ranks: Collection[int] | None = None,
    ) -> dict[int, Series]:  # fmt: skip
        """Return rank -> times and values of one column. KeyError for a column that there is none."""
        if column not in BY_NAME:
            from difflib import get_close_matches

            close = get_close_matches(column, BY_NAME, n=3)
            raise KeyError(f"no column {column!r}; {f'close are {close}' if close else 'docs/export.md lists them'}")
        found: dict[int, Series] = {}
        for sample in self.samples(first, last, every=every, ranks=ranks):
            one = found.setdefault(sample.rank, Series([], []))
            one.times.append(sample.time)
            one.values.append(sample[column])
        return found

    def category(
        self, name: str, first: Time | None = None, last: Time | None = None, *, every: float = 0.0,
        ranks: Collection[int] | None = None,
    ) -> dict[int, Held]:  # fmt: skip
        """Return rank -> what it held of a category (or in ``total``) beside what it should, over time.

        Expected is None where the strategy's rules don't speak of it. KeyError for a category that there is none.
        """
        if f"measured_{name}" not in BY_NAME:
            raise KeyError(f"no category {name!r}; docs/export.md lists them")
        found: dict[int, Held] = {}
        for sample in self.samples(first, last, every=every, ranks=ranks):
            one = found.setdefault(sample.rank, Held([], [], []))
            one.times.append(sample.time)
            one.measured.append(sample.measured[name])
            one.expected.append(sample.expected.get(name))
        return found

    def events(self, first: Time | None = None, last: Time | None = None) -> list[dict[str, Any]]:
        """Return what happened beside the samples, in order of time: cards, stacks, boxes, ends, marks, nodes.

        Each has time, t, kind, rank (None: the job as a whole), pid, restart and body (docs/export.md).
        """
        return list(events(self._recording, self._stretch(first, last)))

    def findings(self, at: Time | None = None) -> list[dict[str, Any]]:
        """Return what was out of line at a time, the gravest first; None: at the end, or when the first rank left.

        Each is as under ``findings`` of ``ranktop status --json`` (docs/status.md), but ``since`` tells ``time``
        (wall clock, seconds since the epoch) and ``step``, each None where it is not known.
        """
        from ranktop.tui.replay.session_at import last_findings, parting, session_at

        if at is not None:
            snapshot = session_at(self._recording, moment(at, self._recording)).snapshot()
            told = [(finding, snapshot) for finding in snapshot.findings]
        else:
            told = list(last_findings(self._recording, parting(self._recording)).values())
        return [self._finding(*each) for each in sorted(told, key=lambda each: -each[0].gravity)]

    def _finding(self, finding: Finding, snapshot: Snapshot) -> dict[str, Any]:
        from ranktop.tui.status_findings import beginning, finding_facts

        seconds, step = beginning(finding, snapshot)
        time = self._recording.wall(snapshot.now - seconds) if seconds is not None else None
        return {**finding_facts(finding), "since": {"time": time, "step": step}}

    def status(self, at: Time | None = None) -> dict[str, Any]:
        """Return the job as it was at a time (None: at the end), as under ``jobs`` of ``ranktop status --json``."""
        from ranktop.tui.replay.session_at import session_at
        from ranktop.tui.status_json import job_json

        t = moment(at, self._recording) if at is not None else None
        return job_json(session_at(self._recording, t).snapshot())

    def to_pandas(
        self, first: Time | None = None, last: Time | None = None, *, every: float = 0.0,
        ranks: Collection[int] | None = None,
    ) -> pandas.DataFrame:  # fmt: skip
        """Return a row for each sample with the columns of ``ranktop export``; what is not known is missing.

        Raises ImportError with one line when pandas is not installed.
        """
        from ranktop.budget.notebook.frames import frame

        values: dict[str, list[Any]] = {name: [] for name in BY_NAME}
        for sample in self.samples(first, last, every=every, ranks=ranks):
            for name, column in values.items():
                column.append(sample[name])
        return frame([(column.name, PANDAS[column.type]) for column in COLUMNS], values)

    def _stretch(self, first: Time | None = None, last: Time | None = None, every: float = 0.0) -> Stretch:
        about = self._recording
        after = about.begin - 1.0 if first is None else moment(first, about)
        until = about.end if last is None else moment(last, about)
        if until < after:
            raise RecordingError("last is before first")
        return Stretch(after, until, every)

    def __repr__(self) -> str:
        job = self.job
        return f"<Recording of {job.name} ({job.id}): {job.world_size} ranks, {self.duration:.0f} s>"
