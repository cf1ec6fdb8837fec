"""A job that stands: who everyone waits for is named within seconds; what takes long for a good reason is no hang."""

from __future__ import annotations

import msgspec
import pytest
from lockstep import wired
from standing_job import (
    ALL_REDUCE,
    BARRIER,
    COMPILE,
    ENGINE,
    LOAD,
    LOOP,
    SAVE,
    TRAIN,
    VALIDATE,
    Rank,
    Standing,
    world,
)

from ranktop.probes.reading import GroupPosition
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.stacks import occupation, operation, script_call, waits, where
from ranktop.tui.session.rank_view import RankView
from ranktop.wire.schema import Call, Card, End, Job, Stack

BEHIND = (world(1202, 1202),)
IN_IT = "the others are in all_reduce 1,203 of the default group"


def one_behind(rank: Rank, waiting: Rank | None = None) -> dict[int, Rank]:
    """Rank 2 of four is as given, the others wait in the collective after."""
    return {number: rank if number == 2 else waiting or Rank() for number in range(4)}


def the_hang(job: Standing) -> Finding:
    (found,) = job.found("hang")
    return found


def facts(finding: Finding) -> dict[str, object]:
    return {fact.name: fact.value for fact in finding.evidence}


def test_a_rank_with_a_blocked_dataloader_is_named_with_its_place_in_the_script() -> None:
    job = Standing(one_behind(Rank(BEHIND, LOAD, "data", utilization=0, power=60.0))).run(14)
    found = the_hang(job)
    assert found.ranks == (2,)
    assert found.severity == "critical"
    assert found.confidence == "high"
    assert found.short == "holds up all"
    assert found.sentence == (
        "the job has stood for 14 s: 3 ranks wait for rank 2, which is in load_batch (train.py:31); "
        "the others are in all_reduce 1,203 of the default group"
    )
    assert found.since == pytest.approx(1_000.0)
    assert found.step == 1200
    told = facts(found)
    assert told["rank 2: enqueued in the default group"] == 1202
    assert told["rank 0: enqueued in the default group"] == 1203
    assert told["rank 2: caller 1"] == "load_batch (train.py:31)"
    assert told["their GPUs"] == "busy at little power: they wait in NCCL"
    assert job.told[-1][1].state == "stalled"


@pytest.mark.parametrize(("usual", "within"), [(0.05, 10.15), (0.4, 11.2), (1.0, 13.0), (3.0, 19.0), (10.0, 40.0)])
def test_a_stand_is_told_within_ten_seconds_of_three_usual_steps(usual: float, within: float) -> None:
    job = Standing(one_behind(Rank(BEHIND, LOAD, "data")), usual=usual).run(45)
    first = job.first("hang")
    assert first is not None
    assert first <= within
    assert all(not snapshot.findings for second, snapshot in job.told if second <= max(8.0, 3 * usual))


def test_a_rank_whose_stack_is_not_heard_is_given_a_moment_and_then_named_by_its_phase() -> None:
    job = Standing(one_behind(Rank(BEHIND, None, "forward"), Rank(calls=None)), backend="gloo").run(14)
    assert job.first("hang") == 10.0
    assert the_hang(job).ranks == (2,)
    assert the_hang(job).sentence.endswith(
        "wait for rank 2, which is in forward; the others are in collective 1,203 of the default group"
    )
    assert the_hang(job).confidence == "medium"
    told = facts(the_hang(job))
    assert "rank 2: all CPUs of its node busy" in told
    assert not any("GPU" in name for name in told)


@pytest.mark.parametrize(
    ("rank", "why"),
    [
        (Rank(silent=True, process="stopped"), "3 ranks wait for rank 2, whose process is stopped"),
        (Rank(BEHIND, silent=True), f"3 ranks wait for rank 2, which is silent; {IN_IT}"),
        (
            Rank(BEHIND, ended=End(rank=2, how="exit", code=0)),
            f"3 ranks wait for rank 2, which has ended; {IN_IT}",
        ),
    ],
    ids=["stopped", "silent", "ended"],
)
def test_a_rank_that_cannot_come_is_named(rank: Rank, why: str) -> None:
    job = Standing(one_behind(rank)).run(14)
    assert the_hang(job).ranks == (2,)
    assert the_hang(job).sentence == f"the job has stood for 14 s: {why}"
    assert the_hang(job).severity == "critical"


