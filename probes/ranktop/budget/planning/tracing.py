"""Activations from the user's own model class, read in a process of its own: this one stays free of torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Final

from ranktop.budget.activations.traced import Coefficients, activations_from
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.model import BadInput, Model
from ranktop.budget.run import Run

DEADLINE: Final = 120.0
"""Seconds that a trace may take."""

LAYERS_ARG: Final = "name it by --layers-arg"
"""The trace's own flag, which the plan has not."""

CALLED_SO: Final = "call it so, or trace a function around it"

GRACE: Final = 10.0
"""Seconds beyond its own deadline after which the process is killed."""


def traced(run: Run, target: str, arguments: tuple[str, ...]) -> Run:
    """Return the run with the activations of the class that ``target`` names. Raises BadInput.

    Without a model of its own the run gets the parameters that the trace has counted, layer by layer.
    """
    found = Coefficients.from_json(_answer(_command(run, target, arguments)))
    if not run.model.family and run.model.count is None:
        run = _with_parameters(run, found, target)
    return replace(run, activations=lambda model, plan: activations_from(found, plan, model if model.family else None))


def _command(run: Run, target: str, arguments: tuple[str, ...]) -> list[str]:
    length = run.sequence_length or run.model.positions
    if not length:
        raise BadInput("--trace needs to know the tokens per sample: give --seq-len")
    command = [sys.executable, "-m", "ranktop.probes.trace", "--model", target, "--deadline", str(DEADLINE)]
    command += ["--batch", str(run.micro_batch), "--seq", str(length), "--precision", run.precision]
    command += ["--attention", run.attention]
    command += ["--checkpointing", "full" if run.checkpointing == "full" else "none"]
    if run.model.layers:
        command += ["--layers", str(run.model.layers)]
    for argument in arguments:
        command += ["--arg", argument]
    return command


def _answer(command: list[str]) -> str:
    """Return what the process prints. Raises BadInput with its complaint."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            out, complaint = process.communicate(timeout=DEADLINE + GRACE)
        except BaseException as error:
            # What the user's import has started goes with it.
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise BadInput(f"--trace did not answer within {DEADLINE + GRACE:.0f} s") from None
            raise
    if process.returncode:
        said = complaint.decode(errors="replace").strip().splitlines()
        how = f"its process was ended by signal {-process.returncode}" if process.returncode < 0 else "it failed"
        told = said[-1].removeprefix("trace: ") if said else how
        raise BadInput(f"--trace: {told.replace(LAYERS_ARG, CALLED_SO)}")
    return out.decode(errors="replace")


def _with_parameters(run: Run, found: Coefficients, target: str) -> Run:
    """Return the run with one flat tensor per layer and one for the rest, as the trace has counted them."""
    outside, layer = found.parameters
    if not found.layers:
        raise BadInput("--trace does not tell how many layers are meant: give --layers")
    kinds = [Kind((outside,), "float32")] if outside else []
    kinds += [Kind((layer,), "float32", unit=1 + index) for index in range(found.layers)]
    model = Model(name=target, count=outside + layer * found.layers, layers=found.layers)
    return replace(run, model=model, inventory=Inventory.of(kinds))
