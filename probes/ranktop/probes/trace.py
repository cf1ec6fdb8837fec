"""``python -m ranktop.probes.trace``: reads a model's activation bytes by building it at two depths; prints JSON.

A process of its own, so that whoever asks stays free of torch and of what a user's import does. Exit status 2 for what
the user gave wrong, 1 for a failure inside the user's model, one line on standard error either way.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranktop.budget.model import BadInput
from ranktop.probes.trace_model import one_line

if TYPE_CHECKING:
    from ranktop.budget.activations.coefficients import Coefficients
    from ranktop.probes.trace_feed import Feed
    from ranktop.probes.trace_model import Recipe

PRECISIONS: Final = {
    "fp32": (None, None),
    "bf16": ("bfloat16", None),
    "bf16-master": ("bfloat16", None),
    "fp16": ("float16", None),
    "fp16-master": ("float16", None),
    "amp-bf16": (None, "bfloat16"),
    "amp-fp16": (None, "float16"),
}
"""Name -> dtype of the parameters (None = as the model makes them), dtype of autocast."""


def main(argv: list[str] | None = None) -> int:
    """Trace what the arguments name, print the coefficients on standard output and return the exit status."""
    asked = _parser().parse_args(argv)
    if not asked.verbose:
        warnings.simplefilter("ignore")
    timer = threading.Timer(asked.deadline, _too_late, [asked.deadline])
    timer.daemon = True
    timer.start()
    try:
        with _unheard(asked.verbose):
            text = trace(asked).to_json()
    except BadInput as problem:
        return _failed(str(problem), 2, asked.verbose)
    except (Exception, SystemExit) as error:
        return _failed(f"the model failed: {_where(error)}", 1, asked.verbose)
    finally:
        timer.cancel()
    print(text, flush=True)
    return 0


@contextmanager
def _unheard(verbose: bool) -> Iterator[None]:
    """Keep what the user's code prints, from Python or C, out of the JSON; ``verbose`` sends it to standard error."""
    sys.stdout.flush()
    answer = os.dup(1)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(sys.stderr if verbose else nowhere):
            os.dup2(2 if verbose else nowhere.fileno(), 1)
            yield
    finally:
        sys.stdout.flush()
        os.dup2(answer, 1)
        os.close(answer)


def trace(asked: argparse.Namespace) -> Coefficients:
    """Return the coefficients of what the arguments name; BadInput for what they give wrong."""
    if asked.batch < 1 or asked.seq < 1:
        raise BadInput("--batch and --seq must be at least 1")
    if asked.precision not in PRECISIONS:
        raise BadInput(f"no precision {asked.precision!r} to trace; there are {', '.join(PRECISIONS)}")
    recipe = _recipe(asked)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise BadInput(f"this Python ({sys.executable}) has no torch: {error}") from error
    from ranktop.probes.trace_run import Request, run

    parameters, autocast = PRECISIONS[asked.precision]
    return run(
        recipe,
        _feed(asked, recipe),
        Request(
            batch=asked.batch,
            sequence=asked.seq,
            sequences=tuple(asked.sequences or ()),
            parameters=parameters,
            autocast=autocast,
            checkpointing=asked.checkpointing == "full",
            gpu=asked.device == "cuda",
            real=asked.real,
        ),
    )


def _recipe(asked: argparse.Namespace) -> Recipe:
    from ranktop.probes import trace_huggingface, trace_model

    given = trace_model.arguments(asked.arg)
    if "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    path = Path(asked.model)
    if ":" not in asked.model and (path.suffix == ".json" or path.is_dir()):
        return trace_huggingface.recipe(path, given, asked.layers, asked.attention)
    return trace_model.recipe(asked.model, given, asked.layers_arg, asked.layers, asked.config)


def _feed(asked: argparse.Namespace, recipe: Recipe) -> Feed:
    from ranktop.probes.trace_feed import LOSSES, Feed
    from ranktop.probes.trace_model import load

    loss: Any = asked.loss
    if loss not in LOSSES:
        if ":" not in loss:
            raise BadInput(f"no loss {loss!r}; there are {', '.join(LOSSES)}, or module:function(output, labels)")
        loss = load(loss)
    inputs = load(asked.inputs) if asked.inputs else None
    for name, value in (("--loss", loss), ("--inputs", inputs)):
        if value is not None and not isinstance(value, str) and not callable(value):
            raise BadInput(f"{name} names a {type(value).__name__}, not a function")
    return Feed(inputs=inputs, loss=loss, config=recipe.config)


def _failed(line: str, status: int, verbose: bool) -> int:
    if verbose:
        traceback.print_exc()
    print(f"trace: {' '.join(line.split())}", file=sys.stderr, flush=True)
    return status


def _where(error: BaseException) -> str:
    """Return an exception with the last place in the user's code that it passed."""
    named = one_line(error)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if "site-packages" not in f.filename and f"{os.sep}ranktop{os.sep}" not in f.filename]
    last = (theirs or frames)[-1] if frames else None
    return named if last is None else f"{named} ({Path(last.filename).name}:{last.lineno}, in {last.name})"


def _too_late(seconds: float) -> None:
    print(f"trace: not finished after {seconds:g} s", file=sys.stderr, flush=True)
    os._exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ranktop.probes.trace", description=__doc__.split(":", 2)[-1])
    add = parser.add_argument
    add("--model", required=True, help="module:callable that makes the model, or a Hugging Face config.json")
    add("--arg", action="append", default=[], metavar="NAME=VALUE", help="argument of the callable, or of its config")
    add("--config", metavar="MODULE:CLASS", help="class of the configuration object that the model takes")
    add("--layers-arg", metavar="NAME", help="argument that holds the number of layers")
    add("--layers", type=int, help="number of layers that is meant (default: the argument's own)")
    add("--inputs", metavar="MODULE:FUNCTION", help="inputs(batch, seq) -> tensor, tuple or dict (default: tokens)")
    add("--loss", default="auto", help="auto, upcast, sum or module:function(output, labels)")
    add("--batch", type=int, default=1)
    add("--seq", type=int, default=512)
    add("--sequences", type=int, nargs="+", help="up to three lengths to read at (default: seq, its half and quarter)")
    add("--precision", default="fp32", metavar="|".join(PRECISIONS))
    add("--checkpointing", default="none", choices=("none", "full"))
    add("--attention", default="sdpa", choices=("sdpa", "eager", "flash"), help="of a Hugging Face model")
    add("--device", default="cuda", choices=("cuda", "cpu"), help="whose kernels' saved tensors are counted")
    add("--real", action="store_true", help="compute with real tensors instead of fake ones")
    add("--deadline", type=float, default=120.0, metavar="SECONDS")
    add("--json", action="store_true", help="the answer is JSON with or without it")
    add("--verbose", action="store_true", help="show tracebacks, and what the model prints, on standard error")
    return parser


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that the user's import has started must not keep the answer waiting.
    os._exit(status)
