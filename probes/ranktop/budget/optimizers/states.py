"""What each optimizer keeps for a parameter: from its class and options, else as seen on the live one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from ranktop.budget.optimizers.blocks import blockwise
from ranktop.budget.plan import OptimizerPlan, Plan, State
from ranktop.budget.terms import DTYPE_BYTES, Amount

Options = Mapping[str, bool | float | str]


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of one parameter tensor that this rank's optimizer updates."""

    shape: tuple[int, ...]
    """Shape of the part."""
    itemsize: int
    """Bytes per element of the parameter."""
    group: int = 0
    """As ``Kind.group``."""
    trainable: bool = True
    whole: bool = True
    """False for a shard: states whose size follows the shape (factored ones) are then not known."""
    count: int = 1
    """How many parts are like this one."""


def _like(*names: str) -> tuple[State, ...]:
    return tuple(State(name=name) for name in names)


def _scalars(options: Options, *names: str, always: bool = False) -> tuple[State, ...]:
    """Return counters: on the parameter's device when ``always``, fused or capturable, else on the CPU.

    torch/optim/optimizer.py ``_get_scalar_dtype``: float32, or float64 if that is the default and not fused.
    """
    fused = bool(options.get("fused"))
    dtype = "float64" if options.get("default_dtype") == "float64" and not fused else "float32"
    on_device = always or fused or bool(options.get("capturable"))
    return tuple(State(name=name, like="scalar", dtype=dtype, on_device=on_device) for name in names)


def _sgd(options: Options) -> tuple[State, ...]:
    return _like("momentum_buffer") if options.get("momentum") else ()


def _adam(options: Options) -> tuple[State, ...]:
    third = ("max_exp_avg_sq",) if options.get("amsgrad") else ()
    return _scalars(options, "step") + _like("exp_avg", "exp_avg_sq", *third)


def _rmsprop(options: Options) -> tuple[State, ...]:
    more: tuple[str, ...] = ("momentum_buffer",) if options.get("momentum") else ()
    more += ("grad_avg",) if options.get("centered") else ()
    return _scalars(options, "step") + _like("square_avg", *more)


def _adafactor(options: Options) -> tuple[State, ...]:
    return (
        *_scalars({**options, "fused": False, "capturable": False}, "step"),
        State(name="row_var", like="rows"),
        State(name="col_var", like="columns"),
        State(name="variance", like="vector"),
    )


_TORCH: Final[dict[str, Callable[[Options], tuple[State, ...]]]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdamW": _adam,
    "RMSprop": _rmsprop,
    "Adafactor": _adafactor,
    "NAdam": lambda o: _scalars(o, "step", "mu_product") + _like("exp_avg", "exp_avg_sq"),
    "RAdam": lambda o: _scalars(o, "step") + _like("exp_avg", "exp_avg_sq"),
    "Adamax": lambda o: _scalars(o, "step") + _like("exp_avg", "exp_inf"),
    "Adadelta": lambda o: _scalars(o, "step") + _like("square_avg", "acc_delta"),
    "Adagrad": lambda o: _scalars({**o, "capturable": False}, "step") + _like("sum"),
    "ASGD": lambda o: _scalars(o, "step", "eta", "mu", always=True) + _like("ax"),
    "Rprop": lambda o: _scalars(o, "step") + _like("prev", "step_size"),
    "SparseAdam": lambda o: _like("exp_avg", "exp_avg_sq"),
    "Muon": lambda o: _like("momentum_buffer"),
}
"""States by class of ``torch.optim`` (2.13; each from its file's ``_init_group``)."""


def _adafactor_hf(options: Options) -> tuple[State, ...]:
    """transformers/optimization.py ``Adafactor``: fp32 whatever the parameter's dtype; momentum only with beta1."""
    factored = (State(name="exp_avg_sq_row", like="rows"), State(name="exp_avg_sq_col", like="columns"))
    momentum = _like("exp_avg") if options.get("beta1") else ()
    states = (*momentum, *factored, State(name="exp_avg_sq", like="vector"))
    return (State(name="RMS", like="scalar", dtype="float32"), *(replace(s, dtype="float32") for s in states))


