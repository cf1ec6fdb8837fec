"""The session's judgements: who lives, who is silent, since when something differs, what is kept of the past."""

from __future__ import annotations

from dataclasses import replace

import pytest
from device_view import playing
from fake_job import FakeClock, FakeSource, fsdp_job, host_job

from ranktop.budget.terms import MOMENTS, Amount, Budget, Memory
from ranktop.probes.reading import DeviceReading, StepTimes
from ranktop.tui.session.expected import difference, expected, peak_moment, steady
from ranktop.tui.session.rank_view import end_state
from ranktop.tui.session.rings import Ring
from ranktop.tui.session.source import Received, Reset
from ranktop.tui.session.state import Session
from ranktop.wire.schema import Body, Card, End, Header, History, Job, Mark, Point, Sample, Table

GIB = 1024**3
JOB = Job(id="j", name="job", world_size=4)


def message(rank: int, body: Body, *, age: float = 0.0, restart: int = 0, pid: int = 100) -> Received:
    kind = type(body).__name__.lower()
    return Received(Header(kind, rank, pid + rank, restart, 0), body, age, 0)


def test_ages_count_from_the_hub_and_not_from_the_drain() -> None:
    clock = FakeClock()
    session = Session(clock)
    session.feed([Reset(JOB, "h", False), message(0, Sample(rank=0, step=1, step_age=0.1), age=2.0)])
    state = session.ranks[0]
    assert state.age() == pytest.approx(2.0)
    assert state.state() == "ok"
    clock.advance(1.5)
    assert state.age() == pytest.approx(3.5)
    assert state.state() == "silent"


def test_silence_is_measured_in_the_ranks_own_interval() -> None:
    clock = FakeClock()
    session = Session(clock)
    session.feed([message(0, Sample(rank=0, step=1, interval=10.0)), message(1, Sample(rank=1, step=1, interval=0.5))])
    clock.advance(2.0)
    assert session.ranks[0].state() == "ok"
    assert session.ranks[1].state() == "silent"


def test_states_of_ranks() -> None:
    session = Session(FakeClock())
    lost = DeviceReading(state="lost")
    hung = DeviceReading(state="no answer", age=12.0)
    session.feed(
        [
            Reset(JOB, "h", False),
            message(0, Card(job=JOB, rank=0)),
            message(1, Sample(rank=1)),
            message(2, Sample(rank=2, step=3, device=lost)),
            message(3, Sample(rank=3, step=3, device=hung)),
        ]
    )
    assert [session.ranks[rank].state() for rank in range(4)] == [
        "starting", "starting", "device lost", "device no answer",
    ]  # fmt: skip
    session.feed([message(3, End(rank=3, how="exit", code=0))])
    assert session.ranks[3].state() == "ended"


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (End(rank=0, how="exit", code=0), "ended"),
        (End(rank=0, how="exit"), "ended"),
        (End(rank=0, how="exit", code=3), "failed"),
        (End(rank=0, how="exception", code=1), "failed"),
        (End(rank=0, how="signal", code=9), "killed"),
        (End(rank=0, how="vanished"), "vanished"),
    ],
    ids=str,
)
def test_ways_to_end(end: End, state: str) -> None:
    assert end_state(end) == state


def test_ranks_that_were_never_seen_are_missing() -> None:
    session = Session(FakeClock())
    session.feed([Reset(JOB, "h", False), message(2, Sample(rank=2, step=1))])
    snapshot = session.snapshot()
    assert [view.state for view in snapshot.ranks] == ["missing", "missing", "ok", "missing"]
    assert snapshot.world_size == 4
    found = snapshot.rank(2)
    assert found is not None
    assert found.state == "ok"
    assert snapshot.rank(9) is None


def test_a_restarted_rank_begins_anew_and_the_old_life_is_over() -> None:
    session = Session(FakeClock())
    session.feed([message(0, Card(job=JOB, rank=0)), message(0, Sample(rank=0, step=7))])
    session.feed([message(0, End(rank=0, how="signal", code=9))])
    assert session.ranks[0].state() == "killed"
    session.feed([message(0, Card(job=JOB, rank=0, restart=1), restart=1, pid=200)])
    state = session.ranks[0]
    assert state.state() == "starting"
    assert state.restart == 1
    assert [mark.what for mark in state.marks] == ["restart"]
    # A straggler of the first life changes nothing.
    session.feed([message(0, Sample(rank=0, step=8)), message(0, End(rank=0, how="exit", code=0))])
    assert state.sample is None
    assert state.end is None
    session.feed([message(0, Sample(rank=0, step=1), restart=1, pid=200)])
    assert state.state() == "ok"


