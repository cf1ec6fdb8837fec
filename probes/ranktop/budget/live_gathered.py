"""What FSDP has gathered when the agent reads a moment: its hooks and the agent's run one after the other."""

from __future__ import annotations

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Plan
from ranktop.budget.terms import DTYPE_BYTES, Part


def gathered(moment: str, inventory: Inventory, plan: Plan, first_step: bool) -> tuple[tuple[Part, ...], int]:
    """Return what is gathered beyond what lasts from forward to backward, and how much of it a reading may miss.

    FSDP2's hooks on the root come behind the agent's where the agent was there when the model was built: after forward
    the last unit's all-gather output is still there (and the root's parameters); in the first step the agent's own
    hook comes second, and finds the root gathered, with its all-gather output. A script that attaches the agent to a
    wrapped model has it the other way round. FSDP1 wraps the root: its hook on the output is there first, and has
    asked for the last unit. Source: torch/distributed/fsdp/_fully_shard/_fsdp_state.py ``_pre_forward``,
    ``_post_forward``; _runtime_utils.py ``_pre_backward_hook``, ``_prefetch_handle``.
    """
    fsdp, units = plan.fsdp, inventory.units()
    units.pop(-1, None)
    if fsdp is None or plan.layout.shard <= 1 or not units:
        return (), 0
    root, last = (_whole(units[index], plan) for index in (min(units), max(units)))
    parts: tuple[Part, ...] = ()
    if fsdp.version == 1:
        if moment == "backward_start" and fsdp.prefetch and fsdp.sharding in ("full", "hybrid") and len(units) > 1:
            parts = (Part("last unit's parameters, gathered ahead", last, False),)
        return parts, 0
    if moment == "forward_end":
        parts = (Part("all-gather output of the last unit", last, False),)
        if fsdp.root_resharded:
            parts += (Part("root's parameters, about to be let go", root, False),)
    elif moment == "step_start" and first_step:
        parts = (Part("root's parameters, gathered, and its all-gather output", 2 * root, False),)
    return parts, sum(part.bytes for part in parts)


def _whole(unit: list[Kind], plan: Plan) -> int:
    item = DTYPE_BYTES[plan.precision.compute] if plan.precision.compute else None
    return sum(kind.numel * (item or kind.itemsize) for kind in unit)
