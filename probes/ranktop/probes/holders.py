"""Where the parameters and gradients of a model live: its modules, FSDP1's flat parameters, FSDP2's groups.

Weak references only, and none to a parameter itself: ``torch.utils.swap_tensors``, which ``Module.to`` uses
for DTensors, refuses tensors that have one.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ranktop.probes.structure import Structure

_PLAIN_ACCESS: Any = getattr(torch._C, "DisableTorchFunctionSubclass", contextlib.nullcontext)
"""Reads attributes of tensor subclasses (DTensor) without asking the subclass: twice as fast."""


class Gone(Exception):
    """A module that was walked is no longer there, or holds other parameters than before."""


@dataclass(slots=True)
class PlainModule:
    """The parameters that a module holds by itself."""

    module: weakref.ref[nn.Module]
    names: tuple[str, ...]
    ids: tuple[int, ...]
    """Identities of the parameters when walked."""
    types: tuple[torch.dtype, ...]
    trainable: tuple[bool, ...]
    whole: bool
    """True when ``names`` are everything in the module's ``_parameters``."""

    def tensors(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of now; raises Gone when they are not the ones walked."""
        module = self.module()
        if module is None:
            raise Gone
        held = module._parameters
        for name in self.names:
            # A ScriptModule's parameters have no ``get``.
            parameter = held[name] if name in held else None  # noqa: SIM401
            if parameter is None:
                raise Gone
            yield parameter

    def changed(self) -> bool:
        """Return whether a parameter was replaced, cast, frozen or unfrozen since the walk."""
        module = self.module()
        if module is None or (self.whole and len(module._parameters) != len(self.names)):
            return True
        held = module._parameters
        for name, identity, dtype, trainable in zip(self.names, self.ids, self.types, self.trainable, strict=True):
            now = held[name] if name in held else None  # noqa: SIM401
            if now is None or id(now) != identity or now.dtype != dtype or now.requires_grad != trainable:
                return True
        return False


@dataclass(slots=True)
class ShardedGroup:
    """One FSDP2 parameter group: its sharded parameters, also while they are gathered."""

    group: weakref.ref[Any]
    key: tuple[Any, ...] = ()
    accumulates: bool = False
    """True once a backward without reduction was seen: it leaves whole gradients beside the shards."""

    def parameters(self) -> list[Any]:
        """Return the FSDPParams of the group."""
        group = self.group()
        if group is None:
            raise Gone
        return list(group.fsdp_params)

    def tensors(self) -> Iterator[Any]:
        """Yield the sharded parameters."""
        for parameter in self.parameters():
            yield parameter.sharded_param

    def gradients(self) -> Iterator[Any]:
        """Yield the sharded gradients, and what a backward without (full) reduction leaves."""
        for parameter in self.parameters():
            yield parameter.sharded_param.grad
        yield from self.unreduced()

    def skips_reduction(self) -> bool:
        """Return whether the next backward leaves its gradients unreduced, or one did since the walk."""
        group: Any = self.group()
        try:
            reduces = group.reduce_grads and group.all_reduce_grads
        except AttributeError:  # of another version
            reduces = getattr(group, "reduce_grads", True) and getattr(group, "all_reduce_grads", True)
        if not reduces:
            self.accumulates = True
        return self.accumulates

    def unreduced(self) -> Iterator[Any]:
        """Yield whole gradients that wait for their reduction, and shards that wait for the replicas'."""
        yield getattr(self.group(), "_partial_reduce_output", None)
        for parameter in self.parameters():
            yield getattr(parameter, "unsharded_accumulated_grad", None)
            yield getattr(getattr(parameter, "_unsharded_param", None), "grad", None)

    def state(self) -> tuple[Any, ...]:
        """Return a value that differs when a parameter was replaced, cast or frozen."""
        key: list[Any] = []
        with _PLAIN_ACCESS():
            for p in self.parameters():
                own = p.sharded_param
                key += id(own), id(getattr(p, "_sharded_param_data", None)), own.dtype, own.requires_grad
        return tuple(key)

    def changed(self) -> bool:
        """Return whether ``state`` differs from the one walked."""
        self.skips_reduction()
        try:
            return self.state() != self.key
        except Gone:
            return True


@dataclass(slots=True)
class FlatHandle:
    """One FSDP1 flat parameter, by its local shard."""

    handle: weakref.ref[Any]
    key: tuple[Any, ...] = ()

    def flat(self) -> Any:
        """Return the flat parameter."""
        handle = self.handle()
        if handle is None:
            raise Gone
        return handle.flat_param

    def tensors(self) -> Iterator[Any]:
        """Yield the local shard (the flat parameter itself before its first forward)."""
        flat = self.flat()
        shard = getattr(flat, "_local_shard", None)
        yield flat.data if shard is None else shard

    def gradients(self) -> Iterator[Any]:
        """Yield the sharded gradient, also while a backward keeps it aside."""
        flat = self.flat()
        yield flat.grad
        yield getattr(flat, "_saved_grad_shard", None)

    def state(self) -> tuple[Any, ...]:
        """Return a value that differs when the flat parameter was replaced, cast or (un)frozen."""
        flat = self.flat()
        shard = getattr(flat, "_local_shard", None)
        originals = getattr(flat, "_params", None) or ()
        frozen = tuple(p.requires_grad for p in originals)
        return id(flat), id(shard), flat.dtype, flat.requires_grad, frozen

    def changed(self) -> bool:
        """Return whether ``state`` differs from the one walked."""
        try:
            return self.state() != self.key
        except Gone:
            return True


@dataclass(slots=True)
class Holders:
    """All holders of a model, in the order of its modules."""

    plain: list[PlainModule] = field(default_factory=list)
    refs: list[Any] = field(default_factory=list)
    """Weak references to the modules of ``plain`` that hold nothing else in ``_parameters``."""
    mixed: list[PlainModule] = field(default_factory=list)
    """Those of ``plain`` that do."""
    groups: list[ShardedGroup] = field(default_factory=list)
    group_refs: list[Any] = field(default_factory=list)
    """The weak references of ``groups``."""
    flats: list[FlatHandle] = field(default_factory=list)

    def parameters(self) -> Iterator[Any]:
        """Yield every parameter's own tensor (shared ones as often as they are held)."""
        for module in self.plain:
            yield from module.tensors()
        for group in self.groups:
            yield from group.tensors()
        for flat in self.flats:
            yield from flat.tensors()

    def leaves(self) -> Iterator[Any]:
        """Yield the parameters as optimizers know them: FSDP1's original ones, or its flat ones."""
        for module in self.plain:
            yield from module.tensors()
        for group in self.groups:
            yield from group.tensors()
        for flat in self.flats:
            yield flat.flat()
            yield from getattr(flat.flat(), "_params", None) or ()

    def gradients(self) -> Iterator[Any]:
        """Yield every gradient, None for those that do not exist now."""
        for module in self.plain:
            for parameter in module.tensors():
                yield parameter.grad
        for group in self.groups:
            yield from group.gradients()
        for flat in self.flats:
            yield from flat.gradients()

    def present(self) -> list[int]:
        """Return which gradients exist now, in an order of its own; raises Gone when the layout changed.

        True or False; a flat gradient says its size, for it comes whole or sharded. This runs in the
        training thread at every moment: about 0.1 us for each parameter.
        """
        found: list[int]
        try:
            with _PLAIN_ACCESS():
                # One comprehension over all modules: half the time of a loop over holders.
                found = [p.grad is not None for ref in self.refs for p in ref()._parameters.values()]
                for holder in self.mixed:
                    found += [parameter.grad is not None for parameter in holder.tensors()]
                if self.groups:
                    found += self._present_in_groups()
                for flat in self.flats:
                    found += [0 if gradient is None else gradient.numel() for gradient in flat.gradients()]
        except (AttributeError, KeyError) as error:
            raise Gone from error
        return found

    def _present_in_groups(self) -> list[int]:
        found: list[int] = [p.sharded_param.grad is not None for ref in self.group_refs for p in ref().fsdp_params]
        # Scripts switch the reduction for all units at once; a single one shows at the next look.
        first, last = self.groups[0].skips_reduction(), self.groups[-1].skips_reduction()
        if first or last or True in [group.accumulates for group in self.groups]:
            for group in self.groups:
                found += [gradient is not None for gradient in group.unreduced()]
        return found

    def layout(self) -> list[object]:
        """Return a value that differs when a walk has found other parameters, or the same cast, frozen or unfrozen."""
        plain = [(module.ids, module.types, module.trainable) for module in self.plain]
        return [*plain, *(group.key for group in self.groups), *(flat.key for flat in self.flats)]

    def window(self, start: int, size: int) -> tuple[list[PlainModule | ShardedGroup | FlatHandle], int]:
        """Return up to ``size`` holders from ``start`` on, going round, and where the next look starts."""
        holders: list[PlainModule | ShardedGroup | FlatHandle] = [*self.plain, *self.groups, *self.flats]
        if len(holders) <= size:
            return holders, 0
        start %= len(holders)
        return (holders + holders)[start : start + size], (start + size) % len(holders)


def find_holders(structure: Structure) -> Holders:
    """Return where the parameters of a model live."""
    holders = Holders()
    for module, items in structure.plain():
        held = [p for _, p in items]
        holders.plain.append(
            PlainModule(
                weakref.ref(module),
                tuple(name for name, _ in items),
                tuple(map(id, held)),
                tuple(p.dtype for p in held),
                tuple(p.requires_grad for p in held),
                len(items) == len(module._parameters),
            )
        )
    holders.refs = [holder.module for holder in holders.plain if holder.whole]
    holders.mixed = [holder for holder in holders.plain if not holder.whole]
    for group in structure.groups:
        sharded = ShardedGroup(weakref.ref(group))
        sharded.key = sharded.state()
        holders.groups.append(sharded)
    holders.group_refs = [holder.group for holder in holders.groups]
    for _, handle in structure.handles:
        flat = FlatHandle(weakref.ref(handle))
        flat.key = flat.state()
        holders.flats.append(flat)
    return holders
