"""``ranktop doctor`` as a user runs it, over the stand-in NVML library and over real hubs."""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path
from typing import Any

import pytest
from doctor_machine import Report, doctor
from hub_harness import JOB, Node, card, pump, sample, until
from nvml_stub.build import NvmlStub, device, device_uuid
from nvml_stub.hardware import mig_uuid

from ranktop.probes.reading import DeviceReading
from ranktop.wire.schema import Cost, Sample, Versions

pytest_plugins = ["nvml_stub.fixtures"]

STATUSES = {"pass", "warn", "fail", "skip"}
GROUPS = ["driver", "visible", "container", "run", "jobs", "terminal", "python", "network"]


def environment(tmp_path: Path, **changes: str) -> dict[str, str]:
    """Return an environment whose run directory is the test's own and has no GPU's library but the system's."""
    left = ("CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    kept = {name: value for name, value in os.environ.items() if name not in left}
    return {**kept, "RANKTOP_RUN_DIR": str(tmp_path / "run"), "LC_ALL": "C.UTF-8", **changes}


def over(stub: NvmlStub, *arguments: str, **changes: str) -> Report:
    """Run the doctor over the stand-in library."""
    return doctor("--json", *arguments, environ={**stub.environment(), **environment(stub.folder), **changes})


def devices(report: Report) -> dict[int, dict[str, Any]]:
    return {check["index"]: check for check in report.checks("driver.device")}


def test_eight_sound_devices(nvml_stub: NvmlStub) -> None:
    nvml_stub.devices(
        *(device(number, name="NVIDIA H100", pci=f"00000000:{0x10 + number:02X}:00.0") for number in range(8))
    )
    report = over(nvml_stub, CUDA_VISIBLE_DEVICES="3,1")
    assert report.errors == ""
    assert report.check("driver.library")["path"] == str(nvml_stub.library / "libnvidia-ml.so.1")
    assert report.check("driver.init")["status"] == "pass"
    assert report.check("driver.versions")["cuda_driver"] == "12.8"
    assert report.check("driver.count")["count"] == 8
    found = devices(report)
    assert [found[number]["uuid"] for number in range(8)] == [device_uuid(number) for number in range(8)]
    assert {check["status"] for check in found.values()} == {"pass"}
    assert found[3]["pci_bus_id"] == "0000:13:00.0"
    assert found[3]["total"] == 80 << 30
    assert report.check("driver.persistence")["status"] == "pass"
    visible = report.check("visible.cuda")
    assert (visible["status"], [entry["nvml_index"] for entry in visible["devices"]]) == ("pass", [3, 1])


def test_the_json_is_whole(nvml_stub: NvmlStub) -> None:
    nvml_stub.devices(device(0))
    report = over(nvml_stub)
    found = report.json
    assert found["schema"] == 1
    assert list(dict.fromkeys(check["group"] for check in found["checks"])) == GROUPS
    for check in found["checks"]:
        assert check["status"] in STATUSES
        assert check["id"].startswith(f"{check['group']}.")
        assert check["found"]
        assert check["advice"] is None or check["advice"].strip()
        assert check["status"] not in ("warn", "fail") or check["advice"], check
    counts = {status: sum(check["status"] == status for check in found["checks"]) for status in STATUSES}
    assert {status: found["summary"][status] for status in STATUSES} == counts
    assert found["summary"]["exit"] == report.code == int(counts["fail"] > 0)


def test_a_hung_device_names_itself_and_the_others_are_listed(nvml_stub: NvmlStub) -> None:
    nvml_stub.devices(*(device(number) for number in range(8)))
    nvml_stub.update(
        {
            "d5.nvmlDeviceGetName.sleep": "forever",
            "d2.*.ret": 15,
            "d6.persistence": 0,
            "d7.remap_pending": 1,
        }
    )
    report = over(nvml_stub)
    found = devices(report)
    assert report.code == 1
    assert (found[5]["state"], found[5]["calling"]) == ("no answer", "nvmlDeviceGetName")
    assert found[5]["uuid"] == device_uuid(5)
    assert 2.5 <= found[5]["seconds"] < 4
    assert (found[2]["state"], found[2]["code"]) == ("lost", 15)
    assert found[7]["status"] == "warn"
    assert {found[number]["state"] for number in (0, 1, 3, 4, 6, 7)} == {"ok"}
    assert report.check("driver.persistence")["off"] == [6]
    assert report.json["summary"]["seconds"] < 8


def test_slow_devices_are_waited_for(nvml_stub: NvmlStub) -> None:
    nvml_stub.devices(device(0), device(1))
    nvml_stub.update({"*.sleep": 0.05})
    assert {check["status"] for check in devices(over(nvml_stub)).values()} == {"pass"}


def test_a_device_that_answers_slowly_is_not_said_to_hang(nvml_stub: NvmlStub) -> None:
    nvml_stub.devices(device(0), device(1))
    nvml_stub.update({"d1.*.sleep": 0.4})
    report = over(nvml_stub)
    found = devices(report)
    assert (found[0]["status"], found[1]["status"], found[1]["state"]) == ("pass", "warn", "slow")
    assert found[1]["uuid"] == device_uuid(1)
    assert 3 < found[1]["answered"] < 9
    assert "reset" not in found[1]["advice"]
    assert report.code == 0


def test_mig_instances_are_listed_with_their_gaps(nvml_stub: NvmlStub) -> None:
    nvml_stub.devices(
        device(0, mig_mode=1, mig_max=7),
        {**device(1), "uuid": mig_uuid(1), "parent": 0, "mig_index": 0, "gi": 1, "ci": 0, "total": 10 << 30},
        {**device(2), "uuid": mig_uuid(2), "parent": 0, "mig_index": 5, "gi": 9, "ci": 0, "total": 20 << 30},
    )
    report = over(nvml_stub, CUDA_VISIBLE_DEVICES=mig_uuid(2))
    instances = devices(report)[0]["mig"]
    assert [(entry["index"], entry["uuid"], entry["gpu_instance"]) for entry in instances] == [
        (0, mig_uuid(1), 1),
        (5, mig_uuid(2), 9),
    ]
    assert report.check("visible.cuda")["devices"][0]["mig"] == mig_uuid(2)


@pytest.mark.parametrize("code", [4, 9, 18, 999])
def test_a_failed_init(nvml_stub: NvmlStub, code: int) -> None:
    nvml_stub.devices(device(0))
    nvml_stub.update({"init.ret": code})
    report = over(nvml_stub)
    init = report.check("driver.init")
    assert (init["status"], init["code"], report.code) == ("fail", code, 1)
    assert f"NVML {code}" in init["found"]
    assert init["advice"]


def test_an_init_that_hangs_is_given_up(nvml_stub: NvmlStub) -> None:
    nvml_stub.devices(device(0))
    nvml_stub.update({"init.sleep": "forever"})
    report = over(nvml_stub, "--wait", "4")
    init = report.check("driver.init")
    assert (init["state"], init["calling"]) == ("no answer", "nvmlInit")
    assert report.json["summary"]["seconds"] < 6
    assert report.check("network.loopback")["status"] == "pass"


def test_a_driver_without_devices(nvml_stub: NvmlStub) -> None:
    nvml_stub.devices()
    report = over(nvml_stub)
    assert report.check("driver.count")["status"] in ("warn", "fail")
    assert report.checks("driver.device") == []


@pytest.mark.parametrize(("content", "words"), [(b"", "empty file"), (b"#!/bin/sh\n", "cannot be loaded")])
def test_a_library_that_is_none(tmp_path: Path, content: bytes, words: str) -> None:
    library = tmp_path / "lib" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    library.write_bytes(content)
    report = doctor("--json", environ=environment(tmp_path, LD_LIBRARY_PATH=str(library.parent)))
    found = report.check("driver.library")
    assert found["status"] in ("warn", "fail")
    assert words in found["found"]
    assert found["path"] == str(library)


def test_text_in_ascii_fits_eighty_columns(nvml_stub: NvmlStub) -> None:
    nvml_stub.devices(device(0, name="NVIDIA %ff%1b[31m"))
    broken = {"RANKTOP_DEVICE": "gpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "none", "TERM": "dumb"}
    changes = {**environment(nvml_stub.folder), "LC_ALL": "C", "LANG": "C", **broken}
    report = doctor(environ={**nvml_stub.environment(), **changes})
    assert report.code == 1
    assert report.errors == ""
    assert report.out.isascii()
    assert "\x1b" not in report.out
    assert max(map(len, report.out.splitlines())) <= 80
    for words in ("x fail", "! warn", "+ pass", "MASTER_PORT='none' is no port", "LC_ALL=C"):
        assert words in report.out
    assert " checks in " in report.out.splitlines()[-1]


def test_a_run_directory_of_the_wrong_mode_fails(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run").chmod(0o755)
    report = doctor("--json", environ=environment(tmp_path))
    found = report.check("run.directory")
    assert (found["status"], report.code) == ("fail", 1)
    assert found["advice"] == f"chmod 700 {tmp_path / 'run'}"


def test_bad_usage(tmp_path: Path) -> None:
    report = doctor("--what", environ=environment(tmp_path))
    assert report.code == 2
    assert report.out == ""


def test_a_job_that_is_not_there(tmp_path: Path) -> None:
    report = doctor("--json", "--job", "nosuch", environ=environment(tmp_path))
    assert report.code == 1
    assert "'nosuch'" in report.check("jobs.found")["found"]


# -- jobs ------------------------------------------------------------------------------------------------------------


def looked_at(node: Node, tmp_path: Path, *arguments: str) -> Report:
    return doctor("--json", *arguments, environ=environment(tmp_path, RANKTOP_RUN_DIR=str(node.directory.parent)))


def test_a_job_some_of_whose_ranks_were_never_heard(node: Node, tmp_path: Path) -> None:
    import msgspec

    for rank in range(3):
        publisher = node.connected(rank)
        notes = ("no NCCL recorder",) if rank else ()
        told = Versions(ranktop="0.0.1", torch="2.6.0")
        publisher.send(msgspec.structs.replace(card(rank), revision=1, notes=notes, versions=told))
        lost = DeviceReading(state="lost", reasons={"device": "the GPU is lost"}) if rank == 2 else DeviceReading()
        publisher.send(Sample(rank=rank, interval=30.0, device=lost, cost=Cost(dropped=rank)))
        pump(publisher)
    watcher = node.viewer()
    watcher.wait_for(lambda body: isinstance(body, Sample) and body.rank == 2)
    report = looked_at(node, tmp_path)
    hub = report.check("jobs.hub")
    assert (hub["status"], hub["job"], hub["hub_pid"]) == ("pass", JOB.id, node.hub())
    ranks = report.check("jobs.ranks")
    assert (ranks["status"], ranks["world_size"]) == ("warn", 8)
    assert ranks["states"]["missing"] == [3, 4, 5, 6, 7]
    agents = report.checks("jobs.agents")
    assert agents[0]["notes"] == {"no NCCL recorder": [1, 2]}
    assert agents[1]["dropped"] == {"1": 1, "2": 2}
    assert agents[2]["devices"] == {"lost: the GPU is lost": [2]}
    assert (agents[3]["status"], agents[3]["agents"]) == ("warn", {"0.0.1": [0, 1, 2]})


def test_a_job_by_its_id(node: Node, tmp_path: Path) -> None:
    publisher = node.connected()
    publisher.send(sample(1))
    pump(publisher)
    report = looked_at(node, tmp_path, "--job", JOB.id[:3])
    assert report.check("jobs.found")["status"] == "pass"
    assert report.check("jobs.hub")["seconds"] < 3


def test_a_hub_that_does_not_answer(node: Node, tmp_path: Path) -> None:
    import signal

    node.connected()
    pid = node.hub()
    os.kill(pid, signal.SIGSTOP)
    try:
        report = looked_at(node, tmp_path)
    finally:
        os.kill(pid, signal.SIGCONT)
    hub = report.check("jobs.hub")
    assert (hub["status"], hub["seconds"], report.code) == ("fail", None, 1)
    assert report.json["summary"]["seconds"] < 10


# -- torch -----------------------------------------------------------------------------------------------------------


def remains(tmp_path: Path) -> list[str]:
    """Return the trial's folders and processes that are left in the test's folder."""
    found = glob.glob(f"{tmp_path}/ranktop-doctor-*")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found += [words] if f"{tmp_path}/ranktop-doctor-" in words else []
    return found


def fake_torch(tmp_path: Path, code: str) -> dict[str, str]:
    """Return an environment with a torch of one's own."""
    site = tmp_path / "site"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text(code)
    (site / "torch-9.9.dist-info").mkdir()
    (site / "torch-9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    return environment(tmp_path, PYTHONPATH=str(site), TMPDIR=str(tmp_path))


def test_an_agent_is_tried_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    # Variables that would make the trial a part of another job, or of none.
    report = doctor(
        "--json", "--wait", "60", torch=True,
        environ=environment(
            tmp_path, RANK="3", WORLD_SIZE="8", LOCAL_RANK="3", RANKTOP_DISABLE="1", TMPDIR=str(tmp_path)
        ),
    )  # fmt: skip
    agent, torch = report.check("python.agent"), report.check("python.torch")
    assert agent["status"] == "pass", agent
    assert agent["model"] == "Linear"
    assert 0 < agent["heard"] < 60
    assert torch["version"].startswith("2.")
    assert torch["distributed"] is True
    assert report.check("python.variables")["status"] == "warn"
    assert report.check("jobs.found")["jobs"] == []
    until(lambda: not remains(tmp_path))


def test_a_torch_that_breaks_is_told(tmp_path: Path) -> None:
    environ = fake_torch(tmp_path, "raise ImportError('libcudart.so.12: cannot open shared object file')")
    report = doctor("--json", torch=True, environ=environ)
    torch = report.check("python.torch")
    assert (torch["status"], report.code) == ("fail", 1)
    assert "libcudart" in torch["found"]


def test_a_torch_that_takes_for_ever_is_left_alone(tmp_path: Path) -> None:
    environ = fake_torch(tmp_path, "import time\nwhile True: time.sleep(1)")
    report = doctor("--json", "--wait", "3", torch=True, environ=environ)
    assert report.check("python.torch")["status"] == "warn"
    assert "--wait" in report.check("python.torch")["advice"]
    assert report.json["summary"]["seconds"] < 8
    until(lambda: not remains(tmp_path))
