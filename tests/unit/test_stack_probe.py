"""What is told of a Python stack, and what never is: no folder, no text, no frame of the agent's own."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from ranktop.agent import runner
from ranktop.probes.stack import DEPTH, Place, _file, calls_of, calls_of_thread, calls_of_traceback


def here() -> FrameType:
    frame = sys._getframe(1)
    assert frame is not None
    return frame


def test_a_frame_is_told_by_its_file_line_and_function() -> None:
    innermost = calls_of(here())[-1]
    assert innermost.function == "test_a_frame_is_told_by_its_file_line_and_function"
    assert innermost.file == "test_stack_probe.py"
    assert Path(__file__).read_text().splitlines()[innermost.line - 1].strip() == "innermost = calls_of(here())[-1]"


def test_a_library_is_named_from_its_package_on() -> None:
    class Asking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found.extend(calls_of(here()))
            return x

    found: list[Place] = []
    Asking()(torch.ones(1))
    assert [call.file for call in found[-3:]] == [*["torch/nn/modules/module.py"] * 2, "test_stack_probe.py"]
    assert not any(Path(call.file).is_absolute() for call in found)


@pytest.mark.parametrize(
    ("path", "module", "told"),
    [
        ("/home/ada/secret/train.py", "", "train.py"),
        ("/home/ada/secret/train.py", "train", "train.py"),
        ("/opt/lib/torch/__init__.py", "torch", "torch/__init__.py"),
        ("/opt/lib/torch/optim/adam.py", "torch.optim.adam", "torch/optim/adam.py"),
        ("/opt/lib/torch/optim/__init__.py", "torch.optim", "torch/optim/__init__.py"),
        ("/tmp/torchinductor_ada/xy/cxyz.py", "torch._inductor.codecache", "cxyz.py"),
        ("/home/ada/secret/train.py", "home.ada.other", "train.py"),
        ("/home/ada/secret/train.py", "home.ada.secret.train", "train.py"),
        ("/home/ada/__init__.py", "home.ada", "__init__.py"),
        ("C:\\Users\\ada\\train.py", "train", "train.py"),
        ("<string>", "torch.fx", "<string>"),
        ("<ipython-input-/home/ada/x>", "", "x>"),
        ("", "", ""),
    ],
)
def test_no_folder_above_the_package_is_told(path: str, module: str, told: str) -> None:
    assert _file(path, module) == told


def test_a_deep_stack_keeps_its_innermost_calls() -> None:
    def down(depth: int) -> tuple[Place, ...]:
        return down(depth - 1) if depth else calls_of(here())

    calls = down(500)
    assert len(calls) == DEPTH
    assert {call.function for call in calls} == {"down"}


def test_a_traceback_keeps_its_innermost_calls_and_the_lines_where_it_passed() -> None:
    def down(depth: int) -> None:
        if depth:
            down(depth - 1)
        else:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        down(3)
    calls = calls_of_traceback(caught.value.__traceback__)
    assert [call.function for call in calls] == [
        "test_a_traceback_keeps_its_innermost_calls_and_the_lines_where_it_passed",
        *["down"] * 4,
    ]
    lines = Path(__file__).read_text().splitlines()
    assert lines[calls[-1].line - 1].strip() == 'raise ValueError("no")'
    with pytest.raises(ValueError, match="no") as caught:
        down(100)
    assert len(calls_of_traceback(caught.value.__traceback__)) == DEPTH
    assert calls_of_traceback(None) == ()


@pytest.fixture
def fresh_main() -> Iterator[None]:
    main, argv, path = sys.modules["__main__"], sys.argv, list(sys.path)
    yield
    sys.modules["__main__"], sys.argv, sys.path[:] = main, argv, path


def test_what_runs_the_script_is_left_out(tmp_path: Path, fresh_main: None) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nfrom ranktop.probes.stack import calls_of\nFOUND = calls_of(sys._getframe())\n")
    runner.run_script(str(script), [])
    found: tuple[Place, ...] = sys.modules["__main__"].FOUND
    files = [call.file for call in found]
    assert found[-1] == Place("train.py", 3, "<module>")
    assert files[-2] == "test_stack_probe.py", "no frame of the runner is between the test and the script"


def test_a_module_run_by_its_name_is_told_from_its_package_on(tmp_path: Path) -> None:
    package = tmp_path / "project" / "jobs"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "train.py").write_text(
        "import sys\nfrom ranktop.probes.stack import calls_of\nprint(calls_of(sys._getframe()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "jobs.train"], cwd=package.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout == "(Place(file='jobs/train.py', line=3, function='<module>'),)\n"


def test_importing_leaves_no_frame_of_the_import_system(tmp_path: Path) -> None:
    file = tmp_path / "slow_module.py"
    file.write_text("import sys\nfrom ranktop.probes.stack import calls_of\nFOUND = calls_of(sys._getframe())\n")
    spec = importlib.util.spec_from_file_location("slow_module", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.FOUND[-1] == Place("slow_module.py", 3, "<module>")
    assert module.FOUND[-2].file == "test_stack_probe.py"
    ran = runpy.run_path(str(file))
    assert ran["FOUND"][-1].file == "slow_module.py"
    assert not any("runpy" in call.file for call in ran["FOUND"])


@pytest.mark.parametrize("name", [None, 7, "a\0b", "__main__", "x" * 1000])
def test_globals_may_hold_anything(name: Any) -> None:
    names: dict[str, Any] = {"__name__": name, "__spec__": object(), "ask": lambda: calls_of(sys._getframe(1))}
    exec(compile("def f():\n    return ask()\nfound = f()", "/home/ada/\udcff.py", "exec"), names)
    assert names["found"][-1] == Place("?.py", 2, "f")


def busy(stop: threading.Event) -> None:
    while not stop.is_set():
        pass


def asleep(stop: threading.Event) -> None:
    stop.wait(60)


@pytest.mark.parametrize("work", [busy, asleep])
def test_another_thread_is_told_whatever_it_does(work: Callable[[threading.Event], None]) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    try:
        deadline = time.monotonic() + 20
        calls: tuple[Place, ...] = ()
        while work.__name__ not in [call.function for call in calls]:
            assert time.monotonic() < deadline, calls
            calls, reason = calls_of_thread(thread.ident)
            assert not reason
    finally:
        stop.set()
        thread.join()
    assert calls_of_thread(thread.ident) == ((), "the thread that trained has ended")


def test_without_a_training_thread_the_main_thread_is_told() -> None:
    found: list[tuple[tuple[Place, ...], str]] = []
    thread = threading.Thread(target=lambda: found.append(calls_of_thread(None)))
    thread.start()
    thread.join(20)
    calls, reason = found[0]
    assert not reason
    assert "test_without_a_training_thread_the_main_thread_is_told" in [call.function for call in calls]
