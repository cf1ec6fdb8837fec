"""What the agents of a real job tell for the findings: tokens, looks, starvation, the code, and where a rank stands."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import AGENT, TORCHRUN, job, output, wait_until

from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.source import Received
from ranktop.wire.endpoints import find_jobs
from ranktop.wire.schema import Card, Sample, Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SCRIPT = """
import pathlib, time
import torch
import torch.distributed as dist
from torch import nn


def load_batch(length):
    while dist.get_rank() == 1 and pathlib.Path("hold").exists():
        time.sleep(0.05)
    return torch.zeros(2, length, dtype=torch.long)


def lengths(step):
    return [3 + step % 7, 5 + step % 3 + 10 * dist.get_rank()]


def main():
    dist.init_process_group("gloo")
    alone = [dist.new_group([rank]) for rank in range(2)]
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    while True:
        step += 1
        for length in lengths(step):
            model(load_batch(length)).sum().backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        if dist.get_rank() == 1 and pathlib.Path("skip").exists():
            pathlib.Path("skip").unlink()
        else:
            dist.all_reduce(flat)
        time.sleep(0.02)
        optimizer.step()
        optimizer.zero_grad()


main()
"""


def tokens_of(rank: int, step: int) -> int:
    return 2 * (3 + step % 7 + 5 + step % 3 + 10 * rank)


class Told:
    """Everything that the ranks of the only job have said so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.samples: dict[int, list[Sample]] = {0: [], 1: []}
        self.stacks: dict[int, list[Stack]] = {0: [], 1: []}
        self.codes: dict[int, str] = {}
        self._source: HubSource | None = None

    def wait(self, wanted: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not wanted():
            assert time.monotonic() < deadline, f"not so within {seconds} s\n{output(self.folder)}"
            self._listen()

    def _listen(self) -> None:
        if self._source is None:
            entries = find_jobs().jobs
            if not entries:
                time.sleep(0.02)
                return
            self._source = HubSource(entries[0].directory)
        self._source.poll(0.1)
        for item in self._source.drain():
            if not isinstance(item, Received):
                continue
            rank, body = item.header.rank, item.body
            if isinstance(body, Sample):
                self.samples[rank].append(body)
            elif isinstance(body, Stack):
                self.stacks[rank].append(body)
            elif isinstance(body, Card) and body.code:
                self.codes[rank] = body.code

    def forget(self) -> None:
        for kept in (self.samples, self.stacks):
            for messages in kept.values():
                messages.clear()

    def steps_go_on(self) -> None:
        """Wait until both ranks have finished steps from now on."""
        self.forget()
        self.wait(lambda: all(s and s[-1].step > s[0].step + 3 for s in self.samples.values()))

    def slots(self, rank: int) -> set[int]:
        """The times at which a rank has looked at its collectives."""
        return {look.slot for sample in self.samples[rank] for look in sample.looks}

    def lag(self) -> int | None:
        """How many collectives fewer rank 1 has enqueued than rank 0, by the newest look of the same slot."""
        looks = [{look.slot: look.positions[0] for s in self.samples[rank] for look in s.looks} for rank in (0, 1)]
        common = max(looks[0].keys() & looks[1].keys(), default=None)
        if common is None:
            return None
        one, other = looks[0][common], looks[1][common]
        return None if one is None or other is None else one - other

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setenv("RANKTOP_RUN_DIR", str(tmp_path / "run"))
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [*TORCHRUN, "--nproc-per-node=2", *AGENT, "train.py"]
    found = Told(tmp_path)
    with job(command, tmp_path, RANKTOP_INTERVAL="0.4"):
        yield found
        found.close()


def test_what_ranks_measure_for_the_findings(told: Told) -> None:
    told.wait(lambda: all(s and s[-1].step > 20 for s in told.samples.values()))
    told.steps_go_on()
    told.wait(lambda: len(told.slots(0) & told.slots(1)) >= 5)
    check_tokens(told)
    check_looks(told)
    if os.path.exists("/proc/self/schedstat"):
        told.wait(lambda: all(s[-1].starved is not None for s in told.samples.values()))
        assert all(0.0 <= (s[-1].starved or 0.0) <= 1.0 for s in told.samples.values())
    told.wait(lambda: len(told.codes) == 2)
    assert set(told.codes.values()) == {hashlib.sha256(SCRIPT.encode()).hexdigest()[:8]}
    assert not any(told.stacks.values()), "nothing has stalled yet"
    check_stall(told)
    told.steps_go_on()
    check_missing_collective(told)


def check_tokens(told: Told) -> None:
    for rank, samples in told.samples.items():
        steps = {step.index: step for sample in samples for step in sample.steps}
        assert len(steps) >= 2
        for index, step in steps.items():
            assert step.micro_batches == 2
            assert step.tokens == tokens_of(rank, index)


def check_looks(told: Told) -> None:
    for samples in told.samples.values():
        looks = [look for sample in samples for look in sample.looks]
        taken = [look.slot for look in looks]
        assert taken == sorted(set(taken))
        for sample in samples:
            sizes = [group.size for group in sample.collectives.groups]
            for look in sample.looks:
                assert [position is not None for position in look.positions] == [size == 2 for size in sizes]
        assert {len(look.positions) for look in looks} == {2}
        own = [look.positions[0] or 0 for look in looks]
        assert own == sorted(own)
        assert own[-1] > own[0]


def check_stall(told: Told) -> None:
    hold = told.folder / "hold"
    began = time.monotonic()
    hold.touch()
    told.wait(lambda: all(told.stacks.values()), 30.0)
    assert time.monotonic() - began < 15.0
    waiting, sleeping = (told.stacks[rank][-1] for rank in (0, 1))
    assert [(call.file, call.function) for call in sleeping.calls] == [
        ("train.py", "<module>"),
        ("train.py", "main"),
        ("train.py", "load_batch"),
    ]
    assert SCRIPT.splitlines()[sleeping.calls[-1].line - 1].strip() == "time.sleep(0.05)"
    assert (waiting.calls[-1].file, waiting.calls[-1].function) == (
        "torch/distributed/distributed_c10d.py",
        "all_reduce",
    )
    assert [call.function for call in waiting.calls[:2]] == ["<module>", "main"]
    for stack in (waiting, sleeping):
        assert stack.waited > 2.0
        assert not stack.reason
    told.forget()
    told.wait(lambda: told.lag() == 1)
    newest = [told.samples[rank][-1].collectives.groups[0] for rank in (0, 1)]
    assert (newest[0].enqueued or 0) - (newest[1].enqueued or 0) == 1
    hold.unlink()


def check_missing_collective(told: Told) -> None:
    """The rank that left one out keeps the other waiting: it is one behind, though it has come further."""
    (told.folder / "skip").touch()
    wait_until(lambda: not (told.folder / "skip").exists(), 30)
    (told.folder / "hold").touch()
    told.forget()
    told.wait(lambda: all(told.stacks.values()), 30.0)
    told.forget()
    told.wait(lambda: told.lag() == 1)
    (told.folder / "hold").unlink()
    told.steps_go_on()
    assert all(sample.cost.errors == 0 for samples in told.samples.values() for sample in samples), output(told.folder)