def test_a_job_of_which_all_ranks_are_stopped_was_suspended_and_nobody_waits() -> None:
    job = Standing({rank: Rank(silent=True, process="stopped") for rank in range(4)}).run(14)
    assert the_hang(job).severity == "warning"
    assert the_hang(job).sentence == "the job has stood for 14 s: all ranks are stopped (SIGSTOP, or a debugger)"


def test_a_rank_that_was_killed_is_told_as_dead_and_not_as_a_hang() -> None:
    job = Standing(one_behind(Rank(BEHIND, ended=End(rank=2, how="signal", code=9)))).run(14)
    assert [finding.rule for finding in job.told[-1][1].findings] == ["death"]


@pytest.mark.parametrize("positions", [(world(1203, 1202),), (world(1206, 1202),)], ids=["as far", "ahead"])
def test_a_rank_in_another_collective_than_the_others_is_named(positions: tuple[GroupPosition, ...]) -> None:
    """It left one out: what it has enqueued next stands beside what it should have entered."""
    job = Standing(one_behind(Rank(positions, ALL_REDUCE), Rank(calls=BARRIER))).run(14)
    assert the_hang(job).ranks == (2,)
    assert "rank 2 is in another collective than the 3 others" in the_hang(job).sentence
    assert "all_reduce in train (train.py:48) instead of barrier in train (train.py:50)" in the_hang(job).sentence


def test_many_that_load_data_are_waited_for_by_the_one_that_is_ahead() -> None:
    slow = Rank(BEHIND, LOAD, "data")
    job = Standing({0: slow, 1: Rank(), 2: slow, 3: slow}).run(14)
    assert the_hang(job).ranks == (0, 2, 3)
    assert "rank 1 waits for ranks 0, 2, 3, which" in the_hang(job).sentence
    assert the_hang(job).sentence.endswith("; rank 1 is in all_reduce 1,203 of the default group")


def test_a_collective_that_all_are_in_and_that_does_not_complete_names_no_rank() -> None:
    job = Standing({rank: Rank() for rank in range(4)}).run(14)
    assert the_hang(job).ranks == ()
    assert the_hang(job).sentence == (
        "the job has stood for 14 s: all 4 ranks are in all_reduce 1,203 of the default group, which does not complete"
    )


def test_a_rank_that_waits_in_its_own_group_is_not_who_the_others_wait_for() -> None:
    def tensor(enqueued: int, name: str) -> GroupPosition:
        return GroupPosition(name, "tp", 2, enqueued, 50)

    job = Standing({
        0: Rank((world(899, 899), tensor(50, "1")), LOAD),
        1: Rank((world(899, 899), tensor(51, "1")), ENGINE),
        2: Rank((world(900, 899), tensor(70, "2")), ENGINE),
        3: Rank((world(900, 899), tensor(70, "2")), ENGINE),
    }).run(14)  # fmt: skip
    assert the_hang(job).ranks == (0,)
    assert the_hang(job).peers == (1, 2, 3)


def test_ranks_that_wait_for_each_other_are_a_circle() -> None:
    def tensor(enqueued: int) -> GroupPosition:
        return GroupPosition("1", "tp", 2, enqueued, 50)

    job = Standing({
        0: Rank((world(900, 899), tensor(50))), 1: Rank((world(899, 899), tensor(51))),
        2: Rank((world(900, 899),)), 3: Rank((world(900, 899),)),
    }).run(14)  # fmt: skip
    assert the_hang(job).ranks == (0, 1)
    assert "wait for each other" in the_hang(job).sentence


def test_a_rank_that_left_a_collective_out_and_waits_in_another_group_is_named() -> None:
    """Rank 2 has skipped the averaging of the loss (group 1) and is in the next step's backward."""
    others = Rank((world(136, 136), world(17, 16, name="1")), ALL_REDUCE, "data")
    job = Standing(one_behind(Rank((world(138, 136), world(16, 16, name="1")), ENGINE), others), backend="gloo").run(14)
    assert the_hang(job).ranks == (2,)
    assert the_hang(job).sentence == (
        "the job has stood for 14 s: rank 2 has not entered all_reduce 17 of group 1, in which the 3 others wait, "
        "and is in train (train.py:44)"
    )


