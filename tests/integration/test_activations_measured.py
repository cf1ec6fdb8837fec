"""The closed forms against MemTracker: GPT- and Llama-shaped models over everything that moves activations."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from fake_models import Gpt, Measured, ReferenceGpt, llama, measure
from torch import nn

from ranktop.budget.activations.closed import activations
from ranktop.budget.model import Model
from ranktop.budget.plan import Batch, Plan, Precision

SGD = partial(torch.optim.SGD, lr=0.1)

PRECISIONS = {
    "fp32": (torch.float32, None, Precision()),
    "bf16": (torch.bfloat16, None, Precision(parameters="bfloat16")),
    "amp-bf16": (torch.float32, torch.bfloat16, Precision(autocast="bfloat16")),
}


@dataclass(frozen=True)
class Combination:
    """One training run."""

    family: str
    layers: int
    hidden: int
    batch: int
    sequence: int
    precision: str
    checkpointing: str
    attention: str
    heads: int = 4
    kv_heads: int = 4
    ffn: int = 0
    vocab: int = 1024

    def __str__(self) -> str:
        return (
            f"{self.family:5} L{self.layers} h{self.hidden:<3} f{self.ffn or 4 * self.hidden:<4} kv{self.kv_heads} "
            f"b{self.batch} s{self.sequence:<3} {self.precision:8} {self.checkpointing:9} {self.attention}"
        )


SHAPES = (
    Combination("gpt", 2, 256, 2, 128, "", "", ""),
    Combination("gpt", 3, 128, 5, 96, "", "", "", heads=8, kv_heads=8, vocab=317),
    Combination("llama", 2, 256, 2, 128, "", "", "", kv_heads=2, ffn=704),
    Combination("llama", 3, 128, 4, 200, "", "", "", heads=2, kv_heads=2, ffn=512, vocab=2048),
)

COMBINATIONS = tuple(
    replace(shape, precision=precision, checkpointing=checkpointing, attention=attention)
    for shape in SHAPES
    for precision in PRECISIONS
    for checkpointing in ("none", "selective", "full")
    for attention in ("sdpa", "eager")
    # Recomputed whole, little of attention is kept in any precision.
    if (checkpointing, attention) != ("full", "eager") or precision == "amp-bf16"
)


def measured(case: Combination) -> Measured:
    """Run the combination's forward on fake tensors."""
    dtype, autocast, _ = PRECISIONS[case.precision]
    if case.family == "gpt":
        shape = Gpt(
            vocab=case.vocab, layers=case.layers, hidden=case.hidden, heads=case.heads, positions=case.sequence,
            attention=case.attention, checkpointing=case.checkpointing,
        )  # fmt: skip
        build: Callable[[], nn.Module] = partial(ReferenceGpt, shape)
    else:
        build = partial(
            llama, layers=case.layers, hidden=case.hidden, heads=case.heads, kv_heads=case.kv_heads, ffn=case.ffn,
            vocab=case.vocab, attention=case.attention, checkpointing=case.checkpointing,
        )  # fmt: skip
    return measure(
        build,
        batch=case.batch,
        sequence=case.sequence,
        dtype=dtype,
        autocast=autocast,
        optimizer=SGD,
        forward_only=True,
    )


def asked(case: Combination) -> tuple[Model, Plan]:
    """The same in the product's words."""
    model = Model(
        family=case.family, layers=case.layers, hidden=case.hidden, heads=case.heads, kv_heads=case.kv_heads,
        head_dim=case.hidden // case.heads, ffn=case.ffn or 4 * case.hidden, vocab=case.vocab, positions=case.sequence,
    )  # fmt: skip
    plan = Plan(
        precision=PRECISIONS[case.precision][2],
        batch=Batch(micro_batch=case.batch, sequence_length=case.sequence),
        checkpointing=case.checkpointing,
        attention=case.attention,
        loss="hf" if case.family == "llama" else "upcast",
        host=True,
    )
    return model, plan


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_saved_activations_over_everything_that_moves_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMBINATIONS) >= 60
    lines, errors = [], []
    for case in COMBINATIONS:
        found = activations(*asked(case))
        ours, theirs = found.saved - found.inputs, measured(case).activations
        errors.append(abs(ours - theirs) / theirs)
        lines.append(f"{case}  measured {theirs:>10}  ours {ours:>10}  {errors[-1]:7.2%}")
    errors.sort()
    median, p90, worst = statistics.median(errors), errors[int(0.9 * len(errors))], errors[-1]
    with capsys.disabled():
        print("\nSaved activations after forward, MemTracker beside the closed form (bytes)")
        print("\n".join(lines))
        print(f"{len(errors)} combinations: median {median:.2%}, p90 {p90:.2%}, worst {worst:.2%}")
    assert median <= 0.01
    assert p90 <= 0.05
    assert worst <= 0.08
