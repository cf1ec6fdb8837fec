"""The doctor's lines on the run directory, the terminal, the libraries and the network."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from doctor_machine import Machine, one

from ranktop.tui.doctor import libraries, network, run_directory, terminal
from ranktop.tui.doctor.configuration import look_at_configuration
from ranktop.tui.doctor.scene import Scene
from ranktop.wire.endpoints import take_lock


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A scene whose run directory is ``run`` in the test's folder."""
    monkeypatch.setenv("RANKTOP_RUN_DIR", str(tmp_path / "run"))
    return Machine(tmp_path / "machine", {"RANKTOP_RUN_DIR": str(tmp_path / "run")}).scene()


def made(tmp_path: Path, mode: int = 0o700) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    path.chmod(mode)
    return path


# -- run directory ---------------------------------------------------------------------------------------------------


def test_a_missing_run_directory_is_made_by_the_first_agent(scene: Scene) -> None:
    result = run_directory.look_at_directory(scene)
    assert (result.status, result.facts["source"]) == ("pass", "RANKTOP_RUN_DIR")
    assert one(run_directory.look_at_sockets(scene)).status == "skip"
    assert run_directory.look_at_leftovers(scene) == []


def test_a_sound_run_directory_is_left_as_it_was(scene: Scene, tmp_path: Path) -> None:
    path = made(tmp_path)
    assert run_directory.look_at_directory(scene).facts["mode"] == "0700"
    sockets = run_directory.look_at_sockets(scene)
    assert (sockets.status, sockets.facts["bound"]) == ("pass", True)
    assert one(run_directory.look_at_leftovers(scene)).status == "pass"
    assert list(path.iterdir()) == []


def test_a_directory_that_others_may_enter_gets_its_chmod(scene: Scene, tmp_path: Path) -> None:
    path = made(tmp_path, 0o755)
    result = run_directory.look_at_directory(scene)
    assert result.status == "fail"
    assert "mode 0755" in result.found
    assert result.advice == f"chmod 700 {path}"


def test_a_link_a_file_and_a_foreign_directory_fail(scene: Scene, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.symlink_to(tmp_path)
    assert "symbolic link" in run_directory.look_at_directory(scene).found
    path.unlink()
    path.write_text("")
    assert "not a directory" in run_directory.look_at_directory(scene).found
    path.unlink()
    if os.geteuid() == 0:
        os.chown(made(tmp_path), 12345, 12345)
        foreign = run_directory.look_at_directory(scene)
        assert "belongs to user 12345" in foreign.found
        assert foreign.advice == "set RANKTOP_RUN_DIR to a directory of yours"


def test_a_place_where_nothing_can_be_made_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RANKTOP_RUN_DIR", str(tmp_path / "file" / "run"))
    result = run_directory.look_at_directory(Machine(tmp_path).scene())
    assert result.status == "fail"
    assert "cannot be made" in result.found


@pytest.mark.parametrize(("length", "status"), [(40, "pass"), (60, "warn"), (90, "fail")])
def test_the_length_of_a_sockets_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, status: str
) -> None:
    path = tmp_path / ("x" * (length - len(str(tmp_path)) - 1))
    path.mkdir(mode=0o700)
    monkeypatch.setenv("RANKTOP_RUN_DIR", str(path))
    assert run_directory.look_at_sockets(Machine(tmp_path).scene()).status == status


def test_leftovers_of_killed_hubs(scene: Scene, tmp_path: Path) -> None:
    dead = made(tmp_path) / "a1b2"
    dead.mkdir(mode=0o700)
    (dead / "hub.lock").touch()
    fresh = one(run_directory.look_at_leftovers(scene))
    assert (fresh.status, fresh.facts["leftovers"], fresh.facts["stuck"]) == ("pass", ["a1b2"], [])
    (dead / "stranger").touch()
    stuck = one(run_directory.look_at_leftovers(scene))
    assert (stuck.status, stuck.facts["stuck"]) == ("warn", ["a1b2"])
    assert stuck.advice == f"rm -r {dead}"
    assert (dead / "stranger").exists()


def test_a_hub_that_is_about_to_start_is_no_leftover(scene: Scene, tmp_path: Path) -> None:
    starting = made(tmp_path) / "a1b2"
    starting.mkdir(mode=0o700)
    lock = take_lock(starting)
    assert lock is not None
    assert one(run_directory.look_at_leftovers(scene)).facts["leftovers"] == []
    os.close(lock)


# -- terminal --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "colors"),
    [
        ({"TERM": "xterm-256color"}, 256),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, 1 << 24),
        ({"TERM": "xterm-kitty"}, 256),
        ({"TERM": "linux"}, 16),
        ({"TERM": "vt100"}, 1),
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, 1),
    ],
)
def test_colours(tmp_path: Path, environ: dict[str, str], colors: int) -> None:
    scene = Machine(tmp_path, environ).scene()
    assert terminal.colors(scene) == colors
    result = terminal.look_at_term(scene)
    assert (result.status, result.facts["colors"]) == ("pass", colors)


def test_few_colours_in_tmux_get_the_line_for_its_settings(tmp_path: Path) -> None:
    result = terminal.look_at_term(Machine(tmp_path, {"TERM": "screen", "TMUX": "/tmp/tmux-0/default,1,0"}).scene())
    assert result.status == "warn"
    assert "default-terminal" in result.advice


