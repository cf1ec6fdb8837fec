"""``python -m ranktop.probes.trace`` as whoever calls it sees it: exit status, standard output, standard error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranktop.budget.activations.traced import Coefficients, activations_from
from ranktop.budget.plan import Batch, Plan
from ranktop.probes import trace

PACKAGE = {
    "__init__.py": "",
    "model.py": """
import os, sys
from dataclasses import dataclass
import torch
from torch import nn

print("hello from an import")
os.write(1, b"hello from C")


@dataclass
class NetConfig:
    width: int = 16
    n_layer: int = 7


class Net(nn.Module):
    def __init__(self, config: NetConfig):
        super().__init__()
        print("building")
        self.embed = nn.Embedding(50, config.width)
        self.h = nn.ModuleList([nn.Linear(config.width, config.width) for _ in range(config.n_layer)])

    def forward(self, idx, targets=None):
        x = self.embed(idx)
        for layer in self.h:
            x = torch.tanh(layer(x))
        logits = x @ self.embed.weight.T
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


class Images(nn.Module):
    def __init__(self, depth=3, channels=4):
        super().__init__()
        self.body = nn.Sequential(*[nn.Conv2d(channels, channels, 3, padding=1) for _ in range(depth)])

    def forward(self, pixels, scale):
        return self.body(pixels) * scale


def images(batch, seq):
    return torch.zeros(batch, 4, 8, 8), torch.ones(())


class Failing(Net):
    def __init__(self, n_layers, width=16):
        super().__init__(NetConfig(width=width, n_layer=n_layers))

    def forward(self, idx):
        raise RuntimeError("shapes do not\\nmatch")


class Leaving(nn.Module):
    def __init__(self, depth):
        sys.exit(0)


def nothing(depth):
    return depth


class Slow(nn.Module):
    def __init__(self, depth):
        import threading
        threading.Event().wait()


def no_depth(width, blocks):
    return None


NUMBER = 3
""",
    "broken.py": "import torch\nraise OSError('no licence for this')\n",
    "leaving.py": "import sys\nsys.exit('bye')\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a user's package in it."""
    root = tmp_path_factory.mktemp("user")
    (root / "tracedpkg").mkdir()
    for name, text in PACKAGE.items():
        (root / "tracedpkg" / name).write_text(text)
    (root / "notjson.json").write_text("{")
    (root / "empty.json").write_text("{}")
    (root / "strange.json").write_text('{"model_type": "no-such-model"}')
    return root


