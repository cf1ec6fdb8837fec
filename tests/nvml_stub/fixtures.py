"""pytest fixtures of the stand-in NVML library: use with ``pytest_plugins = ["nvml_stub.fixtures"]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nvml_stub.build import NvmlStub, build_library, compiler
from nvml_stub.remote import Client
from nvml_stub.sweep import Sweep, run_all


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a complete stand-in library."""
    if compiler() is None:
        pytest.skip("no C compiler to build the stand-in libnvidia-ml.so.1")
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml_stub(nvml_library: Path, tmp_path: Path) -> NvmlStub:
    """A stub of its own for one test."""
    return NvmlStub(nvml_library, tmp_path)


@pytest.fixture
def nvml_client() -> Iterator[Callable[..., Client]]:
    """Start clients that end with the test, cleanly: by themselves, without an abort of the stub."""
    clients: list[Client] = []

    def start(stub: NvmlStub, **environment: str) -> Client:
        clients.append(Client(stub, **environment))
        return clients[-1]

    yield start
    for client in clients:
        code, _, errors = client.end()
        assert (code, errors) == (0, "")


@pytest.fixture(scope="session")
def nvml_sweep(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """What every getter x every return code came to."""
    return run_all(nvml_library, tmp_path_factory.mktemp("sweep"))