@pytest.mark.parametrize(
    ("size", "status"),
    [((80, 24), "pass"), ((200, 60), "pass"), ((79, 24), "warn"), ((80, 23), "warn"), ((0, 0), "warn")],
)
def test_the_size_of_the_window(size: tuple[int, int], status: str) -> None:
    assert terminal.window(*size).status == status


def test_links_are_named(tmp_path: Path) -> None:
    result = terminal.look_at_links(Machine(tmp_path, {"TMUX": "x", "SSH_CONNECTION": "a 1 b 2"}).scene())
    assert result.found.startswith("tmux, ssh")


# -- libraries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "status", "found"),
    [
        ({}, "pass", "none"),
        ({"RANKTOP_DISABLE": "0"}, "pass", "RANKTOP_DISABLE=0"),
        ({"RANKTOP_DISABLE": "1"}, "warn", "without an agent"),
        ({"RANKTOP_INTERVAL": "0.5"}, "pass", "0.5"),
        ({"RANKTOP_INTERVAL": "fast"}, "warn", "RANKTOP_INTERVAL=fast"),
        ({"RANKTOP_INTERVAL": "nan"}, "warn", "RANKTOP_INTERVAL=nan"),
        ({"RANKTOP_HUB_LINGER": "x"}, "warn", "180"),
        ({"RANKTOP_DEVICE": "nvml:local_rank"}, "pass", "nvml:local_rank"),
        ({"RANKTOP_DEVICE": "gpu"}, "warn", "not understood"),
    ],
)
def test_variables(tmp_path: Path, environ: dict[str, str], status: str, found: str) -> None:
    result = libraries.look_at_variables(Machine(tmp_path, environ).scene())
    assert result.status == status
    assert found in result.found


@pytest.mark.parametrize(
    ("text", "environ", "status", "found"),
    [
        (None, {}, "pass", "no file at"),
        ("[dashboard]\ntheme = 'dark'\n", {}, "pass", "ranktop.toml"),
        ("[dashboard]\nthem = 'dark'\n", {}, "fail", "ranktop.toml:2: [dashboard] has no 'them'; did you mean theme?"),
        ("[dash", {}, "fail", "ranktop.toml:1: not TOML"),
        (None, {"RANKTOP_THEEM": "x"}, "warn", "did you mean RANKTOP_THEME?"),
        (None, {"RANKTOP_CONFIG": "off"}, "pass", "no file is read"),
    ],
)
def test_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, environ: dict[str, str], status: str, found: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    if text is not None:
        (tmp_path / "ranktop").mkdir()
        (tmp_path / "ranktop" / "ranktop.toml").write_text(text)
    result = look_at_configuration(Machine(tmp_path, environ).scene())
    assert result.status == status
    assert found in result.found


def _distribution(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that comes before all others."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_libraries_of_this_environment_are_fine(tmp_path: Path) -> None:
    assert libraries.look_at_libraries(Machine(tmp_path).scene()).status == "pass"


def test_a_library_that_is_too_old_gets_its_install(site: Path) -> None:
    _distribution(site, "textual", "0.50.1")
    result = libraries.look_at_libraries(Machine(site).scene())
    assert result.status == "fail"
    assert "0.50.1" in result.found
    assert "'textual" in result.advice


def test_the_old_pynvml_is_named(site: Path) -> None:
    _distribution(site, "pynvml", "11.5.3")
    assert "pip uninstall pynvml" in libraries.look_at_libraries(Machine(site).scene()).advice


# -- network ---------------------------------------------------------------------------------------------------------


def master(tmp_path: Path, **environ: str) -> tuple[str, str]:
    result = one(network.look_at_master(Machine(tmp_path, environ).scene()))
    return result.status, result.found


def test_the_rendezvous(tmp_path: Path) -> None:
    assert master(tmp_path)[0] == "skip"
    assert master(tmp_path, MASTER_ADDR="127.0.0.1")[0] == "warn"
    assert master(tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT="x")[0] == "fail"
    assert master(tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT="70000")[0] == "fail"
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = str(server.getsockname()[1])
        assert "nobody listens" in master(tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)[1]
        server.listen(1)
        status, found = master(tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        assert status == "pass"
        assert "somebody listens" in found


def test_an_address_that_is_none_fails(tmp_path: Path) -> None:
    status, found = master(tmp_path, MASTER_ADDR="no such host", MASTER_PORT="29500")
    assert status == "fail"
    assert "MASTER_ADDR=no such host" in found


def test_interfaces(tmp_path: Path) -> None:
    assert network.look_at_interfaces(Machine(tmp_path).scene()).status == "pass"
    wrong = network.look_at_interfaces(Machine(tmp_path, {"NCCL_SOCKET_IFNAME": "nosuch"}).scene())
    assert (wrong.status, wrong.advice) == ("fail", "unset NCCL_SOCKET_IFNAME")
    assert network.look_at_interfaces(Machine(tmp_path, {"GLOO_SOCKET_IFNAME": "lo"}).scene()).status == "pass"


@pytest.mark.parametrize(
    ("wanted", "name", "taken"),
    [
        ("eth", "eth0", True),
        ("=eth", "eth0", False),
        ("=eth0", "eth0", True),
        ("^docker,lo", "eth0", True),
        ("^docker,lo", "docker0", False),
        ("ib,eth", "ib3", True),
        ("=eth0:1,ib0", "ib0", True),
    ],
)
def test_what_nccl_takes(wanted: str, name: str, taken: bool) -> None:
    assert network.nccl_matches(wanted, name) is taken


def test_loopback(tmp_path: Path) -> None:
    assert network.look_at_loopback(Machine(tmp_path).scene()).status == "pass"
