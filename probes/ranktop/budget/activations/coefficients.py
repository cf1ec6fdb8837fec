"""What a trace has read, as polynomials of batch, sequence and depth, and its JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from ranktop.budget.model import BadInput
from ranktop.budget.plan import Plan

SCHEMA: Final = 1

NAMES: Final = ("saved", "after", "logits", "casts", "cached", "inputs", "boundary", "loss_forward", "loss_backward",
                "block_forward", "block_backward")  # fmt: skip
"""Quantities of ``Terms``, in bytes. ``saved``: alive for backward outside of ``logits`` and ``casts``; ``after``: the
part of it that is gone when backward reaches the blocks; ``cached``: casts that autocast holds until forward has ended,
although backward does not need them; the others as ``Activations`` has them."""

Polynomial = tuple[float, float, float, float, float, float]
"""Coefficients of 1, s, s², b, b s, b s² for batch b and sequence s."""

NOTHING: Final[Polynomial] = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def at(terms: Polynomial, batch: int, sequence: int, split: int = 1) -> float:
    """Return a polynomial's value; ``split`` deals the sequence out to that many ranks (context parallel).

    Each of them then holds s / split queries against all s keys, so that s² becomes s² / split.
    """
    s, square = sequence / split, sequence * sequence / split
    return terms[0] + terms[1] * s + terms[2] * square + batch * (terms[3] + terms[4] * s + terms[5] * square)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Bytes of one training step: ``fixed`` + layers x ``per_layer``, by the names of NAMES."""

    fixed: dict[str, Polynomial] = field(default_factory=dict)
    per_layer: dict[str, Polynomial] = field(default_factory=dict)
    loss: tuple[Polynomial, ...] = ()
    """Backward through the loss: what may be alive on top of all that is saved; the largest counts. Where it is empty,
    ``loss_backward`` is all that is known."""
    stages: tuple[tuple[Polynomial, int], ...] = ()
    """One block's backward: what may be alive on top of what was saved when it began (negative once more is freed than
    made), and bytes of its parameters' gradients made by then. Several with the same gradients: the largest counts."""

    def bytes(self, name: str, layers: int, batch: int, sequence: int, split: int = 1) -> int:
        """Return the bytes of one quantity, never below zero."""
        peaks = {"loss_backward": self.loss, "block_backward": tuple(terms for terms, _ in self.stages)}.get(name)
        if peaks:
            return max(0, round(max(at(terms, batch, sequence, split) for terms in peaks)))
        fixed = at(self.fixed.get(name, NOTHING), batch, sequence, split)
        return max(0, round(fixed + layers * at(self.per_layer.get(name, NOTHING), batch, sequence, split)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Under what bytes were read; empty words mean the model's own way, whatever that is."""

    parameters: str = "float32"
    """Dtype of the parameters as the blocks see them."""
    autocast: str | None = None
    tensor: int = 1
    sequence_parallel: str = ""
    attention: str = ""
    loss: str = ""
    host: bool = False
    """What CPU kernels save; else what CUDA's do."""

    @staticmethod
    def of(plan: Plan) -> Setting:
        """Return the setting of a plan."""
        return Setting(
            parameters=plan.precision.compute or plan.precision.parameters,
            autocast=plan.precision.autocast,
            tensor=plan.layout.tensor,
            sequence_parallel=plan.sequence_parallel if plan.layout.tensor > 1 else "",
            attention=plan.attention,
            loss=plan.loss,
            host=plan.host,
        )

    def applied(self, plan: Plan) -> Plan:
        """Return a plan under this setting."""
        return replace(
            plan,
            layout=replace(plan.layout, tensor=self.tensor, tensor_rank=0),
            precision=replace(plan.precision, parameters=self.parameters, compute=None, autocast=self.autocast),
            sequence_parallel=self.sequence_parallel,
            attention=self.attention or plan.attention,
            loss=self.loss or plan.loss,
            host=self.host,
        )

    def same(self, other: Setting) -> bool:
        """Return whether two settings agree in all that both of them say; flash attention is one of SDPA's kernels."""
        both = [(one.attention.replace("flash", "sdpa"), one.loss) for one in (self, other)]
        agree = all(mine == theirs or not mine or not theirs for mine, theirs in zip(*both, strict=True))
        return agree and replace(self, attention="", loss="") == replace(other, attention="", loss="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """What a model's activations are made of, read by building it at two depths and running a step of it."""

    model: str = ""
    layers: int = 0
    """Depth that the user means; 0 when it was not said."""
    setting: Setting = field(default_factory=Setting)
    plain: Terms = field(default_factory=Terms)
    """As the model runs by itself."""
    full: Terms | None = None
    """Every block checkpointed; None when that was not asked for."""
    parameters: tuple[int, int] = (0, 0)
    """Number of parameters outside of the blocks, and per layer."""
    parameter_bytes: tuple[int, int] = (0, 0)
    batch: int = 1
    """Batch and sequence that the user asked for; with fake tensors read as they are, not extrapolated."""
    sequence: int = 1
    batches: tuple[int, ...] = ()
    """What was read."""
    sequences: tuple[int, ...] = ()
    within: float = 0.0
    """Largest relative error of a prediction for points that the fit has not seen: another depth, batch, sequence."""
    tensors: str = "fake"
    """``fake`` (nothing is computed) or ``real``."""
    loss: str = ""
    """In words."""
    torch: str = ""
    """Its version."""
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return what goes into the JSON."""
        return {"schema": SCHEMA, **asdict(self)}

    def to_json(self, indent: int | None = None) -> str:
        """Return the coefficients as JSON, as docs/trace.md describes it."""
        return json.dumps(self.as_dict(), indent=indent)

    @staticmethod
    def from_json(text: str) -> Coefficients:
        """Return coefficients from their JSON; BadInput when it is none, or of another schema."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise BadInput(f"a trace must be JSON: {error}") from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise BadInput(f"not a trace of schema {SCHEMA}")
        try:
            return _from(data)
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"a trace lacks what it should have: {error!r}") from error


def _from(data: dict[str, Any]) -> Coefficients:
    known = {name: data[name] for name in Coefficients.__dataclass_fields__ if name in data}
    lists = ("parameters", "parameter_bytes", "batches", "sequences", "notes")
    made: dict[str, Any] = {name: tuple(value) if name in lists else value for name, value in known.items()}
    made["setting"] = Setting(**data["setting"])
    made["plain"] = _terms(data["plain"])
    made["full"] = None if data.get("full") is None else _terms(data["full"])
    return Coefficients(**made)


def _terms(data: dict[str, Any]) -> Terms:
    return Terms(
        fixed={name: _polynomial(value) for name, value in data["fixed"].items()},
        per_layer={name: _polynomial(value) for name, value in data["per_layer"].items()},
        loss=tuple(_polynomial(alive) for alive in data["loss"]),
        stages=tuple((_polynomial(alive), int(made)) for alive, made in data["stages"]),
    )


def _polynomial(value: Any) -> Polynomial:
    one, s, square, b, bs, bsquare = (float(number) for number in value)
    return (one, s, square, b, bs, bsquare)
