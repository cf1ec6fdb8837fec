"""How a live model is trained, as a plan: strategy, layout, precision, optimizer and batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn

from ranktop.budget.plan import Batch, Ddp, Fsdp, Layout, OptimizerPlan, Plan, Precision
from ranktop.probes import buckets, engines, mesh, optimizer
from ranktop.probes.precision import precision_of
from ranktop.probes.storages import Ledger, is_host
from ranktop.probes.structure import Structure, structure_of

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What hooks have seen of the steps so far; None or empty = not yet."""

    micro_batch: int | None = None
    sequence_length: int | None = None
    accumulation: int | None = None
    gradients_at: tuple[str, ...] = ()
    """Moments at which gradients existed in the last finished steps."""
    autocast: str | None = None
    """Dtype name of the autocast in force during forward."""
    compute: str | None = None
    """Dtype name of the root's floating-point outputs, where that is the compute dtype."""
    unsharded_at: tuple[str, ...] = ()
    """Moments at which there were other gradients than a step ends with."""


def detect(root: nn.Module, optimizers: Sequence[Any], device: torch.device, seen: Seen | None = None) -> Plan:
    """Return the plan of a live model. Never raises: what can't be told is in ``Plan.notes``."""
    seen = seen or Seen()
    notes: list[str] = []
    engine = _guarded(lambda: engines.find(root), None, "DeepSpeed", notes)
    if engine is not None:
        plan = _guarded(lambda: engines.plan(engine, seen), None, "the DeepSpeed engine", notes)
        if plan is not None:
            return _with_structure(plan, root, notes)
    structure = _guarded(lambda: structure_of(root), Structure([root], [], []), "the model's structure", notes)
    each: list[Any] = _guarded(lambda: optimizer.distinct(optimizers), [], "the optimizers", notes)
    plan = _plan(structure, each, seen, notes)
    notes += _doubts(structure, device, plan)
    return replace(plan, host=is_host(device), notes=tuple(notes))


def _with_structure(plan: Plan, root: nn.Module, notes: list[str]) -> Plan:
    """Add to an engine's plan what only the modules tell."""
    found = _guarded(lambda: checkpointing_of(structure_of(root)), None, "checkpointing", notes)
    compiled = _guarded(lambda: is_compiled(structure_of(root)), False, "torch.compile", notes)
    return replace(plan, checkpointing=found, compiled=compiled, notes=(*plan.notes, *notes))


def _plan(structure: Structure, optimizers: list[Any], seen: Seen, notes: list[str]) -> Plan:
    """Ask for every part of the plan by itself, so that one that fails leaves the others."""
    unknown: tuple[Layout, tuple[str, ...]] = Layout(), ()
    layout, more = _guarded(lambda: mesh.layout_of(structure), unknown, "the ranks' layout", notes)
    notes += more
    fsdp = _guarded(lambda: fsdp_options(structure), None, "FSDP's options", notes)
    ddp = _guarded(lambda: ddp_options(structure), None, "DDP's options", notes)
    redundancy = any(type(each).__name__ == "ZeroRedundancyOptimizer" for each in optimizers)
    bare: tuple[OptimizerPlan, tuple[OptimizerPlan, ...]] = OptimizerPlan(count=len(optimizers)), ()
    first, groups = _guarded(lambda: optimizer.describe(optimizers), bare, "the optimizer's options", notes)
    dtypes = _guarded(
        lambda: precision_of(structure, optimizers, seen.autocast, seen.compute),
        Precision(autocast=seen.autocast),
        "the precision",
        notes,
    )
    batch = Batch(micro_batch=seen.micro_batch, sequence_length=seen.sequence_length, accumulation=seen.accumulation)
    return Plan(
        strategy=_strategy(structure, layout, fsdp, ddp, redundancy),
        layout=layout,
        ddp=ddp,
        fsdp=fsdp,
        zero_redundancy=redundancy,
        precision=dtypes,
        optimizer=first,
        batch=batch,
        checkpointing=_guarded(lambda: checkpointing_of(structure), None, "checkpointing", notes),
        compiled=_guarded(lambda: is_compiled(structure), False, "torch.compile", notes),
        gradients_at=seen.gradients_at or Plan().gradients_at,
        unsharded_gradients_at=seen.unsharded_at if _may_wait(fsdp, ddp, layout) else (),
        groups=groups,
    )