def test_a_job_that_goes_on_is_heard_of_rank_by_rank_and_nobody_stands_meanwhile() -> None:
    job = Standing({rank: Rank(BEHIND, VALIDATE, "data") for rank in range(4)}, usual=0.1).run(14)
    job.steps += 5
    for rank in (0, 1, 2, 3):
        job.clock.advance(0.2)
        job.session.feed([job.message(rank, 0.0)])
        assert not job.session.snapshot().findings


def test_a_rank_that_stands_while_the_others_go_on_is_told() -> None:
    others = Rank(positions=(), goes_on=True)
    job = Standing(one_behind(Rank(positions=(), calls=LOAD), others)).run(14)
    assert the_hang(job).ranks == (2,)
    assert the_hang(job).sentence == ("rank 2 has stood for 14 s in load_batch (train.py:31) while the others go on")
    assert job.told[-1][1].state == "running"


def test_ranks_that_nobody_waits_for_are_told_gravely_only_in_time() -> None:
    job = Standing({rank: Rank(BEHIND, LOAD, "data") for rank in range(4)}).run(70)
    (early,) = next(s.findings for second, s in job.told if second == 20)
    assert (early.severity, early.confidence) == ("info", "low"), "all may be at work on something else"
    (later,) = next(s.findings for second, s in job.told if second == 35)
    assert later.severity == "warning"
    assert "all 4 ranks are in load_batch (train.py:31)" in early.sentence
    assert the_hang(job).severity == "critical"


def test_a_job_of_one_rank_stands_as_well() -> None:
    job = Standing({0: Rank((), LOAD, "data")}, backend="").run(14)
    assert the_hang(job).sentence == "the job has stood for 14 s: rank 0 is in load_batch (train.py:31)"


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [
        (
            one_behind(Rank(BEHIND, SAVE, "data"), Rank(calls=BARRIER)),
            "rank 2 has been saving a checkpoint for 30 s; the others wait",
        ),
        (
            one_behind(Rank(BEHIND, VALIDATE, "data"), Rank(calls=BARRIER)),
            "rank 2 has been validating for 30 s; the others wait",
        ),
        ({rank: Rank(BEHIND, None, "eval") for rank in range(4)}, "all 4 ranks have been validating for 30 s"),
        ({rank: Rank(BEHIND, COMPILE, "forward") for rank in range(4)}, "all 4 ranks have been compiling for 30 s"),
        (
            one_behind(Rank(BEHIND, LOAD, "data", activity="checkpoint"), Rank(calls=BARRIER)),
            "rank 2 has been saving a checkpoint for 30 s; the others wait",
        ),
        (
            one_behind(Rank(BEHIND, silent=True, activity="save"), Rank(calls=BARRIER)),
            "rank 2 has been saving a checkpoint for 30 s; the others wait",
        ),
        (
            {rank: Rank(moves=True, activity="Evaluation") for rank in range(4)},
            "all 4 ranks have been validating for 30 s",
        ),
        (
            # Rank 2 is done with its part of the validation and waits in the next step.
            {rank: Rank() if rank == 2 else Rank(BEHIND, LOAD, activity="validation") for rank in range(4)},
            "ranks 0, 1, 3 have been validating for 30 s; the others wait",
        ),
        ({rank: Rank(moves=True) for rank in range(4)}, "no step has finished for 30 s, but collectives go on"),
        (
            {rank: Rank((), LOAD) for rank in range(4)},
            "the training is over: no step for 30 s, the process groups are closed",
        ),
    ],
    ids=[
        "save",
        "validate by stack",
        "validate by phase",
        "compile",
        "told save",
        "silent in a save",
        "told validation",
        "told by many",
        "long step",
        "closed",
    ],
)
def test_what_takes_long_for_a_good_reason_is_no_hang(ranks: dict[int, Rank], sentence: str) -> None:
    job = Standing(ranks).run(30)
    (found,) = job.found("pause")
    assert found.sentence == sentence
    assert found.severity == "info"
    assert job.first("hang") is None
    assert {snapshot.state for _, snapshot in job.told} == {"running"}


