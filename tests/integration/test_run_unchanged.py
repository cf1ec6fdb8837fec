"""A script run through the agent behaves as it does by itself: output, traceback, exit code, arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = {
    "prints": (
        "import sys, os\nprint(sys.argv, __name__, os.path.basename(__file__), __spec__)\n"
        "print(os.path.basename(sys.path[0]))"
    ),
    "first_line_dies": "1 / 0\n",
    "deep_error": "def f(x):\n    return g(x)\ndef g(x):\n    raise ValueError('boom\\nsecond line')\nf(1)\n",
    "chained": "try:\n    {}['a']\nexcept KeyError as e:\n    raise RuntimeError('outer') from e\n",
    "syntax_error": "x = = 1\n",
    "import_error": "import no_such_module_anywhere\n",
    "exit_code": "import sys\nsys.exit(7)\n",
    "exit_text": "import sys\nsys.exit('told why')\n",
    "exit_none": "raise SystemExit\n",
    "os_exit": "import os\nprint('out', flush=True)\nos._exit(9)\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "own_hook": (
        "import sys\ndef hook(kind, value, trace):\n"
        "    print('mine', kind.__name__, trace.tb_frame.f_code.co_name, file=sys.stderr)\n"
        "sys.excepthook = hook\n1 / 0\n"
    ),
    "error_exits": "import os\nclass E(RuntimeError):\n    def __str__(self): raise SystemExit(7)\nraise E\n",
    "error_hides": (
        "class E(Exception):\n    def __getattribute__(self, name):\n"
        "        if name == '__traceback__': raise SystemExit(6)\n"
        "        return super().__getattribute__(name)\nraise E\n"
    ),
    "error_waits": (
        "import sys, time\nclass E(RuntimeError):\n    def __str__(self): time.sleep(100)\n"
        "try:\n    raise E\nexcept E:\n    sys.exit(3)\n"
    ),
    "pickles_main": (
        "import pickle, sys\nclass A: pass\n"
        "print(type(pickle.loads(pickle.dumps(A()))) is A, sys.modules['__main__'].A is A)\n"
    ),
    "spawns": (
        "import multiprocessing as mp\ndef work(x):\n    return x * 2\n"
        "if __name__ == '__main__':\n    with mp.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(work, [1, 2]))\n"
    ),
    "forks": (
        "import os, sys\npid = os.fork()\nif pid == 0:\n    sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    ),
    "atexit_and_threads": (
        "import atexit, threading\natexit.register(print, 'at exit')\n"
        "threading.Timer(0.05, print, ['thread done']).start()\nprint('main done')\n"
    ),
}


def run(command: list[str], directory: Path, agent: bool) -> tuple[int, str, str]:
    env = {**os.environ, "RANKTOP_RUN_DIR": str(directory / "run"), "RANKTOP_HUB_LINGER": "0.2"}
    env.pop("PYTHONPATH", None)
    prefix = [sys.executable, "-m", "ranktop.agent"] if agent else [sys.executable]
    done = subprocess.run(
        [*prefix, *command], cwd=directory, env=env, capture_output=True, text=True, timeout=110, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_script_is_its_own(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPTS[name])
    command = ["sub/train.py", "--lr", "1e-3", "-m", "x"]
    assert run(command, tmp_path, agent=True) == run(command, tmp_path, agent=False)


@pytest.mark.parametrize("text", ["import sys\nprint(sys.argv[1:], __name__, __package__)", "1 / 0"])
def test_module_is_its_own(text: str, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "train.py").write_text(text)
    watched = run(["-m", "pkg.train", "a", "b"], tmp_path, agent=True)
    alone = run(["-m", "pkg.train", "a", "b"], tmp_path, agent=False)
    assert watched[:2] == alone[:2]
    assert "ranktop" not in watched[2]
    assert alone[2].splitlines()[-1:] == watched[2].splitlines()[-1:]


def test_a_missing_script_is_one_line(tmp_path: Path) -> None:
    code, out, err = run(["nowhere.py"], tmp_path, agent=True)
    assert (code, out) == (2, "")
    assert err.splitlines() == ["ranktop.agent: can't open 'nowhere.py': no such file"]


def test_no_directory_to_write_to_costs_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')")
    (tmp_path / "run").mkdir(mode=0o777)
    (tmp_path / "run").chmod(0o777)
    code, out, err = run(["train.py"], tmp_path, agent=True)
    assert (code, out) == (0, "trained\n")
    assert len(err.splitlines()) == 1
    assert "chmod 700" in err