def test_an_end_made_by_the_hub_without_a_pid_counts() -> None:
    session = Session(FakeClock())
    session.feed([message(0, Sample(rank=0, step=7))])
    session.feed([Received(Header("end", 0, 0, 0, 0), End(rank=0, how="vanished"), 0.0, 1)])
    assert session.ranks[0].state() == "vanished"


def test_job_states() -> None:
    clock = FakeClock()
    session = Session(clock)
    assert session.state() == "starting"
    session.feed([message(rank, Sample(rank=rank)) for rank in range(2)])
    assert session.state() == "starting"
    session.feed([message(rank, Sample(rank=rank, step=1, step_age=0.5)) for rank in range(2)])
    assert session.state() == "running"
    clock.advance(7.0)
    assert session.state() == "running"
    clock.advance(1.0)
    assert session.state() == "stalled"
    session.feed([message(1, Sample(rank=1, step=2, step_age=0.0))])
    assert session.state() == "running"
    session.feed([message(0, End(rank=0, how="exit", code=0))])
    assert session.state() == "running"
    session.feed([message(1, End(rank=1, how="signal", code=9))])
    assert session.state() == "ended"


def test_a_job_has_not_ended_while_a_rank_of_the_node_may_still_begin() -> None:
    clock = FakeClock()
    session = Session(clock)
    two = Job(id="j", name="job", world_size=2)
    ended = message(0, End(rank=0, how="exception", code=1))
    session.feed([Reset(two, "h", False), message(0, Card(job=two, rank=0, node="a", local_size=2)), ended])
    assert session.state() == "starting", "rank 1 is about to tell how it ended"
    session.feed([message(1, Card(job=two, rank=1, local_rank=1, node="a", local_size=2))])
    assert session.state() == "starting"
    session.feed([message(1, End(rank=1, how="exception", code=1))])
    assert session.state() == "ended"


def test_a_rank_that_never_speaks_does_not_keep_a_job_going() -> None:
    clock = FakeClock()
    session = Session(clock)
    two = Job(id="j", name="job", world_size=2)
    card = Card(job=two, rank=0, node="a", local_size=2)
    session.feed([Reset(two, "h", False), message(0, card), message(0, Sample(rank=0, step=3, step_age=0.0))])
    session.feed([message(0, End(rank=0, how="signal", code=9))])
    clock.advance(9.0)
    assert session.state() == "running", "not stalled: nothing is waited for but a word"
    clock.advance(2.0)
    assert session.state() == "ended"
    # Who asks only once hears the same.
    later = Session(clock)
    later.feed([Reset(two, "h", False), message(0, card), message(0, End(rank=0, how="signal", code=9), age=11.0)])
    assert later.state() == "ended"


def test_ranks_of_other_nodes_are_not_waited_for() -> None:
    session = Session(FakeClock())
    four = Job(id="j", name="job", world_size=4)
    for rank in range(2):
        card = Card(job=four, rank=rank, local_rank=rank, node="a", local_size=2)
        session.feed([message(rank, card), message(rank, End(rank=rank, how="exit", code=0))])
    assert session.state() == "ended"


def test_a_job_of_slow_steps_stalls_later() -> None:
    clock = FakeClock()
    session = Session(clock)
    steps = tuple(StepTimes(index=index, seconds=20.0) for index in range(1, 4))
    session.feed([message(0, Sample(rank=0, step=3, step_age=0.0, steps=steps))])
    clock.advance(59.0)
    assert session.state() == "running"
    clock.advance(2.0)
    assert session.state() == "stalled"
    assert session.snapshot().step_seconds == 20.0


def test_steps_are_kept_once_each() -> None:
    session = Session(FakeClock())
    for last in (3, 4, 6):
        steps = tuple(StepTimes(index=index, seconds=1.0) for index in range(last - 2, last + 1))
        session.feed([message(0, Sample(rank=0, step=last, steps=steps))])
    assert [step.index for step in session.ranks[0].steps] == [1, 2, 3, 4, 5, 6]