def process(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ranktop.probes.trace", "--batch", "2", "--seq", "32", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


def test_what_the_users_code_prints_does_not_get_into_the_json(folder: Path) -> None:
    done = process(folder, "--model", "tracedpkg.model:Net", "--arg", "width=24", "--precision", "amp-bf16", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    read = json.loads(done.stdout)
    assert read["schema"] == 1
    assert (read["model"], read["layers"], read["tensors"]) == ("tracedpkg.model:Net", 7, "fake")
    assert read["setting"]["autocast"] == "bfloat16"
    assert read["parameters"] == [50 * 24, 24 * 24 + 24]
    assert json.loads(Coefficients.from_json(done.stdout).to_json()) == read


def test_a_deadline_ends_a_trace_that_hangs(folder: Path) -> None:
    done = process(folder, "--model", "tracedpkg.model:Slow", "--deadline", "4")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "trace: not finished after 4 s\n"


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run ``main`` in this process, as if started in the user's folder."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "tracedpkg"]:
        del sys.modules[name]


WRONG = [
    (["--model", "tracedpkg.model"], "write module:attribute"),
    (["--model", "nosuchpkg:Net"], "cannot import nosuchpkg: ModuleNotFoundError: No module named 'nosuchpkg'"),
    (["--model", "tracedpkg.broken:Net"], "cannot import tracedpkg.broken: OSError: no licence for this"),
    (["--model", "tracedpkg.leaving:Net"], "cannot import tracedpkg.leaving: SystemExit: bye"),
    (["--model", "tracedpkg.model:Ned"], "tracedpkg.model has no 'Ned'; it has Net"),
    (["--model", "tracedpkg.model:NUMBER"], "is a int, not a class or function"),
    (["--model", "tracedpkg.model:no_depth"], "(n_layer, n_layers, num_layers, num_hidden_layers, layers, depth"),
    (["--model", "tracedpkg.model:no_depth"], "it takes width, blocks: name it by --layers-arg"),
    (["--model", "tracedpkg.model:no_depth", "--layers-arg", "deep"], "has no argument 'deep'"),
    (["--model", "tracedpkg.model:Images", "--arg", "chanels=3"], "takes no argument 'chanels'"),
    (["--model", "tracedpkg.model:Net", "--arg", "widht=3"], "takes 'widht'; config has width, n_layer"),
    (["--model", "tracedpkg.model:Net", "--arg", "3"], "--arg 3: write name=value"),
    (["--model", "tracedpkg.model:Net", "--precision", "int4"], "no precision 'int4'"),
    (["--model", "tracedpkg.model:Net", "--loss", "mse"], "no loss 'mse'"),
    (["--model", "tracedpkg.model:Net", "--batch", "0"], "--batch and --seq must be at least 1"),
    (["--model", "tracedpkg.model:Images", "--loss", "sum", "--inputs", "tracedpkg.model:NUMBER"], "not a function"),
    (["--model", "missing.json"], "missing.json: No such file or directory"),
    (["--model", "notjson.json"], "notjson.json is not valid JSON"),
    (["--model", "empty.json"], "has no model_type"),
    (["--model", "strange.json"], "strange.json: ValueError"),
]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("args", "said"), WRONG, ids=[" ".join(args[1:]) + f" {n}" for n, (args, _) in enumerate(WRONG)]
)
def test_what_the_user_gave_wrong_is_one_line_and_status_2(
    args: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    status = trace.main(args)
    out, err = capfd.readouterr()
    assert (status, out) == (2, "")
    lines = [line for line in err.splitlines() if not line.startswith("[transformers]")]
    assert len(lines) == 1
    assert lines[0].startswith("trace: ")
    assert said in lines[0]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Failing", "trace: the model failed: RuntimeError: shapes do not (model.py:51, in forward)"),
        ("Leaving", "trace: the model failed: SystemExit: 0 (model.py:56, in __init__)"),
        ("nothing", "trace: the model failed: TypeError: tracedpkg.model:nothing made a int, not a torch.nn.Module"),
    ],
)
def test_a_failure_in_the_model_is_one_line_with_its_place_and_status_1(
    name: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    status = trace.main(["--model", f"tracedpkg.model:{name}", "--seq", "16"])
    out, err = capfd.readouterr()
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith(said)
    trace.main(["--model", f"tracedpkg.model:{name}", "--seq", "16", "--verbose"])
    assert "Traceback (most recent call last)" in capfd.readouterr().err


@pytest.mark.usefixtures("here")
def test_inputs_and_loss_may_be_the_users_own(capfd: pytest.CaptureFixture[str]) -> None:
    """A convolution keeps its input; images know no sequence, so that it does not matter."""
    args = ["--model", "tracedpkg.model:Images", "--inputs", "tracedpkg.model:images", "--loss", "sum", "--layers", "9"]
    assert trace.main([*args, "--batch", "3", "--seq", "64"]) == 0
    coefficients = Coefficients.from_json(capfd.readouterr().out)
    for sequence in (1, 5000):
        found = activations_from(coefficients, Plan(batch=Batch(micro_batch=5, sequence_length=sequence)))
        assert found.layers == 9
        assert found.layer == 5 * 4 * 8 * 8 * 4


@pytest.mark.usefixtures("here")
def test_standard_output_is_as_before_after_a_trace(capfd: pytest.CaptureFixture[str]) -> None:
    before = os.fstat(1).st_ino
    trace.main(["--model", "tracedpkg.model:Failing", "--seq", "16"])
    assert os.fstat(1).st_ino == before
    print("after")
    assert capfd.readouterr().out == "after\n"
