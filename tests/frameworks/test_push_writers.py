"""A training script's real W&B run (offline) and TensorBoard file hold what was pushed into them."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import AGENT, job, output

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]

SCRIPT = """
import json, time
import torch, wandb
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from ranktop.agent.push import Pusher, facts

run = wandb.init(project="push", mode="offline", dir=".", settings=wandb.Settings(console="off"))
writer = SummaryWriter("board")
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters())
pusher = Pusher(True, writer=lambda: writer)
until = time.monotonic() + 30
step, pushed = 0, {}
while time.monotonic() < until and not (
    "ranktop/memory/expected/optimizer" in pushed and pushed["ranktop/step/count"] > 5
):
    model(torch.randn(16, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    pushed = facts()
    pusher.push(step)
    run.log({"train/loss": 1.0 / step, "train/global_step": step})
    time.sleep(0.02)
steps = run.step
writer.close()
run.finish()
states = sum(p.numel() * p.element_size() for p in model.parameters())
print("RESULT", json.dumps({"step": step, "run_step": steps, "parameters": states, "names": sorted(pushed)}))
"""


BLOCK, HEAD = 32768, 7


def records(data: bytes) -> Iterator[bytes]:
    """The records of a run's file: LevelDB's log format, after a header of seven bytes."""
    assert data[:4] == b":W&B"
    at, whole = HEAD, b""
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The history of the one offline run in a folder, a row per step."""
    from wandb.proto import wandb_internal_pb2

    [file] = folder.glob("wandb/offline-run-*/*.wandb")
    rows = []
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
    return rows


def test_both_writers_hold_what_was_pushed(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tmp_path / "train.py").write_text(SCRIPT)
    quiet = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "RANKTOP_INTERVAL": "0.1"}
    with job([sys.executable, *AGENT, "train.py"], tmp_path, RANKTOP_RECORD="off", **quiet) as process:
        assert process.wait(90) == 0, output(tmp_path)
    text = output(tmp_path)
    result = json.loads(text.partition("RESULT ")[2].splitlines()[0])
    assert "ranktop/memory/expected/optimizer" in result["names"], text
    assert "Traceback" not in text

    board = EventAccumulator(str(tmp_path / "board"), size_guidance={"scalars": 0})
    board.Reload()
    tags = [tag for tag in board.Tags()["scalars"] if tag.startswith("ranktop/")]
    assert set(result["names"]) <= set(tags)
    last = {tag: board.Scalars(tag)[-1] for tag in result["names"]}
    assert {event.step for event in last.values()} == {result["step"]}
    assert last["ranktop/memory/parameters"].value == result["parameters"]
    assert last["ranktop/memory/expected/optimizer"].value >= 2 * result["parameters"]

    rows = rows_of(tmp_path)
    # The script's own rows, one a step: what is pushed rides along.
    assert [row["train/global_step"] for row in rows if "train/global_step" in row] == list(
        range(1, result["step"] + 1)
    )
    assert len(rows) == result["step"] == result["run_step"]
    row = rows[-1]
    assert row["ranktop/memory/parameters"] == row["ranktop/memory/expected/parameters"] == result["parameters"]
    assert set(result["names"]) <= set(row)
