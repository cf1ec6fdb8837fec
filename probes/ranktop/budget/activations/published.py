"""The formulas that papers print for a transformer layer's activations, as they print them."""

from __future__ import annotations

from ranktop.budget.activations.shape import local
from ranktop.budget.model import Model
from ranktop.budget.plan import Plan


def core(model: Model, plan: Plan) -> float:
    """Bytes of unfused attention's core: softmax 2, dropout's mask 1 and result 2 for each of a s^2 b / t scores."""
    shape = local(model, plan)
    return 5 * shape.batch * shape.sequence**2 * model.heads / shape.tensor


def layer(model: Model, plan: Plan) -> float:
    """Bytes that one layer keeps: Korthikanti et al. (arXiv:2205.05198), Table 2; 16 bit, dropout, unfused attention.

    s b h (10 + 24/t + 5 a s/(h t)); with sequence parallel 34/t for 10 + 24/t; selective recomputation drops the
    core's last term; full recomputation keeps 2 s b h. Statistics of norms, the softmax's logsumexp and causal masks
    are left out, as in the paper; what layers really keep is ``closed.activations``.
    """
    shape = local(model, plan)
    stream = shape.tokens * model.hidden
    mode = plan.checkpointing or "none"
    if mode == "full":
        return 2.0 * stream
    t = shape.tensor
    linear = stream * (34 / t if shape.gathered else 10 + 24 / t)
    return linear + (0.0 if mode == "selective" else core(model, plan))