def test_a_rank_that_does_not_validate_is_named_though_all_others_say_that_they_do() -> None:
    others = Rank(calls=BARRIER, activity="validation")
    job = Standing(one_behind(Rank(BEHIND, LOAD, "data", activity="rollout"), others)).run(14)
    assert the_hang(job).ranks == (2,)
    assert facts(the_hang(job))["rank 2: by the script's word in"] == "rollout"


def test_a_validation_of_three_minutes_is_no_hang_and_one_of_an_hour_is_looked_at() -> None:
    job = Standing({rank: Rank(BEHIND, LOAD, activity="validation") for rank in range(4)}).run(14)
    for second, severity in ((180, "info"), (3600, "warning")):
        job.clock.now = 1_000.0 + second
        job.session.feed([job.message(rank, float(second)) for rank in job.ranks])
        (found,) = job.session.snapshot().findings
        assert (found.rule, found.severity) == ("pause", severity)


def test_nobody_is_blamed_when_a_stand_is_over_and_the_first_ranks_tell() -> None:
    """A checkpoint took 14 s: ranks 0 and 2 are heard of in the next step, the newest of rank 1 is from before."""
    job = Standing({0: Rank(BEHIND, SAVE, "data"), 1: Rank(), 2: Rank()}).run(14)
    assert job.found("pause")
    job.clock.now += 1.0
    for rank in (0, 2):
        job.ranks[rank].positions = (world(1204, 1203),)
        sample = job.sample(rank, 15.0)
        before = (BEHIND if rank == 0 else Rank().positions)[0].enqueued
        looks = tuple(msgspec.structs.replace(look, positions=(before,)) for look in sample.looks)
        job.session.feed([wired(rank, msgspec.structs.replace(sample, looks=looks))])
    assert [one for one in job.session.snapshot().findings if one.severity != "info"] == []


def test_the_last_rank_of_a_job_that_comes_to_its_end_is_at_work() -> None:
    gone = {rank: Rank(BEHIND, ended=End(rank=rank, how="exit", code=0)) for rank in (1, 2, 3)}
    job = Standing({0: Rank(BEHIND, LOAD, ""), **gone}).run(30)
    assert job.first("hang") is None
    assert "3 of 4 ranks have ended" in job.found("pause")[0].sentence


def test_a_rank_that_waits_in_a_checkpoint_is_not_saving() -> None:
    """Rank 0 gathers a state that the others never join: it is ahead, not at work."""
    gathering = (
        TRAIN, Call("train.py", 20, "save_checkpoint"), Call("torch/nn/modules/module.py", 2200, "state_dict"),
        Call("torch/distributed/distributed_c10d.py", 3900, "all_gather_into_tensor"),
    )  # fmt: skip
    job = Standing({rank: Rank(calls=gathering if rank == 0 else ENGINE) for rank in range(4)}).run(14)
    assert not job.found("pause")
    assert the_hang(job).ranks == (0,)


def test_validation_seen_once_since_the_last_step_is_remembered() -> None:
    """Between two batches of a validation loop the phase is another."""
    job = Standing({rank: Rank(BEHIND, None, "eval") for rank in range(4)}).run(5)
    for one in job.ranks.values():
        one.phase = "data"
    for second in range(6, 16):
        job.clock.now = 1_000.0 + second
        job.session.feed([job.message(rank, float(second)) for rank in job.ranks])
        snapshot = job.session.snapshot()
        assert snapshot.state == "running"
        assert [finding.rule for finding in snapshot.findings] in ([], ["pause"])
    assert [finding.subject for finding in snapshot.findings] == ["validating"]


def test_a_stand_that_the_job_has_had_before_is_no_hang() -> None:
    """Each epoch begins with ten seconds in which the workers of the dataloader start."""
    ranks = {rank: Rank(BEHIND, LOAD, "data") for rank in range(4)}
    job = Standing(ranks)
    rules = []
    for _ in range(4):
        for second in range(1, 13):
            job.clock.advance(1.0)
            job.session.feed([job.message(rank, float(second)) for rank in ranks])
            if second == 3:
                job.session.feed([job.stack(rank) for rank in ranks])
            found = {finding.rule for finding in job.session.snapshot().findings}
        rules.append(found)
        job.steps += 40
        for second in range(-10, 1):
            job.clock.advance(1.0)
            job.session.feed([job.message(rank, float(second)) for rank in ranks])
            assert not job.session.snapshot().findings
    assert rules == [{"hang"}, {"hang"}, {"pause"}, {"pause"}]


