"""Which loss is shown of a job, how old it may be, tokens a second of ranks and jobs, what is left; in words, too."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from fake_job import FakeClock, FakeSource, fsdp_job
from fake_told import TOTAL, ToldJob, loss_at, told, told_fsdp

from ranktop.budget.plan import Batch, Layout, Plan
from ranktop.probes.reading import StepTimes
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.progress import JobProgress, losses, of_job, pace, rate_of, rate_of_job
from ranktop.tui.session.rings import Ring
from ranktop.tui.session.state import Session, Snapshot
from ranktop.tui.status_json import job_json
from ranktop.tui.status_table import progress_line
from ranktop.tui.view.layout import heights
from ranktop.tui.view.progress import activity_word, block, learning_rate_words, line, loss_words
from ranktop.tui.view.text import UNICODE
from ranktop.wire.schema import Card, End, Sample


def snapshot(job: ToldJob, seconds: float = 0.0, then: float = 0.0) -> Snapshot:
    """Play a job for so many seconds, and let nothing be heard for ``then`` more."""
    clock = FakeClock()
    session, source = Session(clock), FakeSource(job, clock)
    session.feed(source.drain())
    for _ in range(int(seconds)):
        clock.advance(1.0)
        session.feed(source.drain())
    clock.advance(then)
    return session.snapshot()


def shown(job: ToldJob, seconds: float = 0.0, then: float = 0.0) -> JobProgress:
    found = of_job(snapshot(job, seconds, then))
    assert found is not None
    return found


def words(one: JobProgress, width: int = 200) -> str:
    return "".join(text for text, _ in line(one, UNICODE, width)).strip()


def test_a_job_that_tells_nothing_has_no_line_and_no_row() -> None:
    seen = snapshot(told(fsdp_job(2), by=frozenset()))
    assert of_job(seen) is None
    assert progress_line(seen) == ""
    state = job_json(seen)
    assert state["progress"] is None
    assert [rank["progress"] for rank in state["ranks"]] == [None, None]
    assert heights(24, 8, True, 0) == heights(24, 8, True, 0, progress=False)


@pytest.mark.parametrize(("by", "rank"), [(None, 0), ({3, 5}, 3), ({7}, 7)])
def test_the_loss_is_that_of_the_lowest_rank_that_tells_one(by: set[int] | None, rank: int) -> None:
    one = shown(told_fsdp(by=None if by is None else frozenset(by)))
    assert one.told.rank == rank
    assert one.told.loss == pytest.approx(loss_at(1204) + 0.01 * rank)
    assert words(one).startswith(f"loss {one.told.loss:.4g} (rank {rank})")


def test_a_rank_that_tells_a_loss_goes_before_one_that_tells_less_and_one_that_lives_before_one_that_does_not() -> None:
    job = told_fsdp(4, changes={0: {"loss": None}})
    assert shown(job).told.rank == 1
    job.ends[1] = End(rank=1, how="signal", code=9)
    assert shown(job).told.rank == 2
    job.ends |= {rank: End(rank=rank, how="signal", code=15) for rank in (0, 2, 3)}
    assert shown(job).told.rank == 1, "all are over"


def test_the_step_of_an_older_loss_is_said_and_its_age_once_it_is_late() -> None:
    every_500 = {"steps": {"loss": 1000}, "ages": {"loss": 400.4}, "every": 1150.0}
    one = shown(told_fsdp(changes={0: every_500}))
    assert not one.told.stale
    assert f"loss {one.told.loss:.4g} (rank 0, step 1,000)" in words(one)
    late = shown(told_fsdp(changes={0: {**every_500, "every": 100.0}}))
    assert late.told.stale
    assert "(rank 0, step 1,000, 7 min ago)" in words(late)
    first = shown(told_fsdp(changes={0: {**every_500, "every": None}}))
    assert first.told.stale, "how often it comes is not known yet"


def test_a_loss_that_a_trainer_averages_names_no_rank_so_that_the_tokens_have_room_on_80_columns() -> None:
    job = told_fsdp(by=frozenset({0}), changes={0: {"source": "transformers Trainer", "steps": {"loss": 1200}}})
    one = shown(job, 5.0)
    one = replace(one, rate=replace(one.rate, source="inputs"))
    assert words(one, 80).startswith(f"loss {one.told.loss:.4g} (step 1,200)  lr 2.28e-4  step ")
    assert words(one, 80).endswith("tokens/s")


def test_values_of_a_rank_that_is_silent_are_old_and_so_is_the_job() -> None:
    one = shown(told_fsdp(1), then=20.0)
    assert one.told.stale
    assert one.told.loss_age == pytest.approx(20.4)
    assert words(one) == f"loss {one.told.loss:.4g} (rank 0, 20 s ago)  lr 2.28e-4  step 1,204 of 5,000  " + (
        "epoch 1.20  grad norm 0.8"
    )


def test_the_narrow_panel_of_a_rank_keeps_the_learning_rate_when_its_values_are_old() -> None:
    for then in (0.0, 20.0):
        view = snapshot(told_fsdp(1), then=then).ranks[0]
        text = "".join(text for text, _ in block(view, 28, UNICODE)[0])
        assert text.startswith("loss "), then
        assert text.endswith("lr 2.28e-4"), then


# -- tokens a second -------------------------------------------------------------------------------------------------


def with_plans(job: ToldJob, plans: dict[int, Plan]) -> ToldJob:
    card = job.card

    def changed(rank: int) -> Card:
        return msgspec.structs.replace(card(rank), plan=plans[rank])

    job.card = changed  # type: ignore[method-assign]
    return job


def inputs(job: ToldJob, tokens: int | None) -> ToldJob:
    step_times = job.step_times

    def counted(rank: int, index: int) -> StepTimes:
        return replace(step_times(rank, index), tokens=tokens)

    job.step_times = counted  # type: ignore[method-assign]
    return job


SILENT: dict[str, Any] = {"tokens_per_second": None}


def test_what_a_script_tells_goes_before_its_inputs_and_these_before_its_batch() -> None:
    rank = snapshot(inputs(told_fsdp(1), 8192)).ranks[0]
    assert (rate_of(rank).value, rate_of(rank).source) == (1800.0, "told")
    rank = snapshot(inputs(told_fsdp(1, changes={0: SILENT}), 8192)).ranks[0]
    seconds = [step.seconds or 0.0 for step in rank.steps]
    assert rate_of(rank).source == "inputs"
    assert rate_of(rank).value == pytest.approx(8192 * len(seconds) / sum(seconds))
    batch = snapshot(told_fsdp(1, changes={0: SILENT}))
    assert rate_of(batch.ranks[0]).source == "batch"
    assert rate_of(batch.ranks[0]).value == pytest.approx(4096 / 2.31, rel=0.03)
    one = of_job(batch)
    assert one is not None
    assert "≈1.76K tokens/s computed" in words(one)


def test_accumulation_and_a_pipelines_micro_batches_count() -> None:
    job = told_fsdp(1, changes={0: SILENT})
    job.plan = replace(job.plan, batch=Batch(micro_batch=2, sequence_length=1024, accumulation=8))
    assert rate_of(snapshot(job).ranks[0]).value == pytest.approx(2 * 1024 * 8 / 2.31, rel=0.03)
    job.plan = replace(job.plan, batch=Batch(micro_batch=2))
    assert rate_of(snapshot(job).ranks[0]).reason == "its inputs hold no sequence"


def test_ranks_of_one_replica_share_a_batch_and_count_once() -> None:
    """Eight ranks: two replicas of two shards, each a pair of tensor-parallel ranks."""
    plans = {
        rank: Plan(
            strategy="fsdp2",
            layout=Layout(
                world_size=8, replicate=2, shard=2, tensor=2, tensor_rank=rank % 2, shard_rank=rank // 2 % 2,
                replicate_rank=rank // 4,
            ),
        )
        for rank in range(8)
    }  # fmt: skip
    rates = {rank: {"tokens_per_second": 1000.0 * (1 + rank // 2)} for rank in range(8)}
    rates[3] = SILENT  # its tensor-parallel twin tells
    rate = rate_of_job(snapshot(with_plans(told_fsdp(changes=rates), plans)))
    assert (rate.value, rate.source, rate.ranks) == (1000.0 * (1 + 2 + 3 + 4), "told", 4)


def test_stages_of_a_pipeline_count_once_by_the_one_that_knows() -> None:
    plans = {
        rank: Plan(
            strategy="pp",
            layout=Layout(world_size=4, replicate=2, replicate_rank=rank // 2, pipeline=2, pipeline_rank=rank % 2),
        )
        for rank in range(4)
    }
    job = with_plans(told_fsdp(4, changes={0: SILENT, 2: SILENT}), plans)
    assert rate_of_job(snapshot(job)).value == pytest.approx(1801.0 + 1803.0)


def test_a_sum_with_a_hole_is_no_sum() -> None:
    job = told_fsdp(4, by=frozenset({0, 1, 2}))
    job.plan = replace(job.plan, batch=Batch())
    rate = rate_of_job(snapshot(job))
    assert rate.value is None
    assert rate.reason == "1 of 4 data-parallel ranks tell no tokens: its inputs hold no sequence"
    job = told_fsdp(4)
    job.absent = {3}
    assert rate_of_job(snapshot(job)).reason == ("1 of 4 data-parallel ranks tell no tokens: the rank says nothing now")
    job.absent = set()
    job.plan = replace(job.plan, layout=Layout(world_size=4, shard=5))
    assert rate_of_job(snapshot(job)).reason == "the layout tells of 5 data-parallel ranks, 4 were seen"
    job = with_plans(told_fsdp(2), {rank: Plan(layout=Layout(world_size=2, context=2)) for rank in range(2)})
    assert "context parallel" in rate_of_job(snapshot(job)).reason
    assert rate_of_job(snapshot(told_fsdp(2), then=60.0)).value is None


# -- what is left, the past, words ---------------------------------------------------------------------------------


def test_what_is_left_follows_the_pace_of_the_last_quarter_of_an_hour() -> None:
    one = shown(told_fsdp())
    assert one.remaining == pytest.approx((TOTAL - 1204) * 2.31, rel=0.03)
    assert "step 1,204 of 5,000, 2 h left" in words(one)
    assert shown(told_fsdp(changes={0: {"total_steps": None}})).remaining is None
    assert shown(told_fsdp(), then=60.0).remaining is None, "it stands"


def test_samples_that_waited_for_another_hub_and_come_at_once_are_no_pace() -> None:
    usual = 2.31
    (point, *_) = fsdp_job(1).history(0).points
    for seconds, believed in ((1.5, usual), (60.0, 60.0 / 8)):
        ring = Ring(100)
        for t, step in ((0.0, 1200), (0.0, 1204), (seconds, 1208)):
            ring.append(msgspec.structs.replace(point, t=100.0 + t, step=step))
        assert pace(ring, 100.0 + seconds, usual) == pytest.approx(believed)


def test_the_past_has_each_step_once_whoever_told_of_it() -> None:
    view = snapshot(told_fsdp(1), seconds=12).ranks[0]
    steps, values = losses(view.history)
    assert steps == sorted(set(steps))
    assert steps[-1] == 1209
    assert values == pytest.approx([loss_at(step) for step in steps], rel=1e-6)


@pytest.mark.parametrize(
    ("value", "text"), [(3e-4, "3e-4"), (2.28e-5, "2.28e-5"), (0.1, "0.1"), (0.0, "0"), (0.0099999, "1e-2")]
)
def test_learning_rates_are_short(value: float, text: str) -> None:
    assert learning_rate_words(value) == text


def test_the_line_fits_and_no_number_of_it_is_cut() -> None:
    one = shown(told_fsdp(changes={0: {"values": {"eval_loss": 2.5, "a" * 32: 1e300}, "steps": {"eval_loss": 1000}}}))
    whole = words(one, 1000)
    for width in range(1, 160):
        text = "".join(part for part, _ in line(one, UNICODE, width))
        assert len(text) == width
        parts = [part for part in text.strip().split("  ") if part]
        assert all(part in whole for part in parts), width
        assert not parts or parts[0].startswith("loss 2.026")
        assert width < 80 or len(parts) >= 4


def test_eight_numbers_of_the_line_for_wide_screens() -> None:
    changes = {"values": {"eval_loss": 2.5}, "steps": {"eval_loss": 1000}, "ages": {"eval_loss": 400.0}}
    told_line = words(shown(told_fsdp(changes={0: changes})))
    assert told_line.endswith("14.4K tokens/s  eval_loss 2.500 (step 1,000)  epoch 1.20  grad norm 0.8")


def test_a_line_about_progress_takes_the_legends_row_or_one_that_is_free() -> None:
    assert heights(24, 8, True, 0, keep_legend=False, progress=True).legend == 0
    assert heights(24, 8, True, 0, keep_legend=True, progress=True).progress == 0
    assert heights(24, 8, True, 1, keep_legend=False, progress=True).progress == 0
    for total in range(1, 70):
        for ranks in (1, 2, 8, 100):
            for found in (0, 1, 5):
                for detail in (True, False):
                    before = heights(total, ranks, detail, found, keep_legend=False)
                    share = heights(total, ranks, detail, found, keep_legend=False, progress=True)
                    parts = (share.header, share.heading, share.ranks, share.legend, share.findings, share.detail)
                    assert sum(parts) + share.footer == total
                    assert min(parts) >= 0
                    assert share.ranks >= min(ranks, before.ranks) or total >= 30


# -- a loss that is no number ----------------------------------------------------------------------------------------


NAN = {"loss": None, "not_finite": {"loss": "nan"}, "bad_losses": 3, "bad_since": 1202}


def the_loss(job: ToldJob) -> Finding:
    (found,) = [finding for finding in snapshot(job).findings if finding.rule == "loss"]
    assert found.advice
    return found


def test_a_loss_that_is_nan_on_some_ranks_names_them_and_the_first_step() -> None:
    found = the_loss(told_fsdp(changes={3: NAN, 5: {**NAN, "bad_since": 1203}}))
    assert found.sentence == "the loss is NaN since step 1,202 on ranks 3, 5; finite on ranks 0-2, 4, 6, 7"
    assert (found.severity, found.ranks, found.step, found.short) == ("critical", (3, 5), 1202, "loss NaN")


def test_a_loss_that_is_nan_everywhere_or_on_the_only_rank_that_tells() -> None:
    everywhere = the_loss(told_fsdp(changes=dict.fromkeys(range(8), NAN)))
    assert everywhere.sentence == "the loss is NaN since step 1,202 on all 8 ranks that tell one"
    infinite = {**NAN, "not_finite": {"loss": "inf"}, "bad_since": None}
    only = the_loss(told_fsdp(by=frozenset({0}), changes={0: infinite}))
    assert only.sentence == "the loss is infinite on rank 0, the only one that tells it"
    assert words(shown(told_fsdp(by=frozenset({0}), changes={0: infinite}))).startswith("loss infinite (rank 0)")


def test_a_loss_that_is_finite_again_is_a_note_and_a_sound_one_is_none() -> None:
    found = the_loss(told_fsdp(changes={3: {"bad_losses": 2, "bad_since": 900}}))
    assert found.severity == "info"
    assert found.sentence == (
        "the loss was NaN or infinite 2 times on rank 3, last from step 900 on; it is finite again"
    )
    assert [finding for finding in snapshot(told_fsdp()).findings if finding.rule == "loss"] == []


# -- for scripts -----------------------------------------------------------------------------------------------------


def test_the_json_has_what_was_told_of_ranks_and_of_the_job() -> None:
    changes = {"values": {"eval\x1b[0m_loss": 2.5}, "epoch": None, "not_finite": {"epoch": "inf"}}
    state = json.loads(json.dumps(job_json(snapshot(told_fsdp(2, changes={0: changes}, activities={1: "save"})))))
    rank = state["ranks"][0]["progress"]
    assert (rank["step"], rank["loss_step"], rank["total_steps"]) == (1204, 1204, TOTAL)
    assert rank["loss"] == pytest.approx(loss_at(1204))
    assert rank["values"] == {"eval_loss": {"value": 2.5, "step": 1204, "age": pytest.approx(0.4)}}
    assert rank["reasons"] == {"epoch": "it is inf"}
    assert state["progress"]["rank"] == 0
    assert state["progress"]["remaining"] == pytest.approx((TOTAL - 1204) * 2.31, rel=0.03)
    assert state["rate"] == {"tokens_per_second": 3601.0, "from": "told", "reason": ""}
    assert [one["activity"] for one in state["ranks"]] == [None, "save"]
    for name, value in state["progress"].items():
        assert value is not None or name in state["progress"]["reasons"] or name == "not_finite_since_step"


def test_an_activity_is_shown_as_the_script_names_it_and_known_ones_alike() -> None:
    view = snapshot(told_fsdp(3, activities={0: "Checkpoint", 1: "evaluation", 2: "roll\x1b[31mout"})).ranks
    assert [activity_word(one) for one in view] == ["saving", "validating", "rollout"]


def test_hostile_numbers_are_shown_and_break_nothing() -> None:
    wild = {
        "loss": -1e308, "learning_rate": 1e-308, "step": -(2**60), "total_steps": 1, "epoch": 1e300, "age": -5.0,
        "counted": 2**62, "every": -1.0, "tokens_per_second": 1e300, "not_finite": {"x" * 900: "\x1b]0;x\x07"},
        "steps": {"loss": 2**62}, "ages": {"loss": -3.0}, "bad_losses": -1, "values": {"\x1b[2J": 1.0},
    }  # fmt: skip
    seen = snapshot(told_fsdp(2, changes={0: wild, 1: wild}), seconds=3)
    one = of_job(seen)
    assert one is not None
    assert all(text.isprintable() for text, _ in line(one, UNICODE, 120))
    assert math.isfinite(json.loads(json.dumps(job_json(seen)))["progress"]["loss"])
    assert loss_words(one.told)[0].startswith("loss -1.000e+308")
    assert isinstance(seen.ranks[0].sample, Sample)
