"""What a strategy promises and does not keep: sharding, reduced gradients, checkpointing, offload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from fake_job import GIB, MIB
from memory_lab import ALIVE, BATCH, Change, Lab, add, ddp_plan, expected, fsdp_plan, gpt, llama, small

from ranktop.budget.live import live_budget
from ranktop.budget.plan import Fsdp, Layout, Plan, Zero
from ranktop.budget.terms import MOMENTS
from ranktop.probes.reading import Collectives, GroupPosition


def whole(category: str, size: int) -> Change:
    """Return a change by which every rank holds so many bytes of a category wherever it holds any."""

    def change(who: int, step: int, moment: str, held: dict[str, int]) -> None:
        if held.get(category):
            held[category] = size

    return change


def held_by(lab: Lab, category: str) -> int:
    memory = lab.snapshot().ranks[0].memory("step_end")
    assert memory is not None
    return int(getattr(memory, category))


# -- unsharded -------------------------------------------------------------------------------------------------------


def test_no_shard_is_told() -> None:
    layout = Layout(world_size=4, replicate=4)
    plan = fsdp_plan(4, strategy="fsdp1", fsdp=Fsdp(version=1, sharding="none"), layout=layout)
    lab = Lab(4, plan, gpt(), activations=GIB).run(6)
    found = lab.the("unsharded")
    size = gpt().numel * 4
    assert held_by(lab, "parameters") == size
    assert found.sentence == (
        "FSDP1 shards nothing: all 4 ranks hold the whole model (1.1 GiB of parameters each), its strategy is NO_SHARD"
    )
    assert (found.severity, found.ranks) == ("warning", (0, 1, 2, 3))


def test_a_mesh_of_one_rank_is_told() -> None:
    plan = fsdp_plan(4, layout=Layout(world_size=4))
    found = Lab(4, plan, gpt(), activations=GIB).run(6).the("unsharded")
    assert "FSDP2 shards nothing: all 4 ranks hold the whole model" in found.sentence
    assert "its mesh has one rank" in found.sentence


@pytest.mark.parametrize("layout", [Layout(world_size=4, tensor=4), Layout(world_size=4, pipeline=4)], ids=str)
def test_a_mesh_of_one_rank_beside_other_axes_is_none(layout: Layout) -> None:
    assert Lab(4, fsdp_plan(4, layout=layout), gpt(), activations=GIB).run(6).found("unsharded") == []


def test_one_rank_alone_is_none() -> None:
    plan = fsdp_plan(1, layout=Layout(world_size=1))
    assert Lab(1, plan, gpt(), activations=GIB).run(6).found("unsharded") == []


def test_a_model_that_stayed_whole_though_it_is_to_be_sharded() -> None:
    size = gpt().numel * 4
    found = Lab(4, fsdp_plan(4), gpt(), activations=GIB, changes=[whole("parameters", size)]).run(6).the("unsharded")
    assert found.ranks == (0, 1, 2, 3)
    assert "though it is to be split over 4 ranks" in found.sentence


def test_zero_3_that_holds_all_and_zero_2_that_may() -> None:
    def lab(stage: int) -> Lab:
        plan = Plan(
            strategy=f"zero{stage}", layout=Layout(world_size=4, shard=4), zero=Zero(stage=stage), batch=BATCH,
            optimizer=ddp_plan(4).optimizer,
        )  # fmt: skip
        changes = [whole("parameters", gpt().numel * 4)] if stage == 3 else []
        return Lab(4, plan, gpt(), activations=GIB, changes=changes).run(6)

    assert lab(3).the("unsharded").sentence.startswith("ZeRO-3 shards nothing")
    assert lab(2).found("unsharded") == []


def collectives(per_step: float) -> Callable[[int, int], Collectives]:
    def told(rank: int, step: int) -> Collectives:
        count = int(per_step * step)
        return Collectives((GroupPosition("0", "default", 2, count, count),))

    return told


def alone(per_step: float = 0.0, **more: object) -> Lab:
    plan = replace(ddp_plan(2), strategy="single", ddp=None, layout=Layout(world_size=2))
    return Lab(2, plan, gpt(), activations=GIB, collectives=collectives(per_step), **more)  # type: ignore[arg-type]


def test_ranks_that_do_not_talk_are_told_after_some_steps() -> None:
    lab = alone().run(9)
    assert lab.found("unsharded") == []
    found = lab.run(3).the("unsharded")
    assert (found.subject, found.ranks, found.severity) == ("alone", (0, 1), "warning")
    assert "the 2 ranks do not talk to each other" in found.sentence


def test_ranks_that_reduce_by_hand_talk() -> None:
    assert alone(1.0).run(30).found() == []


@pytest.mark.parametrize("reason", ["no process group", "torch.distributed is not loaded"])
def test_ranks_that_never_met_do_not_talk(reason: str) -> None:
    lab = alone()
    lab.collectives = lambda rank, step: Collectives(reason=reason)
    assert lab.run(12).the("unsharded").subject == "alone"


def test_positions_are_told_though_completion_is_not_known() -> None:
    lab = alone()
    group = GroupPosition("0", "default", 2, 0, None)
    lab.collectives = lambda rank, step: Collectives((group,), reason="nccl: the flight recorder is off")
    assert lab.run(12).the("unsharded").subject == "alone"


def test_positions_that_are_not_known_tell_nothing() -> None:
    lab = alone()
    lab.collectives = lambda rank, step: Collectives(reason="this torch has no sequence numbers")
    assert lab.run(30).found() == []
    lab.collectives = lambda rank, step: Collectives((GroupPosition("0", "default", 2, None, None),))
    assert lab.run(5).found() == []


def test_one_unit_is_worth_knowing() -> None:
    inventory = replace(gpt(), kinds=tuple(replace(kind, unit=0) for kind in gpt().kinds))
    found = Lab(4, fsdp_plan(4), inventory, activations=GIB).run(6).the("unsharded")
    assert (found.severity, found.subject) == ("info", "one unit")
    assert "gather the whole model on every rank (1.1 GiB at once)" in found.sentence


# -- no_sync ---------------------------------------------------------------------------------------------------------


def accumulating(ranks: int, **more: object) -> Plan:
    plan = fsdp_plan(ranks, batch=replace(BATCH, accumulation=4), unsharded_gradients_at=ALIVE)
    return replace(plan, **more)  # type: ignore[arg-type]


def test_whole_gradients_while_accumulating_are_told_though_they_are_expected() -> None:
    lab = Lab(8, accumulating(8)).run(6)
    tables = expected(llama(), lab.own(0))
    assert tables["forward_end"]["gradients"] > 7 * tables["step_end"]["gradients"]
    found = lab.the("no_sync")
    assert (found.severity, found.ranks, found.short) == ("warning", tuple(range(8)), "grad x8")
    assert found.sentence == (
        "set_requires_gradient_sync(False) keeps whole gradients on ranks 0-7 while accumulating: "
        "29.9 GiB instead of 3.7 GiB"
        " of shards"
    )


def test_small_ones_are_worth_knowing_only() -> None:
    lab = Lab(2, accumulating(2), small(), activations=GIB)
    assert (small().numel * 4) // 2 < 10 * MIB
    found = lab.run(6).the("no_sync")
    assert found.severity == "info"
    assert found.sentence.startswith("set_requires_gradient_sync(False) keeps whole gradients on ranks 0, 1")


def test_fsdp1_has_another_word_for_it() -> None:
    plan = accumulating(4, strategy="fsdp1", fsdp=Fsdp(version=1))
    lab = Lab(4, plan, gpt(), activations=GIB, changes=[add(-1, "gradients", 3 * gpt().numel, ALIVE)]).run(6)
    (found,) = lab.found("no_sync")
    assert found.sentence.startswith("no_sync keeps whole gradients on ranks 0-3 while accumulating: ")
    assert lab.found("memory") == [], "no_sync tells it"


def test_accumulation_that_reduces_every_time_is_none() -> None:
    plan = replace(accumulating(8), unsharded_gradients_at=())
    assert Lab(8, plan).run(6).found() == []


# -- checkpointing ---------------------------------------------------------------------------------------------------


def test_checkpointing_that_does_nothing() -> None:
    plan = fsdp_plan(4, checkpointing="full")
    plain = expected(llama(), fsdp_plan(4))["forward_end"]["activations"]
    recomputed = expected(llama(), plan)["forward_end"]["activations"]
    assert plain > 2 * recomputed
    assert Lab(4, plan).run(6).found("checkpointing") == [], "it does what it says"

    def change(who: int, step: int, moment: str, held: dict[str, int]) -> None:
        if moment in ALIVE:
            held["activations"] += plain - recomputed

    found = Lab(4, plan, changes=[change]).run(6).found("checkpointing")[0]
    assert (found.severity, found.ranks) == ("warning", (0, 1, 2, 3))
    assert "checkpointing is on but does nothing on ranks 0-3" in found.sentence
    assert f"{plain / GIB:.1f} GiB without" in found.sentence


def test_half_of_the_activations_are_not_taken_for_all() -> None:
    plan = fsdp_plan(4, checkpointing="full")
    plain = expected(llama(), fsdp_plan(4))["forward_end"]["activations"]
    assert Lab(4, plan, changes=[add(-1, "activations", plain // 3, ALIVE)]).run(6).found("checkpointing") == []


def test_no_checkpointing_is_none() -> None:
    assert Lab(4, fsdp_plan(4)).run(6).found("checkpointing") == []
    assert Lab(4, fsdp_plan(4, checkpointing=None)).run(6).found("checkpointing") == []


# -- offload ---------------------------------------------------------------------------------------------------------


def zero(**options: str) -> Plan:
    return Plan(
        strategy="zero2", layout=Layout(world_size=4, shard=4), zero=Zero(stage=2, **options),  # type: ignore[arg-type]
        optimizer=ddp_plan(4).optimizer, batch=BATCH,
    )  # fmt: skip


def test_offload_that_moves_nothing() -> None:
    plan = zero(offload_optimizer="cpu")
    here = live_budget(gpt(), zero()).at("step_end")["optimizer"].bytes or 0
    away = live_budget(gpt(), plan).at("step_end")["optimizer"].bytes or 0
    assert away < here // 10
    assert Lab(4, plan, gpt(), activations=GIB).run(6).found() == []
    found = Lab(4, plan, gpt(), activations=GIB, changes=[add(-1, "optimizer", here - away)]).run(6).the("offload")
    assert found.ranks == (0, 1, 2, 3)
    assert found.sentence == (
        f"offload moved 0 B of {here / MIB:.1f} MiB of optimizer state: "
        f"ranks 0-3 still hold {here / MIB:.1f} MiB on the device"
    )


def test_fsdp_offload() -> None:
    plan = fsdp_plan(4, fsdp=Fsdp(version=2, cpu_offload=True))
    assert Lab(4, plan, gpt(), activations=GIB).run(6).found("offload") == []
    shard = gpt().numel
    stays = [add(-1, "parameters", shard, MOMENTS), add(-1, "optimizer", 2 * shard, MOMENTS)]
    found = Lab(4, plan, gpt(), activations=GIB, changes=stays).run(6).the("offload")
    assert found.subject == "optimizer"


def test_on_a_host_everything_is_here() -> None:
    plan = replace(zero(offload_optimizer="cpu"), host=True)
    lab = Lab(4, plan, gpt(), activations=100 * MIB, host=True, changes=[add(-1, "optimizer", GIB)]).run(6)
    assert lab.found("offload") == []