def _may_wait(fsdp: Fsdp | None, ddp: Ddp | None, layout: Layout) -> bool:
    """Whether gradients that are not reduced yet lie elsewhere than reduced ones."""
    return layout.shard > 1 if fsdp is not None else ddp is not None and ddp.gradient_as_bucket_view


def _doubts(structure: Structure, device: torch.device, plan: Plan) -> list[str]:
    """Return what the plan leaves open, in words."""
    notes: list[str] = []
    if plan.checkpointing is None:
        notes.append("activation checkpointing by torch.utils.checkpoint cannot be seen from outside")
    if _guarded(lambda: has_sparse_gradients(structure), False, "sparse gradients", notes):
        notes.append("an embedding has sparse gradients, whose size follows the data")
    elsewhere = _guarded(lambda: parameters_elsewhere(structure, device), 0, "the devices", notes)
    if elsewhere:
        notes.append(f"{elsewhere} parameters lie on other devices and are not counted")
    return notes


def _guarded(ask: Callable[[], _T], otherwise: _T, what: str, notes: list[str]) -> _T:
    """Return the answer, or ``otherwise`` and a note: another version of torch must not stop the rest."""
    try:
        return ask()
    except Exception as error:
        notes.append(f"could not tell {what}: {type(error).__name__}: {error}"[:200])
        return otherwise


def _strategy(structure: Structure, layout: Layout, fsdp: Fsdp | None, ddp: Ddp | None, redundancy: bool) -> str:
    if fsdp is not None:
        return f"fsdp{fsdp.version}"
    if ddp is not None:
        return "zero-redundancy" if redundancy else "ddp"
    parallel = [module for module in structure.modules if isinstance(module, nn.DataParallel)]
    if any(len(getattr(module, "device_ids", ())) > 1 for module in parallel):
        return "dp"
    if layout.tensor > 1:
        return "tp"
    return "pp" if layout.pipeline > 1 else "single"


def ddp_options(structure: Structure) -> Ddp | None:
    """Return DDP's options, None for a model without it."""
    for wrapper in buckets.ddp_wrappers(structure.modules):
        return Ddp(
            gradient_as_bucket_view=bool(getattr(wrapper, "gradient_as_bucket_view", False)),
            bucket_bytes=buckets.ddp_buckets(structure.modules).sizes,
            static_graph=bool(getattr(wrapper, "static_graph", False)),
        )
    return None


def fsdp_options(structure: Structure) -> Fsdp | None:
    """Return the options of FSDP1 or FSDP2, None for a model without them."""
    if structure.states:
        return _fsdp2_options(structure.states)
    for module, handle in structure.handles:
        name = handle._sharding_strategy.name.lower()
        strategy = getattr(getattr(module, "sharding_strategy", None), "name", name).lower()
        return Fsdp(
            version=1,
            sharding=_FSDP1.get(strategy, strategy),
            use_orig_params=bool(handle._use_orig_params),
            cpu_offload=bool(handle._offload_params),
        )
    return None


_FSDP1 = {
    "full_shard": "full",
    "shard_grad_op": "grad-op",
    "hybrid_shard": "hybrid",
    "_hybrid_shard_zero2": "hybrid-grad-op",
    "no_shard": "none",
}


