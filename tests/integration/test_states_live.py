"""One process: what scripts do to a model in mid-run, against a count of all live storages."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator

import pytest
import torch
from live_storages import LiveStorages
from states_cases import CPU, Odd
from torch import nn

from ranktop.budget.states import expected_states
from ranktop.probes.model import ModelProbe
from ranktop.probes.reading import Resident
from ranktop.probes.strategy import detect

TOKENS = torch.arange(6).reshape(2, 3) % 11


class Job:
    """A model with its optimizer, a probe beside it, and the bytes that lived before."""

    def __init__(self, live: LiveStorages) -> None:
        gc.collect()
        self.live, self.before = live, live.total()
        self.model: nn.Module = Odd()
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.probe = ModelProbe(self.model, [self.optimizer], CPU)

    def backward(self) -> None:
        loss = self.model(TOKENS).float().square().mean()
        loss.backward()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()

    def check(self) -> Resident:
        """Assert that the categories add up to all live bytes, and return them."""
        found = self.probe.resident()
        parts = (found.parameters, found.gradients, found.optimizer, found.buffers)
        total = sum(part or 0 for part in parts)
        assert self.live.settled(self.before + total) - self.before == total, found
        return found


@pytest.fixture
def job() -> Iterator[Job]:
    with LiveStorages() as live:
        yield Job(live)


def test_states_appear_with_the_first_step_and_gradients_go_with_zero_grad(job: Job) -> None:
    start = job.check()
    assert (start.gradients, start.optimizer) == (0, 0)
    job.backward()
    assert job.check().gradients == 1120
    job.optimizer.step()
    after = job.check()
    assert (after.parameters, after.gradients) == (1344, 1120)
    job.optimizer.zero_grad()
    assert job.check() == Resident(1344, 0, after.optimizer, 40)


def test_a_partly_populated_gradient_set_counts_what_exists(job: Job) -> None:
    job.step()
    job.check()
    for name, parameter in job.model.named_parameters():
        if "up" in name:
            parameter.grad = None
    assert job.check().gradients == 1120 - (13 * 7 + 13) * 4
    job.optimizer.zero_grad()
    job.model.block(torch.ones(2, 7)).sum().backward()  # type: ignore[operator]
    assert job.check().gradients == (13 * 7 + 13 + 7 * 13 + 7) * 4


def test_freezing_in_mid_run_shows_in_the_bytes_at_once_and_in_the_inventory_after_a_look(job: Job) -> None:
    job.step()
    job.probe.refresh()
    assert job.probe.inventory().trainable_numel == 280
    job.model.get_submodule("block").requires_grad_(False)
    job.optimizer.zero_grad()
    job.step()
    assert job.check().gradients == 1120 - (2 * 7 * 13 + 13 + 7) * 4
    assert job.probe.refresh()
    assert job.probe.inventory().trainable_numel == 280 - (2 * 7 * 13 + 13 + 7)


def test_a_new_parameter_group_is_counted(job: Job) -> None:
    job.optimizer = torch.optim.AdamW([p for p in job.model.parameters() if p.requires_grad], lr=1e-3)
    job.probe = ModelProbe(job.model, [job.optimizer], CPU)
    job.step()
    job.check()
    frozen = job.model.get_submodule("frozen").requires_grad_(True)
    job.optimizer.add_param_group({"params": list(frozen.parameters()), "lr": 0.1})
    job.step()
    found = job.check()
    assert found.gradients == 1120 + 56 * 4
    assert job.probe.refresh()
    assert {kind.group for kind in job.probe.inventory()} == {0, 1}


def test_a_loaded_optimizer_state_is_counted_before_any_step(job: Job) -> None:
    job.step()
    expected = job.check().optimizer
    saved = copy.deepcopy(job.optimizer.state_dict())
    job.optimizer = torch.optim.AdamW(job.model.parameters(), lr=1e-3)
    job.probe = ModelProbe(job.model, [job.optimizer], CPU)
    assert job.probe.resident().optimizer == 0
    job.optimizer.load_state_dict(saved)
    del saved
    assert job.check().optimizer == expected
    job.optimizer.state.clear()
    assert job.check().optimizer == 0


def test_a_cast_model_is_walked_again(job: Job) -> None:
    job.step()
    job.optimizer.zero_grad()
    job.check()
    assert job.probe.refresh()
    assert not job.probe.refresh()
    job.model.to(torch.bfloat16)
    assert job.probe.refresh()
    assert job.check().parameters == 1344 // 2
    assert {kind.dtype for kind in job.probe.inventory()} == {"bfloat16"}


def test_a_second_optimizer_is_added_once(job: Job) -> None:
    block, rest = job.model.get_submodule("block"), [job.model.get_parameter("scale")]
    job.optimizer = torch.optim.SGD(block.parameters(), lr=0.1, momentum=0.9)
    other = torch.optim.AdamW(rest)
    job.probe = ModelProbe(job.model, [job.optimizer], CPU)
    job.probe.add_optimizer(other)
    job.probe.add_optimizer(other)
    job.step()
    other.step()
    found = job.check()
    assert found.optimizer == (2 * 7 * 13 + 13 + 7) * 4 + 3 * 4
    plan = detect(job.model, job.probe.optimizers(), CPU)
    assert [group.name for group in plan.groups] == ["SGD", "AdamW"]
    budget = expected_states(job.probe.inventory(), plan).at("step_end")
    assert budget["optimizer"].bytes == found.optimizer


def test_master_weights_belong_to_the_optimizer(job: Job) -> None:
    job.model.to(torch.bfloat16)
    masters = [p.detach().float().requires_grad_() for p in job.model.parameters() if p.requires_grad]
    job.optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9)
    job.probe = ModelProbe(job.model, [job.optimizer], CPU)
    found = job.check()
    assert (found.parameters, found.optimizer) == (672, 1120)
    job.backward()
    for master, parameter in zip(masters, (p for p in job.model.parameters() if p.requires_grad), strict=True):
        assert parameter.grad is not None
        master.grad = parameter.grad.float()
    job.optimizer.step()
    found = job.check()
    assert (found.gradients, found.optimizer) == (560 + 1120, 2 * 1120)
    plan = detect(job.model, [job.optimizer], CPU)
    assert plan.precision.master == "float32"
    budget = expected_states(job.probe.inventory(), plan).at("step_end")
    assert budget["optimizer"].bytes == found.optimizer
    gradients = budget["gradients"]
    assert (gradients.bytes, gradients.slack) == (560, 1120)


def test_a_second_model_that_the_optimizer_updates_belongs_to_the_states(job: Job) -> None:
    other = nn.Linear(5, 3)
    job.optimizer = torch.optim.AdamW([*job.model.parameters(), *other.parameters()], lr=1e-3)
    job.probe = ModelProbe(job.model, [job.optimizer], CPU)
    other(torch.ones(2, 5)).sum().backward()
    job.step()
    found = job.check()
    assert (found.parameters, found.gradients) == (1344 + 18 * 4, 1120 + 18 * 4)
    budget = expected_states(job.probe.inventory(), detect(job.model, [job.optimizer], CPU)).at("step_end")
    sizes = [budget[name].bytes for name in ("parameters", "gradients", "optimizer")]
    assert sizes == [found.parameters, found.gradients, found.optimizer]


def test_a_deleted_model_is_let_go_and_said_to_be_gone(job: Job) -> None:
    job.step()
    job.check()
    assert job.probe.alive
    del job.model, job.optimizer
    gc.collect()
    assert not job.probe.alive
    assert job.live.settled(job.before) == job.before
    gone = job.probe.resident()
    assert gone.parameters is None
    assert gone.reasons["parameters"] == "the model is gone"
    assert not job.probe.refresh()
    assert not job.probe.gradients_exist()


def test_an_untouched_layout_is_not_walked_again_before_its_time() -> None:
    now = [0.0]
    model = nn.Linear(3, 5)
    probe = ModelProbe(model, [], CPU, clock=lambda: now[0])
    assert probe.refresh()
    assert not probe.refresh()
    now[0] = 31.0
    assert probe.refresh()
    assert not probe.refresh()


def test_a_change_that_resident_saw_first_is_still_told_by_refresh() -> None:
    model = nn.Linear(3, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    probe = ModelProbe(model, [optimizer], CPU)
    assert probe.refresh()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert probe.resident().optimizer == 20 * 4
    assert probe.resident().optimizer == 20 * 4
    assert probe.refresh()
    assert not probe.refresh()


def test_sparse_gradients_count_their_parts() -> None:
    model = nn.Embedding(11, 7, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = ModelProbe(model, [optimizer], CPU)
    model(torch.tensor([1, 2, 2])).sum().backward()
    assert probe.resident().gradients == 3 * 7 * 4 + 3 * 8
    assert any("sparse" in note for note in detect(model, [optimizer], CPU).notes)