_OTHERS: Final[dict[str, Callable[[Options], tuple[State, ...]]]] = {
    "Lion": lambda o: _like("exp_avg"),
    "Adafactor": _adafactor_hf,
    "PagedAdam": lambda o: tuple(State(name=n, dtype="float32") for n in ("state1", "state2")),
    "PagedAdamW": lambda o: tuple(State(name=n, dtype="float32") for n in ("state1", "state2")),
    "PagedLion": lambda o: (State(name="state1", dtype="float32"),),
}
"""Classes that several packages offer under one name with the same states."""

_AT_CONSTRUCTION: Final = frozenset({"Adagrad"})
"""Optimizers whose state exists before any step, for frozen parameters too (torch/optim/adagrad.py)."""


def states_of(optimizer: OptimizerPlan) -> tuple[tuple[State, ...] | None, str]:
    """Return the states that an optimizer keeps per parameter and the rule; None when they are not known."""
    name, package = optimizer.name, str(optimizer.options.get("package", "torch"))
    if not name and not optimizer.count:
        return (), "no optimizer"
    rule = (_TORCH.get(name) if package == "torch" else None) or _OTHERS.get(name)
    if rule is not None:
        states = rule(optimizer.options)
        return states, f"{name}: {' + '.join(state.name for state in states) or 'no state'}"
    if optimizer.states:
        return optimizer.states, f"{name}: as seen on the live optimizer, there is no rule for this class"
    return None, f"no rule for the optimizer {name}, and it holds no state yet"


def state_bytes(state: State, piece: Piece) -> int | None:
    """Return the bytes of one state of one piece; None when the piece's shape does not tell."""
    item = DTYPE_BYTES[state.dtype] if state.dtype else piece.itemsize
    numel, dims = prod(piece.shape), len(piece.shape)
    if state.like == "scalar":
        return item
    if state.like == "vector":
        return item * numel if dims <= 1 else 0
    if state.like in ("rows", "columns"):
        if dims <= 1:
            return 0
        if not piece.whole:
            return None
        along = piece.shape[-1] if state.like == "rows" else piece.shape[-2]
        return item * numel // along if along else 0
    return item * numel if state.like == "parameter" else 0


def per_group(plan: Plan) -> Callable[[int], OptimizerPlan]:
    """Return the function from a group's index (``Kind.group``) to the optimizer that updates it."""
    groups = plan.groups
    return lambda group: groups[group] if 0 <= group < len(groups) else plan.optimizer


def optimizer_amount(pieces: Iterable[Piece], plan: Plan, *, before_first_step: bool = False) -> Amount:
    """Return what the optimizers of a plan hold on the device for this rank's pieces.

    With ``before_first_step`` only what exists from construction on. Source: torch/optim.
    """
    of_group = per_group(plan)
    total, rules, seen = 0, dict[str, None](), dict[str, State]()
    for piece in pieces:
        optimizer = of_group(piece.group)
        early = optimizer.name in _AT_CONSTRUCTION
        if piece.group < 0 or (before_first_step and not early) or not (piece.trainable or early):
            continue
        blocks = blockwise(optimizer.name, str(optimizer.options.get("package", "torch")))
        if blocks is not None:
            rules[f"{optimizer.name}: {blocks.words}"] = None
            total += blocks.bytes(prod(piece.shape), piece.itemsize) * piece.count
            continue
        states, rule = states_of(optimizer)
        if states is None:
            return Amount(None, rule)
        rules[rule] = None
        for state in states:
            if state.like == "other":
                seen[f"{optimizer.name}.{state.name}"] = state
            elif state.on_device or plan.host:
                size = state_bytes(state, piece)
                if size is None:
                    return Amount(None, f"{optimizer.name}: size of {state.name} on a shard is not known")
                total += size * piece.count
    total += sum(state.bytes or 0 for state in seen.values())
    nothing = "made by the first step" if before_first_step else "no optimizer state"
    return Amount(total, "; ".join(rules) or nothing)


def by_name(name: str, **options: bool | float | str) -> OptimizerPlan:
    """Return the plan of an optimizer as users call it (``adamw8bit``); BadInput with the closest names otherwise."""
    from ranktop.budget.optimizers.names import by_name as found

    return found(name, **options)
