"""What a script tells is kept: by a hub, in a recording, thinned or not, in exports and comparisons."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from compared_runs import Run, ddp, fsdp2
from fake_told import loss_at

from ranktop.agent.hub_history import PointRing
from ranktop.tui.compare.command import Wish, run
from ranktop.tui.compare.losses import MOST, Losses
from ranktop.tui.export.command import Wish as ExportWish
from ranktop.tui.export.command import export
from ranktop.tui.replay.session_at import session_at
from ranktop.tui.session.progress import learning_rates, losses, of_job
from ranktop.wire.points import point_of
from ranktop.wire.progress import Progress
from ranktop.wire.recording import Recording
from ranktop.wire.recording_thinning import thin
from ranktop.wire.schema import Job, Sample

STEPS = 60
NAN_FROM = 50


def saying(more: float = 0.0, every: int = 1, nan_from: int = 10**6) -> Run:
    """A run whose ranks tell a loss every so many steps; ``more``: added to it."""

    def sample(made: Sample) -> Sample:
        step = 1000 + made.step - made.step % every
        bad = made.step >= nan_from
        told = Progress(
            step=1000 + made.step, loss=None if bad else loss_at(step) + more, learning_rate=1e-3 / step,
            source="script", steps={} if every == 1 else {"loss": step}, counted=made.step,
            not_finite={"loss": "nan"} if bad else {}, bad_losses=int(bad), bad_since=1000 + nan_from if bad else None,
        )  # fmt: skip
        return msgspec.structs.replace(made, progress=told, activity="save" if made.step == STEPS else "")

    return Run(fsdp2(), steps=STEPS, sample=sample)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = saying(nan_from=NAN_FROM)
    return replace(made, path=tmp_path_factory.mktemp("kept") / "told.ranktop").record()


def test_a_replay_has_the_losses_of_its_time_and_no_later_ones(recording: Path) -> None:
    with Recording.open(recording) as tape:
        early, end = session_at(tape, 62.0).snapshot(), session_at(tape).snapshot()
    one = of_job(early)
    assert one is not None
    assert one.told.loss == pytest.approx(loss_at(one.told.loss_step or 0))
    steps, values = losses(early.ranks[0].history)
    assert steps[-1] == one.told.loss_step
    assert values == pytest.approx([loss_at(step) for step in steps], rel=1e-6)
    assert learning_rates(early.ranks[0].history) == pytest.approx([1e-3 / step for step in steps], rel=1e-6)
    assert not [finding for finding in early.findings if finding.rule == "loss"]
    (found,) = [finding for finding in end.findings if finding.rule == "loss"]
    assert found.sentence == f"the loss is NaN since step {1000 + NAN_FROM:,} on all 2 ranks that tell one"
    assert losses(end.ranks[0].history)[0][-1] == 1000 + NAN_FROM - 1


def test_points_that_are_thinned_keep_loss_and_step(tmp_path: Path) -> None:
    path = replace(saying(), path=tmp_path / "thin.ranktop").record()
    import sqlite3

    from ranktop.wire.recording_file import unpack_points

    connection = sqlite3.connect(path, isolation_level=None)
    while connection.execute("SELECT count(*) FROM chunks WHERE kind='points' AND level < 2").fetchone()[0]:
        assert thin(connection)
    rows = connection.execute("SELECT data FROM chunks WHERE kind = 'points'").fetchall()
    connection.close()
    points = [point for (data,) in rows for part in unpack_points(data) for point in part.points]
    assert points
    assert all(point.loss == pytest.approx(loss_at(point.loss_step or 0)) for point in points)


def test_a_hubs_history_has_them_and_unknown_stays_unknown() -> None:
    ring = PointRing(ranks=8)
    known = Sample(rank=0, progress=Progress(step=2**40, loss=-1.5, learning_rate=1e-9))
    ring.add(point_of(known, 1.0))
    ring.add(point_of(Sample(rank=0, progress=Progress(not_finite={"loss": "nan"}, counted=7)), 2.0))
    ring.add(point_of(Sample(rank=0), 3.0))
    told = [(point.loss, point.learning_rate, point.loss_step) for point in ring.points(3.0)]
    assert told == [(-1.5, 1e-9, 2**40), (None, None, 7), (None, None, None)]


def test_an_export_has_a_column_for_each(recording: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert export(str(recording), ExportWish()) == 0
    rows = list(csv.DictReader(io.StringIO(capfdbinary.readouterr().out.decode())))
    first, last = rows[0], rows[-1]
    assert (first["trainer_step"], first["loss_step"], first["activity"]) == ("1001", "1001", "")
    assert float(first["loss"]) == pytest.approx(loss_at(1001))
    assert float(first["learning_rate"]) == pytest.approx(1e-3 / 1001)
    assert (last["loss"], last["loss_not_finite"], last["activity"]) == ("", "nan", "save")


def test_losses_are_compared_at_the_last_step_that_both_have_come_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = Run(ddp(), steps=40, path=tmp_path / "silent.ranktop")
    silent.job.job = Job(id="5111", name="silent", world_size=2)
    runs = [
        replace(saying(), path=tmp_path / "a.ranktop"),
        replace(saying(more=0.5, every=2), steps=50, path=tmp_path / "b.ranktop"),
        silent,
    ]
    paths = [str(one.record()) for one in runs]
    assert run(paths, Wish("json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["loss_step"] == 1050
    first, second, none = told["runs"]
    assert (first["loss"]["last_step"], second["loss"]["last_step"], none["loss"]) == (1060, 1050, None)
    assert first["loss"]["last"] == pytest.approx(loss_at(1060))
    assert told["differences"][0]["loss"]["difference"] == pytest.approx(0.5, abs=0.1)
    assert told["differences"][0]["loss"]["real"] is True
    assert told["differences"][1]["loss"] is None
    assert run(paths[:2], Wish()) == 0
    page = capsys.readouterr().out
    assert "at step 1,050" in page
    assert f"{loss_at(1060):.4g} (1,060)" in page


def test_the_losses_of_a_long_run_are_bounded_and_the_last_is_kept() -> None:
    kept = Losses()
    for step in range(1, 5 * MOST):
        for rank in (1, 0) if step > 100 else (1,):
            told = Progress(step=step, loss=float(step))
            kept.take(rank, Sample(rank=rank, progress=told))
    kept.take(0, Sample(rank=0, progress=Progress(step=5 * MOST, not_finite={"loss": "nan"})))
    assert kept.rank == 0
    assert len(kept.told) <= MOST + 1
    assert kept.told[kept.last] == kept.last == 5 * MOST - 1
    assert math.isclose(min(kept.told), 101, abs_tol=200)
