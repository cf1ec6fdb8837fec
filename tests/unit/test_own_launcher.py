"""Ranks that Lightning's own launcher starts: the script is one of them, and starts the others by its own command."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest

from ranktop.agent import own_launcher, script_code
from ranktop.agent.__main__ import _launchers_words, main
from ranktop.agent.own_launcher import initial, job_id_of, leader
from ranktop.agent.trainers import lightning_factory

RANK = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4711"}


@pytest.fixture(autouse=True)
def _same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_launcher, "_same_program", lambda pid: pid == os.getppid())
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))


def test_a_started_rank_belongs_to_its_parent() -> None:
    assert leader(RANK, RANK) == os.getppid()


def test_the_script_itself_belongs_to_itself_once_it_has_put_the_names_there() -> None:
    assert leader({**RANK, "LOCAL_RANK": "0"}, {"PATH": "/bin"}) == os.getpid()
    assert leader({}, {}) is None


@pytest.mark.parametrize(
    ("now", "began"),
    [
        ({**RANK, "TORCHELASTIC_RUN_ID": "none"}, RANK),
        ({**RANK, "RANK": "1"}, {**RANK, "RANK": "1"}),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, {"LOCAL_RANK": "1", "WORLD_SIZE": "2"}),
        (RANK, {"PATH": "/bin"}),
    ],
)
def test_ranks_of_other_launchers_and_of_scripts_that_spawn_have_no_leader(
    now: dict[str, str], began: dict[str, str]
) -> None:
    assert leader(now, began) is None


def test_a_rank_started_from_a_shell_has_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_launcher, "_same_program", lambda pid: False)
    assert leader(RANK, RANK) is None


def test_a_script_without_lightning_is_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_launcher, "LIBRARIES", ("no_such_library",))
    assert leader({**RANK, "LOCAL_RANK": "0"}, {}) is None


def test_the_environment_of_the_start_is_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RT_PUT_LATER", "1")
    assert "RT_PUT_LATER" not in initial()
    assert initial().get("PATH")


def test_a_process_has_one_job_id() -> None:
    assert job_id_of(os.getpid()) == job_id_of(os.getpid()) != job_id_of(os.getppid())


def test_without_an_agent_lightning_gets_no_callbacks() -> None:
    assert (lightning_factory.callbacks(), lightning_factory.fabric()) == ([], [])
    assert "ranktop.agent.trainers.lightning" not in sys.modules


def test_what_deepspeeds_launcher_puts_before_the_script_is_the_scripts() -> None:
    assert _launchers_words(["--local_rank=1", "train.py", "--lr", "1"]) == (
        ["--local_rank=1"],
        ["train.py", "--lr", "1"],
    )
    assert _launchers_words(["train.py", "--local_rank=1"]) == ([], ["train.py", "--local_rank=1"])


def test_the_agents_own_file_is_for_launchers_that_take_no_module_and_is_no_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ranktop.agent", "--path"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    path = capsys.readouterr().out.strip()
    assert path.endswith("ranktop/agent/__main__.py")
    agent = ModuleType("__main__")
    agent.__file__ = path
    monkeypatch.setitem(sys.modules, "__main__", agent)
    assert script_code.ScriptCode().digest() == ""
    agent.__file__ = __file__
    assert len(script_code.ScriptCode().digest()) == script_code.DIGITS