def _fsdp2_options(states: list[tuple[Any, Any]]) -> Fsdp:
    """FSDP2's root keeps its parameters after forward by itself: the other units tell the choice."""
    inner = [group for state, group in states if not getattr(state, "_is_root", False)]
    groups = inner or [group for _, group in states]
    kept = sum(group.post_forward_mesh_info is None for group in groups)
    auto = not inner and _by_itself(states[0][0])
    grad_op = kept * 2 > len(groups) and not auto
    mesh_info = groups[0].mesh_info
    hybrid = getattr(mesh_info, "replicate_mesh_size", 1) > 1
    smaller = getattr(groups[0].post_forward_mesh_info, "shard_mesh_size", None)
    roots = [(state, group) for state, group in states if getattr(state, "_is_root", False)]
    let_go = any(group.post_forward_mesh_info is not None and not _by_itself(state) for state, group in roots)
    return Fsdp(
        version=2,
        sharding=("hybrid-grad-op" if grad_op else "hybrid") if hybrid else "grad-op" if grad_op else "full",
        cpu_offload=bool(groups[0].fsdp_params and groups[0].fsdp_params[0].offload_to_cpu),
        reshard_after_forward=smaller if smaller != getattr(mesh_info, "shard_mesh_size", None) else None,
        root_resharded=let_go,
    )


def _by_itself(state: Any) -> bool:
    """Whether FSDP2 decides whether a unit reshards after forward: it keeps the root's parameters then."""
    return bool(getattr(state, "_auto_reshard_after_forward", False))


def checkpointing_of(structure: Structure) -> str | None:
    """Return how activations are checkpointed where modules show it: wrappers, or a model's own switch."""
    switches: list[bool] = []
    for module in structure.modules:
        # Its own class, or what fully_shard has made of it.
        if any(kind.__name__ == "CheckpointWrapper" for kind in type(module).__mro__):
            keywords = getattr(module.__dict__.get("checkpoint_fn"), "keywords", {})
            return "selective" if keywords.get("context_fn") else "full"
        switch = module.__dict__.get("gradient_checkpointing")
        if isinstance(switch, bool):
            switches.append(switch)
    if not switches:
        return None
    return "full" if any(switches) else "none"


def is_compiled(structure: Structure) -> bool:
    """Return whether the model or a part of it runs through ``torch.compile``."""
    return any(
        type(module).__name__ == "OptimizedModule" or module.__dict__.get("_compiled_call_impl") is not None
        for module in structure.modules
    )


def has_sparse_gradients(structure: Structure) -> bool:
    """Return whether an embedding asks for sparse gradients."""
    return any(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.sparse for m in structure.modules)


def parameters_elsewhere(structure: Structure, device: torch.device) -> int:
    """Return how many parameters outside FSDP lie on another device than the one that is watched."""
    ledger = Ledger(device)
    return sum(not ledger.here(p) for _, items in structure.plain() for _, p in items)


def batch_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return (micro-batch, sequence length) from the inputs of a root module, None for what they don't tell.

    The first tensor speaks: integers [batch, sequence], or floats [batch, sequence, hidden] (embeddings). In a nested
    tensor each sample has its own length, so that there is no sequence length.
    """
    tensor = _speaker(args, kwargs)
    if tensor is None:
        return None, None
    return int(tensor.size(0)), int(tensor.shape[1]) if _has_sequence(tensor) and not tensor.is_nested else None


def tokens_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Return how many tokens the inputs hold, or samples where there is no sequence; None when they don't tell."""
    tensor = _speaker(args, kwargs)
    if tensor is None:
        return None
    if not _has_sequence(tensor):
        return int(tensor.size(0))
    if tensor.is_nested:
        return int(tensor.numel()) // (int(tensor.size(-1)) if tensor.dim() == 3 else 1)
    return int(tensor.shape[0]) * int(tensor.shape[1])


def _speaker(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    return next((tensor for tensor in _inputs((args, kwargs), 0) if tensor.dim() > 0), None)


def _has_sequence(tensor: torch.Tensor) -> bool:
    if tensor.is_floating_point():
        return tensor.dim() == 3
    return tensor.dim() == 2 and not tensor.is_complex()


def _inputs(value: Any, depth: int) -> Iterator[torch.Tensor]:
    """Yield tensors in nested inputs, well-known names of token inputs first."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if depth > 4:
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        names = [name for name in ("input_ids", "inputs_embeds") if name in value]
        value = [value[name] for name in names] + [v for k, v in value.items() if k not in names]
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _inputs(item, depth + 1)
