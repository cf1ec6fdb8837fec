"""Sharding that was asked for and did not happen, and ranks that train without each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ranktop.budget.plan import Plan
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.groups import Group
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.sizes import MIB, PROCESS, sized, summed, whole_parameters
from ranktop.tui.session.findings.windows import settled
from ranktop.tui.session.rank_view import RankView

WHOLE: Final = 0.98
"""Share of the model's parameters from which on a rank holds it whole."""
SMALL: Final = MIB
"""Models of fewer bytes are no reason to shard."""
UNIT_SHARE: Final = 0.05
"""What the process holds, of which a gathered model is worth telling."""
STEPS: Final = 10
"""Steps after which ranks that have not talked do not talk."""
NO_GROUP: Final = ("no process group", "torch.distributed is not loaded")
"""Why a rank has no positions that makes no collective at all."""
TOGETHER: Final = ("torchrun", "deepspeed")
"""Launchers that start one job."""


def unsharded(scene: Scene) -> Iterator[Finding]:
    """Yield a finding for each group whose ranks hold the whole model though they should share it."""
    for group in scene.groups:
        view = group.members[0]
        card = view.card
        if card is None or card.plan is None or card.inventory is None or not settled(view, 1):
            continue
        whole = whole_parameters(card.inventory)
        if whole < SMALL:
            continue
        found = _silent(scene, group, whole) or _sharded_over_one(scene, group, whole) or _one_unit(group, whole)
        if found is not None:
            yield found


def holds_whole_model(view: RankView) -> bool:
    """Tell whether a rank's parameters are the model's, though its plan shards them."""
    card = view.card
    if card is None or card.plan is None or card.inventory is None:
        return False
    steps = settled(view, 1)
    held = steps[-1].peak.parameters if steps else None
    if held is None or not _should_shard(card.plan):
        return False
    return held >= WHOLE * whole_parameters(card.inventory)


def _should_shard(plan: Plan) -> bool:
    """Whether parameters are to be split: FSDP, or DeepSpeed's stage 3."""
    return plan.fsdp is not None or (plan.zero is not None and plan.zero.stage == 3)


def _sharded_over_one(scene: Scene, group: Group, whole: int) -> Finding | None:
    view = group.members[0]
    plan = view.card.plan if view.card is not None else None
    if plan is None or not all(holds_whole_model(member) for member in (view, group.members[-1])):
        return None
    layout = plan.layout
    if layout.world_size < 2 or (layout.data < 2 and layout.tensor * layout.pipeline * layout.context > 1):
        return None
    name = f"FSDP{plan.fsdp.version}" if plan.fsdp is not None else "ZeRO-3"
    if plan.fsdp is not None and plan.fsdp.sharding == "none":
        why, advice = "its strategy is NO_SHARD", "Use ShardingStrategy.FULL_SHARD, or DDP if the model is to be whole."
    elif layout.shard == 1:
        why = "its mesh has one rank"
        advice = (
            "Give it a mesh (or process group) over the data-parallel ranks: init_device_mesh(device, (world_size,))."
        )
    else:
        why = f"though it is to be split over {layout.shard} ranks"
        advice = (
            "See whether the model was wrapped before it was moved or loaded, and whether all of it is in wrapped "
            "modules: what no unit holds stays whole."
        )
    hold = f"all {len(group.members)} ranks hold" if len(group.members) > 1 else f"rank {view.rank} holds"
    held = settled(view, 1)[-1].peak.parameters
    return Finding(
        rule="unsharded", severity="warning", ranks=group.ranks, subject="parameters", short="not sharded",
        sentence=f"{name} shards nothing: {hold} the whole model ({sized(whole)} of parameters each), {why}",
        evidence=(
            Evidence("parameters measured", held, "B"),
            Evidence("whole model's parameters", whole, "B"),
            Evidence("ranks it is sharded over", layout.shard),
            Evidence("world size", layout.world_size),
        ),
        advice=advice, confidence="high",
    )  # fmt: skip


def _silent(scene: Scene, group: Group, whole: int) -> Finding | None:
    """Tell of ranks with a whole model each and no gradient collective."""
    job = scene.snapshot.job
    world = job.world_size if job is not None else 0
    members = group.members
    if world < 2 or len(members) < 2 or any(not _alone(view) for view in members):
        return None
    per_step = max(_collectives(view) / (view.sample.step if view.sample is not None else 1) for view in members)
    return Finding(
        rule="unsharded", severity="warning", ranks=group.ranks, subject="alone", short="trains alone",
        sentence=f"the {len(members)} ranks do not talk to each other: each trains a whole model by itself "
        f"({sized(whole)} of parameters), with no DDP or FSDP around it",
        evidence=(
            Evidence("collectives per step", round(per_step, 2)),
            Evidence("world size", world),
            Evidence("whole model's parameters", whole, "B"),
        ),
        advice="Wrap the model: DistributedDataParallel(model), or fully_shard() for its blocks and the model. Nothing "
        "is wrong where each rank is to train by itself, in a search for hyper-parameters, say.",
        confidence="medium",
    )  # fmt: skip


def _alone(view: RankView) -> bool:
    """Whether a rank has a bare model and made less than a collective in two steps, over many steps."""
    card, sample = view.card, view.sample
    if card is None or card.plan is None or sample is None or sample.step < STEPS:
        return False
    layout = card.plan.layout
    bare = card.plan.strategy == "single" and layout.data * layout.tensor * layout.pipeline == 1
    if not bare or card.job.launcher == "python":
        return False
    groups, reason = sample.collectives.groups, sample.collectives.reason
    if not groups:
        # Started to work together, and they never met. Other launchers may start ranks that have nothing in common.
        return reason in (None, *NO_GROUP) and card.job.launcher in TOGETHER
    return all(group.enqueued is not None for group in groups) and _collectives(view) < sample.step / 2


def _collectives(view: RankView) -> int:
    groups = view.sample.collectives.groups if view.sample is not None else ()
    return sum(group.enqueued or 0 for group in groups)


def _one_unit(group: Group, whole: int) -> Finding | None:
    """Tell of a model in one unit: its forward gathers all of it at once."""
    view = group.members[0]
    card = view.card
    if card is None or card.plan is None or card.plan.fsdp is None or card.inventory is None:
        return None
    units = {kind.unit for kind in card.inventory.kinds if kind.unit >= 0}
    several = len(card.inventory) >= 8
    if card.plan.layout.shard < 2 or len(units) != 1 or not several:
        return None
    if whole < UNIT_SHARE * summed(settled(view, 1)[-1].peak, PROCESS):
        return None
    return Finding(
        rule="unsharded", severity="info", ranks=group.ranks, subject="one unit",
        sentence=f"FSDP{card.plan.fsdp.version} has one unit: forward and backward gather the whole model on every "
        f"rank ({sized(whole)} at once)",
        evidence=(
            Evidence("whole model's parameters", whole, "B"),
            Evidence("sharded parameters", settled(view, 1)[-1].peak.parameters, "B"),
        ),
        advice="Wrap the blocks too (auto_wrap_policy, or fully_shard() for each block before the model), so that one "
        "block at a time is gathered.",
        confidence="high",
    )  # fmt: skip