def test_a_reset_forgets_ranks_and_a_replaced_hub_leaves_a_mark() -> None:
    session = Session(FakeClock())
    session.feed([Reset(JOB, "h1", False), message(0, Sample(rank=0, step=1))])
    assert not session.marks
    session.feed([Reset(JOB, "h2", True), message(1, Sample(rank=1, step=1))])
    assert list(session.ranks) == [1]
    assert [mark.what for mark in session.marks] == ["hub-replaced"]
    session.feed([Received(Header("mark", -1, 0, 0, 0), Mark(what="gap", detail="3 messages"), 1.0, 5)])
    assert session.marks[-1].detail == "3 messages"
    assert session.marks[-1].at == pytest.approx(session.clock() - 1.0)


def test_history_of_the_hub_joins_what_was_seen_here() -> None:
    clock = FakeClock(50.0)
    session = Session(clock)
    points = tuple(
        Point(1000.0 + second, second, 1.0, second, None, None, None, None, None, None) for second in range(5)
    )
    session.feed([message(0, Sample(rank=0, step=4), age=0.5), message(0, History(rank=0, points=points), age=0.5)])
    ring = session.ranks[0].history
    # The age of a history is that of its newest point, which here is the sample that was heard.
    assert ring.column("t") == pytest.approx([45.5, 46.5, 47.5, 48.5, 49.5])
    assert ring.column("used")[:4] == [0.0, 1.0, 2.0, 3.0]
    clock.advance(1.0)
    session.feed([message(0, Sample(rank=0, step=5))])
    assert ring is not session.ranks[0].history or len(ring) == 6
    assert session.ranks[0].history.column("t")[-1] == pytest.approx(51.0)


def test_history_of_a_rank_that_says_nothing_more_ends_when_it_came() -> None:
    session = Session(FakeClock(50.0))
    points = tuple(Point(float(second), 0, None, 1, None, None, None, None, None, None) for second in range(3))
    session.feed([message(0, History(rank=0, points=points), age=2.0)])
    assert session.ranks[0].history.column("t") == pytest.approx([46.0, 47.0, 48.0])


def test_ring_keeps_the_newest_and_copies() -> None:
    ring = Ring(capacity=3)
    for number in range(5):
        ring.append(Point(float(number), number, None, number * GIB, None, None, None, None, 1.5, None))
    assert ring.column("t") == [2.0, 3.0, 4.0]
    assert ring.column("used") == [2.0 * GIB, 3.0 * GIB, 4.0 * GIB]
    assert ring.last("step_s") is None
    assert ring.last("power") == 1.5
    kept = ring.copy()
    ring.append(Point(9.0, 9, None, 9, None, None, None, None, None, None))
    assert kept.column("t") == [2.0, 3.0, 4.0]
    assert ring.column("t") == [3.0, 4.0, 9.0]


def test_peak_moment_is_the_largest_sum_of_tensors() -> None:
    def memory(activations: int | None, cache: int) -> Memory:
        return Memory(parameters=10, gradients=None, optimizer=5, activations=activations, buffers=1, cache=cache)

    table = Table(step=1, moments={
        "step_start": memory(0, 900), "forward_end": memory(50, 0), "backward_start": memory(50, 0),
        "step_end": memory(None, 999),
    })  # fmt: skip
    assert peak_moment(table) == "forward_end"
    assert peak_moment(None) is None
    assert peak_moment(Table(step=1, moments={"step_end": Memory()})) is None


def test_difference_within_slack_is_zero() -> None:
    assert difference(100, Amount(90, "", slack=10)) == 0
    assert difference(101, Amount(90, "", slack=10)) == 11
    assert difference(80, Amount(90)) == -10
    assert difference(None, Amount(90)) is None
    assert difference(5, Amount(None, "no rule")) is None
    assert difference(5, None) is None


def test_expected_now_is_what_every_moment_agrees_on() -> None:
    moments = {moment: {"parameters": Amount(5), "gradients": Amount(0)} for moment in MOMENTS}
    moments["step_end"] = {"parameters": Amount(5), "gradients": Amount(7)}
    assert steady(Budget(moments)) == {"parameters": Amount(5)}
    assert steady(Budget()) == {}


