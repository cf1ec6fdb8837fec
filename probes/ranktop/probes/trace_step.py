"""Runs one forward and backward of a model and reads from the timeline what lived when."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils.checkpoint import checkpoint

from ranktop.probes.trace_feed import Feed
from ranktop.probes.trace_gpu import cuda_kernels
from ranktop.probes.trace_timeline import Timeline, tensors_in

_MATTERS: Final = 0.05
"""Share of a block's gradients below which one of them does not count before the next one."""


@dataclass(frozen=True)
class Reading:
    """Bytes of one training step at one depth, batch and sequence, as ``Activations`` names them."""

    saved: int
    """Alive for backward outside of ``logits`` and ``casts``: what blocks and their surroundings keep, and what the
    training loop's own variables keep (the model's output)."""
    after: int
    """Part of ``saved`` that is gone before backward reaches the blocks: what the final norm keeps."""
    logits: int
    casts: int
    cached: int
    """Casts that autocast holds until forward has ended, although backward does not need them."""
    inputs: int
    boundary: int
    loss_forward: int
    loss_backward: int
    block_forward: int
    """Temporaries while the last block runs forward, on top of what it, those before it and the embedding keep."""
    block_backward: int
    """On top of what is saved when a block's backward begins; with checkpointing, what is recomputed is in it."""
    loss_curve: tuple[int, ...]
    """On top of all that is saved, after every event until backward enters the last block."""
    block_curve: tuple[tuple[int, int], ...]
    """The last block's backward after every event: bytes on top of what was saved when it began (negative once more
    is freed than made), and bytes of its parameters' gradients made by then."""
    parameters: int
    """Number of parameters, tied ones once."""
    parameter_bytes: int

    @property
    def peak(self) -> int:
        """All that lives on top of the states when backward goes through the loss."""
        return (
            self.saved
            + self.logits
            + self.casts
            + self.inputs
            + max(self.loss_forward + self.cached, self.loss_backward)
        )


@dataclass(frozen=True)
class Setup:
    """How a step is run."""

    feed: Feed
    autocast: torch.dtype | None = None
    gpu: bool = True
    """Count what CUDA's kernels save instead of what the CPU's do."""


def read_step(model: Any, blocks: list[Any], setup: Setup, batch: int, sequence: int, checkpointed: bool) -> Reading:
    """Run one forward and backward and return what was read; the model's gradients are gone afterwards."""
    timeline = Timeline(setup.gpu)
    parameters = list(model.parameters())
    timeline.ignore([*parameters, *model.buffers()])
    args, kwargs, labels = setup.feed.make(model, batch, sequence)
    with torch.no_grad():
        for tensor in tensors_in([args, kwargs, labels]):
            timeline.add(tensor)
    inputs = timeline.numbers(tensors_in([args, kwargs, labels]))
    watcher = _Watcher(timeline, blocks)
    # The collector of cycles would free things at another point in every run.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with _checkpointing(blocks if checkpointed else []), watcher.watching(model), cuda_kernels(setup.gpu):
            context = nullcontext() if setup.autocast is None else torch.autocast("cpu", setup.autocast)
            with context, timeline:
                output = model(*args, **kwargs)
                loss = setup.feed.scalar(output, labels)
                timeline.mark("loss")
            timeline.mark("backward")
            watcher.forwarding = False
            with timeline:
                loss.backward()
            gradients = timeline.numbers(p.grad for p in parameters)
        # The output is still held here, as a training loop's variable holds it.
        return _reading(timeline, watcher, inputs, gradients, parameters)
    finally:
        for parameter in parameters:
            parameter.grad = None
        if collecting:
            gc.enable()


@contextmanager
def _checkpointing(blocks: list[Any]) -> Iterator[None]:
    """Let blocks keep only their inputs and recompute the rest, each a segment of its own."""
    own = [block.__dict__.get("forward") for block in blocks]
    try:
        for block in blocks:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
        yield
    finally:
        for block, forward in zip(blocks, own, strict=True):
            block.__dict__.pop("forward", None)
            if forward is not None:
                block.forward = forward


