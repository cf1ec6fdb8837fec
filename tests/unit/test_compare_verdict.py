"""What is said first of runs beside each other, on recordings made by hand whose numbers are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
from compared_runs import GIB, MIB, Run, ddp, fsdp2
from fake_job import FakeJob

from ranktop.tui.compare.comparison import Comparison, compare
from ranktop.tui.compare.loading import from_recording
from ranktop.tui.compare.small_print import notes
from ranktop.tui.compare.verdict import Verdict, verdicts
from ranktop.wire.recording import Recording
from ranktop.wire.schema import Card, Job, Sample

numbers = itertools.count()
"""Each recording is of a job of its own."""


def compared(*runs: Run, first: int | None = None) -> Comparison:
    loaded = []
    for at, run in enumerate(runs):
        run.job.job = Job(id=f"r{next(numbers)}", name=run.job.job.name, world_size=run.job.job.world_size)
        with Recording.open(run.record()) as recording:
            loaded.append(from_recording(f"r{at}", recording))
    return compare(loaded, first)


def said(*runs: Run) -> Verdict:
    return verdicts(compared(*runs))[-1]


def held_more(extra: int) -> FakeJob:
    job = fsdp2()
    job.specs = {rank: replace(spec, activations=spec.activations + extra) for rank, spec in job.specs.items()}
    return job


def slower(share: float) -> Callable[[int, int], float]:
    return lambda step, rank: (2.0 + 0.01 * ((7 * step + rank) % 5 - 2)) * (1 + share)


def test_a_change_that_saves_memory_and_costs_time() -> None:
    verdict = said(Run(held_more(12 * GIB), steps=120), Run(fsdp2(), steps=130, seconds=slower(0.09)))
    assert verdict.sentence == "B needs 12.0 GiB less per GPU and its steps are 9 % slower."
    assert (verdict.memory, verdict.time) == ("less", "slower")
    assert verdict.because == ("memory: activations -12.0 GiB", "time: backward +0.108 s, forward +0.054 s a step")


def test_ddp_and_fsdp2_differ_by_what_is_no_longer_whole() -> None:
    comparison = compared(Run(ddp()), Run(fsdp2()))
    (verdict,) = verdicts(comparison)
    whole = 8_030_261_248 * 4  # parameters of a Llama-3-8B in fp32
    away = comparison.needs_differ(comparison.others[0])
    assert away is not None
    assert away.away == -4 * whole // 2  # parameters, gradients and AdamW's two states, half on each rank
    assert verdict.sentence.startswith("B needs 59.8 GiB less per GPU")
    names = dict(comparison.plans)
    assert names["strategy"] == ("DDP", "FSDP2 full shard")
    assert (names["replicas"], names["shards"]) == (("2", "1"), ("1", "2"))
    assert not {"optimizer", "model", "micro-batch", "precision"} & names.keys(), "only what differs is told"


def test_a_difference_within_noise_is_called_that() -> None:
    verdict = said(Run(fsdp2(), steps=150), Run(held_more(100 * MIB), steps=150, seconds=slower(0.006)))
    assert verdict.sentence == (
        "B needs as much memory per GPU as A (a difference of 100.0 MiB is noise) and its steps take as long "
        "(the difference of 0.6 % is within the noise, 2 %)."
    )
    assert verdict.because == ()


def test_a_leak_is_no_noise() -> None:
    def grows(sample: Sample) -> Sample:
        assert sample.table is not None
        more = 100 * MIB * sample.step
        moments = {
            name: replace(memory, activations=(memory.activations or 0) + more, free=(memory.free or 0) - more)
            for name, memory in sample.table.moments.items()
        }
        return msgspec.structs.replace(sample, table=msgspec.structs.replace(sample.table, moments=moments))

    verdict = said(Run(fsdp2(), steps=150), Run(fsdp2(), steps=150, sample=grows))
    assert verdict.sentence.startswith("B needs 14.6 GiB more per GPU")


def test_the_running_peak_decides_what_a_gpu_needs_where_it_is_known() -> None:
    comparison = compared(Run(fsdp2(), peak=2 * GIB), Run(fsdp2(), peak=9 * GIB))
    assert comparison.by_peak
    assert verdicts(comparison)[0].sentence.startswith("B needs 7.0 GiB more per GPU")
    one_knows = compared(Run(fsdp2(), peak=2 * GIB), Run(fsdp2()))
    assert not one_knows.by_peak
    assert verdicts(one_knows)[0].memory == "same"


def test_of_a_longer_run_only_the_peak_up_to_the_compared_steps_counts() -> None:
    def later(sample: Sample) -> Sample:
        return msgspec.structs.replace(sample, peak_allocated=(70 if sample.step > 70 else 60) * GIB)

    comparison = compared(Run(fsdp2(), steps=60, sample=later), Run(fsdp2(), steps=90, sample=later))
    assert verdicts(comparison)[0].memory == "same"
    assert [side.peak.peak for side in comparison.sides if side.peak is not None] == [60 * GIB] * 2


def test_a_peak_of_loading_is_told_as_one() -> None:
    def early(sample: Sample) -> Sample:
        return msgspec.structs.replace(sample, peak_allocated=70 * GIB)

    told = list(notes(compared(Run(fsdp2(), sample=early), Run(fsdp2(), peak=0))))
    assert "A: its running peak was reached by step 1, before the compared steps." in told
    assert not any(line.startswith("B: its running peak was reached") and "step 1," not in line for line in told)


def other_model(card: Card) -> Card:
    return msgspec.structs.replace(card, model="MistralForCausalLM")


def test_other_models_are_not_compared() -> None:
    verdict = said(Run(fsdp2()), Run(fsdp2(), card=other_model))
    assert verdict.sentence == (
        "A and B cannot be compared: their models are different (LlamaForCausalLM and MistralForCausalLM)."
    )
    assert (verdict.memory, verdict.time) == ("not comparable",) * 2


def test_the_same_class_with_other_parameters_is_another_model() -> None:
    bigger = fsdp2()
    bigger.inventory = type(bigger.inventory).of([*bigger.inventory, *list(bigger.inventory)[:1]])
    verdict = said(Run(fsdp2()), Run(bigger))
    assert "8,030,261,248 and 8,555,597,824 parameters" in verdict.sentence


def test_a_simulated_run_is_not_compared_with_a_real_one() -> None:
    verdict = said(Run(fsdp2()), Run(fsdp2(), card=lambda card: msgspec.structs.replace(card, simulated=True)))
    assert verdict.sentence == "A and B cannot be compared: B is simulated, the other one is a real job."


def test_other_world_sizes_are_compared_with_a_warning() -> None:
    comparison = compared(Run(fsdp2(2), steps=20), Run(fsdp2(4), steps=20))
    assert [caveat.sentence for caveat in comparison.caveats] == [
        "A and B: different world sizes, 2 and 4 ranks",
        "A and B: their steps are not alike (8,192 and 16,384 tokens), so tokens a second are compared",
    ]
    (verdict,) = verdicts(comparison)
    assert verdict.memory == "less"
    assert "trains 100 % more tokens a second" in verdict.sentence


def test_with_another_batch_tokens_a_second_are_compared() -> None:
    verdict = said(Run(fsdp2(), steps=110), Run(fsdp2(), steps=110, tokens=8192, seconds=slower(0.5)))
    assert "trains 33 % more tokens a second" in verdict.sentence
    assert verdict.time == "faster"


def test_other_devices_are_named() -> None:
    def a100(card: Card) -> Card:
        device = replace(card.device, name="NVIDIA A100-SXM4-80GB", total=80 * GIB)
        return msgspec.structs.replace(card, device=device)

    comparison = compared(Run(fsdp2()), Run(fsdp2(), card=a100))
    assert [caveat.hurts for caveat in comparison.caveats] == ["device"]
    assert "NVIDIA A100-SXM4-80GB (80.0 GiB)" in comparison.caveats[0].sentence


def test_what_is_missing_is_said_and_is_no_zero() -> None:
    def no_table(sample: Sample) -> Sample:
        return msgspec.structs.replace(sample, table=None)

    verdict = said(Run(fsdp2()), Run(fsdp2(), sample=no_table))
    assert verdict.sentence.startswith("B can't be compared in memory (none was read of B)")
    few = said(Run(fsdp2()), Run(fsdp2(), steps=9))
    assert "its speed can't be compared: too few steps were timed (7 of A and 7 of B; it takes 10)" in few.sentence
    untimed = said(Run(fsdp2()), Run(fsdp2(), sample=lambda sample: msgspec.structs.replace(sample, steps=())))
    assert "its speed can't be compared: B: none of the compared steps was timed" in untimed.sentence
    alone = said(Run(fsdp2()), Run(fsdp2(), card=lambda card: Card(job=card.job, rank=card.rank)))
    assert alone.time == "same"


def test_a_slow_start_is_left_out() -> None:
    slow = Run(fsdp2(), steps=150, first_is_slow=400.0)
    assert said(Run(fsdp2(), steps=150), slow).time == "same"


def test_more_than_two_runs_are_each_compared_with_the_first() -> None:
    comparison = compared(Run(ddp()), Run(fsdp2()), Run(held_more(10 * GIB)))
    assert [verdict.sentence[:31] for verdict in verdicts(comparison)] == [
        "B needs 59.8 GiB less per GPU a",
        "C needs 49.8 GiB less per GPU a",
    ]


def test_a_restarted_run_says_which_life_is_compared(tmp_path: Path) -> None:
    from made_recording import items_of, record

    run = Run(fsdp2(), steps=30, how="")
    job = run.job.job
    first = items_of(run.told())
    again = items_of(((t + 100.0, rank, body) for t, rank, body in Run(fsdp2(), steps=80).told()), pid=900, restart=1)
    again = [msgspec.structs.replace(item, number=item.number + len(first)) for item in again]
    path = record(job, [*first, *again], path=tmp_path / "both.ranktop")
    with Recording.open(path) as recording:
        loaded = [from_recording("both", recording) for _ in range(2)]
    comparison = compare(loaded)
    assert comparison.window.last == 80
    assert any("its life 2 of 2, with the most steps, is compared" in note for note in notes(comparison))


def test_findings_of_one_run_alone_are_told() -> None:
    leaky = held_more(0)
    run = Run(leaky, how="exception", code=1)
    comparison = compared(Run(fsdp2()), run)
    told = [(finding.rule, letters) for finding, letters in comparison.findings()]
    assert ("death", "B") in told
    assert not any(letters == "AB" for _, letters in told)
