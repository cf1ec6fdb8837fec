"""The budget against torch's own allocator statistics: a GPT on one device, in three precisions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ranktop.budget.activations.closed import activations
from ranktop.budget.expected import expected
from ranktop.budget.model import Model
from ranktop.budget.models.place import inventory
from ranktop.budget.plan import Batch, OptimizerPlan, Plan, Precision
from ranktop.budget.terms import Budget
from ranktop.demo.gpt import GPT, GPTConfig

BATCH, TOKENS = 8, 512
SHAPE = Model(family="gpt", layers=6, hidden=512, heads=8, kv_heads=8, head_dim=64, ffn=2048, vocab=8192, positions=512)
PRECISIONS = {
    "fp32": Precision(parameters="float32"),
    "bf16": Precision(parameters="bfloat16"),
    "amp-bf16": Precision(parameters="float32", autocast="bfloat16"),
}


@dataclass(frozen=True)
class Reading:
    """Bytes of one step."""

    states: int
    """Allocated before the step: parameters, optimizer, workspaces, tokens."""
    saved: int
    """More of it once the loss is known."""
    peak: int
    """The step's highest."""


def budget_of(precision: Precision) -> Budget:
    """Return what the step should hold."""
    plan = Plan(
        precision=precision,
        optimizer=OptimizerPlan(name="AdamW", count=1, options={"foreach": True}),
        batch=Batch(micro_batch=BATCH, sequence_length=TOKENS, accumulation=1),
        checkpointing="none",
    )
    return expected(inventory(SHAPE, plan), plan, activations(SHAPE, plan))


def measured(precision: Precision, device: torch.device) -> Reading:
    """Train three steps and read the allocator over the third."""
    config = GPTConfig(
        vocabulary=SHAPE.vocab, context=SHAPE.positions, layers=SHAPE.layers, heads=8, hidden=SHAPE.hidden
    )
    model = GPT(config).to(device, getattr(torch, precision.parameters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    tokens = torch.randint(SHAPE.vocab, (BATCH, TOKENS), device=device)
    labels = torch.randint(SHAPE.vocab, (BATCH, TOKENS), device=device)
    half = torch.autocast(device.type, torch.bfloat16, enabled=precision.autocast is not None)
    start = saved = 0
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats(device)
        start = torch.cuda.memory_allocated(device)
        with half:
            # Nothing but the loss outlives this line, as in the budget.
            loss = F.cross_entropy(model(tokens).float().flatten(0, 1), labels.flatten())
        saved = torch.cuda.memory_allocated(device) - start
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()
    return Reading(start, saved, torch.cuda.max_memory_allocated(device))


def checks(device: torch.device) -> list[tuple[str, bool, str]]:
    """Return (name, passed, detail): states to 1 %, saved activations to 2 %, the peak to 3 %."""
    found = []
    for name, precision in PRECISIONS.items():
        budget, reading = budget_of(precision), measured(precision, device)
        start = budget.at("step_start")
        states = sum(start[part].bytes or 0 for part in ("parameters", "optimizer"))
        inputs = start["activations"].bytes or 0
        saved = (budget.at("backward_start")["activations"].bytes or 0) - inputs
        peak = (budget.total(budget.peak() or "backward") or 0) - (start["runtime"].bytes or 0)
        workspaces = reading.states - states - inputs
        for what, wanted, got, limit in (
            ("activations", saved, reading.saved, 0.02),
            ("peak", peak, reading.peak - workspaces, 0.03),
        ):
            error = got / wanted - 1 if wanted else 1.0
            found.append((f"budget {name}: {what}", abs(error) <= limit, f"expected {wanted}, {got} ({error:+.2%})"))
        found.append((f"budget {name}: states", 0 <= workspaces < 200 << 20, f"{workspaces} bytes beside them"))
    return found