def test_a_budget_that_fails_gives_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    import ranktop.budget.live

    def broken(*args: object, **options: object) -> Budget:
        raise ZeroDivisionError("nothing to divide")

    monkeypatch.setattr(ranktop.budget.live, "live_budget", broken)
    monkeypatch.setattr("ranktop.tui.session.expected._budgets", {})  # what other tests' ranks share
    card = replace_card(fsdp_job().card(0), revision=99)
    budget = expected(card, None)
    assert budget is not None
    amount = budget.at("step_end")["optimizer"]
    assert amount.bytes is None
    assert amount.rule == "the budget failed: ZeroDivisionError: nothing to divide"


def replace_card(card: Card, **changes: int) -> Card:
    import msgspec

    return msgspec.structs.replace(card, **changes)


def test_without_model_or_plan_nothing_is_expected() -> None:
    assert expected(Card(job=JOB, rank=0), None) is None


def test_fsdp2_states_of_an_8b_model_are_an_eighth() -> None:
    session, _, _ = playing(fsdp_job())
    budget = session.ranks[5].budget
    assert budget is not None
    # 8,030,261,248 parameters (the published size of Llama 3 8B) in fp32 over 8 ranks.
    assert budget.at("step_end")["parameters"].bytes == 8_030_261_248 * 4 // 8


def test_since_when_a_difference_stands() -> None:
    job = host_job()
    session, source, clock = playing(job, 2.0)
    key = ("backward_start", "optimizer")
    assert key not in session.ranks[1].standing
    spec = job.specs[1]
    parameters, gradients, optimizer = spec.states
    job.specs[1] = replace(spec, states=(parameters, gradients, optimizer + 4096))
    clock.advance(1.0)
    session.feed(source.drain())
    first = session.ranks[1].standing[key]
    assert session.ranks[1].sample is not None
    assert session.ranks[1].sample.table is not None
    assert first.step == session.ranks[1].sample.table.step
    assert first.known
    clock.advance(3.0)
    session.feed(source.drain())
    assert session.ranks[1].standing[key] == first
    job.specs[1] = spec
    clock.advance(1.0)
    session.feed(source.drain())
    assert key not in session.ranks[1].standing


def test_a_difference_that_was_there_at_first_sight_may_be_older() -> None:
    job = host_job()
    parameters, gradients, optimizer = job.specs[0].states
    job.specs[0] = replace(job.specs[0], states=(parameters + 1, gradients, optimizer))
    session, _, _ = playing(job)
    standing = session.ranks[0].standing["step_start", "parameters"]
    assert not standing.known
    assert standing.sign == 1


def test_budget_arithmetic_is_sliced_and_catches_up() -> None:
    clock = FakeClock()
    source = FakeSource(fsdp_job(), clock)
    session = Session(clock, budget_slice=0.0)
    session.feed(source.drain())
    done = [sum(state.budget is not None for state in session.ranks.values())]
    for _ in range(9):
        session.feed([])
        done.append(sum(state.budget is not None for state in session.ranks.values()))
    assert done[0] == 1
    assert done == sorted(done)
    assert done[-1] == 8


def test_findings_name_rank_and_category() -> None:
    session, source, clock = playing(fsdp_job())
    for _ in range(12):
        clock.advance(1.0)
        session.feed(source.drain())
    told = {(one.rule, one.ranks, one.subject): one.short for one in session.snapshot().findings}
    assert told["memory", (3,), "activations"] == "act +38%"
    assert told["memory", (6,), "runtime"] == "runtime +6.0G"
    assert {rule for rule, _, _ in told} == {"memory"}


def test_a_snapshot_with_copied_history_stands_still() -> None:
    session, source, clock = playing(fsdp_job(2))
    live, frozen = session.snapshot(), session.snapshot(copy_history=True)
    clock.advance(3.0)
    session.feed(source.drain())
    assert live.ranks[0].history is not None
    assert frozen.ranks[0].history is not None
    assert len(live.ranks[0].history) > len(frozen.ranks[0].history)
    assert frozen.ranks[0].sample is live.ranks[0].sample