class _Watcher:
    """Marks on the timeline where blocks begin and end, forward and backward."""

    def __init__(self, timeline: Timeline, blocks: list[Any]) -> None:
        self.forwarding = True
        """False once backward runs: recomputation calls modules again."""
        self.boundary = 0
        self.run = 0
        """Blocks that have run forward."""
        self._timeline = timeline
        self._blocks = blocks

    @contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Keep hooks on the modules of a model."""
        handles = [block.register_forward_hook(self._after_block) for block in self._blocks]
        handles += [block.register_forward_pre_hook(self._before_block) for block in self._blocks]
        for module in model.modules():
            if module._parameters:
                handles.append(module.register_forward_pre_hook(self._before_leaf))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before_leaf(self, module: Any, args: Any) -> None:
        if self.forwarding:
            self._timeline.mark("leaf", last=True)

    def _before_block(self, module: Any, args: Any) -> None:
        if self.forwarding:
            self._timeline.mark("last block", last=True)

    def _after_block(self, module: Any, args: Any, output: Any) -> None:
        if not self.forwarding:
            return
        index, self.run = self.run, self.run + 1
        self._timeline.mark("blocks end", last=True)
        grown = next((t for t in tensors_in(output) if t.requires_grad), None)
        if grown is not None:
            self.boundary = grown.numel() * grown.element_size()
            grown.register_hook(self._backward_of(index))

    def _backward_of(self, index: int) -> Callable[[Any], None]:
        def hook(_: Any) -> None:
            self._timeline.mark(f"block {index}")

        return hook


def _reading(
    timeline: Timeline, watcher: _Watcher, inputs: set[int], gradients: set[int], parameters: list[Any]
) -> Reading:
    marks = timeline.marks
    start = marks["backward"]
    end_of_blocks = marks.get("blocks end", 0)
    head = max(end_of_blocks, marks.get("leaf", 0))
    saved = timeline.alive_at(start) - inputs
    casts = saved & timeline.casts
    held = saved & timeline.alive_at(len(timeline.events))
    logits = (saved & timeline.born_from(head)) - casts - held
    late = timeline.born_from(end_of_blocks)
    live = timeline.live(without=inputs | gradients)
    entered = marks.get("last block", end_of_blocks)
    cached = (timeline.casts & timeline.alive_at(marks["loss"])) - saved
    ahead = timeline.live(without=inputs | gradients | cached)
    last = marks.get(f"block {watcher.run - 1}", len(timeline.events))
    curve = _block_curve(timeline, live, saved, gradients, last, marks.get(f"block {watcher.run - 2}"))
    after = saved - casts - logits - held - timeline.alive_at(last) if watcher.run else set()
    return Reading(
        saved=timeline.bytes(saved - casts - logits),
        after=timeline.bytes(after),
        logits=timeline.bytes(logits),
        casts=timeline.bytes(casts),
        cached=timeline.bytes(cached),
        inputs=timeline.bytes(inputs),
        boundary=watcher.boundary,
        loss_forward=max(ahead[end_of_blocks : start + 1]) - ahead[start],
        loss_backward=max(live[start : last + 1]) - live[start],
        block_forward=max(0, max(ahead[entered : end_of_blocks + 1]) - timeline.bytes(saved - late - after)),
        block_backward=max([0, *(alive for alive, _ in curve)]),
        loss_curve=tuple(alive - live[start] for alive in live[start : last + 1]),
        block_curve=curve,
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
    )


def _block_curve(
    timeline: Timeline, live: list[int], saved: set[int], gradients: set[int], begin: int, end: int | None
) -> tuple[tuple[int, int], ...]:
    """Return the last block's backward after every event: bytes above what was saved, bytes of gradients made.

    Of the gradients only those that matter move the second number, and from the event on at which they are made.
    """
    if begin >= len(timeline.events):
        return ()
    stop = len(timeline.events) if end is None else end
    kept = timeline.bytes(saved & timeline.alive_at(begin))
    whole = timeline.bytes(gradients & set(timeline.events[begin:stop]))
    curve, made, told = [(live[begin] - kept, 0)], 0, 0
    for position in range(begin, stop):
        event = timeline.events[position]
        if event in gradients:
            made += timeline.sizes[event]
            told = made if made - told >= _MATTERS * whole else told
        curve.append((live[position + 1] - kept, told))
    return tuple(curve)