def test_nothing_is_told_while_no_rank_is_heard() -> None:
    job = Standing({rank: Rank(silent=True) for rank in range(4)}).run(30)
    assert job.told[-1][1].state == "stalled"
    assert job.first("hang") is None


def test_before_the_first_step_only_collectives_that_disagree_for_a_minute_are_told() -> None:
    for behind, expected in ((BEHIND, (2,)), ((world(1203, 1202),), None)):
        job = Standing(one_behind(Rank(behind, None, "")), steps=0)
        first = None
        for second in range(90):
            job.clock.advance(1.0)
            job.session.feed([job.message(rank, float(second)) for rank in job.ranks])
            found = [finding for finding in job.session.snapshot().findings if finding.rule == "hang"]
            if found and first is None:
                first = second
                assert found[0].ranks == expected
        assert (first is not None and 50 <= first <= 70) if expected else first is None


# -- stacks --------------------------------------------------------------------------------------------------------


def view(*calls: Call, script: str = "train.py") -> RankView:
    card = Card(job=Job(id="a", name="train", world_size=2), rank=0, script=script)
    return RankView(rank=0, state="ok", age=0.1, card=card, stack=Stack(rank=0, step=3, waited=9.0, calls=calls))


@pytest.mark.parametrize(
    ("calls", "what"),
    [
        (SAVE, "saving a checkpoint"),
        (VALIDATE, "validating"),
        (COMPILE, "compiling"),
        ((TRAIN, Call("main.py", 54, "test"), Call("model.py", 12, "forward")), "validating"),
        ((TRAIN, Call("main.py", 54, "test_sampler"), Call("model.py", 12, "forward")), ""),
        (LOAD, ""),
        (ALL_REDUCE, ""),
        (ENGINE, ""),
        # Running what was compiled is not compiling, and activation checkpointing saves no file.
        ((TRAIN, Call("torch/_dynamo/eval_frame.py", 700, "compile_wrapper"), Call("model.py", 12, "forward")), ""),
        ((TRAIN, Call("torch/utils/checkpoint.py", 480, "checkpoint"), Call("model.py", 12, "forward")), ""),
        ((TRAIN, Call("train.py", 90, "train_and_evaluate"), Call("train.py", 31, "load_batch")), ""),
        ((TRAIN, Call("transformers/modeling_utils.py", 3000, "save_pretrained")), "saving a checkpoint"),
        ((TRAIN, Call("torch/distributed/checkpoint/filesystem.py", 400, "_write_item")), "saving a checkpoint"),
        ((TRAIN, Call("torch/serialization.py", 1500, "load")), "loading a checkpoint"),
        ((TRAIN, Call("lightning/pytorch/loops/fit_loop.py", 200, "val_loop"), LOOP), "validating"),
    ],
)
def test_what_a_stack_says_a_rank_is_busy_with(calls: tuple[Call, ...], what: str) -> None:
    assert occupation(view(*calls)) == what


def test_the_place_in_the_script_is_the_innermost_call_outside_of_libraries() -> None:
    call = script_call(view(*LOAD), LOAD)
    assert call is not None
    assert where(call) == "load_batch (train.py:31)"
    assert where(TRAIN) == "train.py:60"
    only = (Call("torch/nn/modules/module.py", 7, "forward"),)
    assert script_call(view(*only), only) == only[0]
    assert script_call(view(), ()) is None
    # A script by the name of a module of Python's own is still the script.
    queue = (Call("queue.py", 3, "work"), Call("threading.py", 1, "wait"))
    assert script_call(view(*queue, script="/x/queue.py"), queue) == queue[0]


def test_what_the_innermost_call_says_of_waiting() -> None:
    assert operation(ALL_REDUCE) == "all_reduce"
    assert operation(LOAD) == ""
    assert (waits(ALL_REDUCE), waits(LOAD), waits(ENGINE), waits(())) == (True, False, None, None)
