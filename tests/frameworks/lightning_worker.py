"""A Lightning script as users have them: it knows nothing of ranktop unless it is asked to put the callback in.

``lightning_worker.py KIND``: ``ddp`` (accumulation, validation, saves), ``own`` (the same, started by Lightning itself,
and ends by itself), ``fsdp``, ``fabric``. All but ``own`` train until the file ``over`` is there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import FSDPStrategy
from torch.utils.data import DataLoader, TensorDataset

from ranktop.demo.gpt import GPT, Block, GPTConfig

KIND = sys.argv[1]
BATCH, SEQUENCE, VOCABULARY = 4, 16, 64


class Lit(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.model = GPT(GPTConfig(VOCABULARY, SEQUENCE, 2, 4, 32))

    def loss(self, batch: Any) -> Any:
        (tokens,) = batch
        logits = self.model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def training_step(self, batch: Any, index: int) -> Any:
        if KIND != "own":
            time.sleep(0.05)
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        if KIND != "own":
            time.sleep(0.3)
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def on_save_checkpoint(self, checkpoint: Any) -> None:
        if KIND == "ddp":
            time.sleep(0.6)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Until(Callback):  # type: ignore[misc]
    """Stops all ranks at the same step once ``over`` is there."""

    def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
        over = torch.tensor(float(Path("over").exists()))
        torch.distributed.all_reduce(over)
        trainer.should_stop = bool(over.item())


class StandIn(CUDAAccelerator):  # type: ignore[misc]
    """The CPU, for strategies that Lightning lets run on CUDA only."""

    def setup_device(self, device: Any) -> None:
        pass

    def setup(self, trainer: Any) -> None:
        pass

    def teardown(self) -> None:
        pass

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return list(range(int(devices)))

    @staticmethod
    def get_parallel_devices(devices: Any) -> Any:
        return [torch.device("cpu")] * len(devices)

    @staticmethod
    def is_available() -> bool:
        return True


def fsdp_on_cpu() -> None:
    """Have FSDP1 take the CPU where Lightning gives a GPU's number."""
    from torch.distributed import fsdp

    plain: Any = fsdp.FullyShardedDataParallel.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **{**kwargs, "device_id": torch.device("cpu")})

    fsdp.FullyShardedDataParallel.__init__ = made  # type: ignore[method-assign]


def train() -> None:
    callbacks: list[Any] = [] if KIND == "own" else [Until()]
    options: dict[str, Any] = {"accelerator": "cpu", "strategy": "ddp", "val_check_interval": 8}
    if KIND == "ddp":
        from ranktop.agent.lightning import RanktopCallback

        callbacks += [RanktopCallback(push="tensorboard"), ModelCheckpoint("saved", every_n_train_steps=6)]
        options |= {"precision": "bf16-mixed", "log_every_n_steps": 2, "logger": TensorBoardLogger("logs")}
    elif KIND == "own":
        callbacks += [ModelCheckpoint("saved", every_n_train_steps=4, filename="{step}", save_top_k=-1)]
        options |= {"max_steps": 8, "logger": False}
    else:
        fsdp_on_cpu()
        strategy = FSDPStrategy(
            auto_wrap_policy={Block}, activation_checkpointing_policy={Block}, process_group_backend="gloo"
        )
        options = {"accelerator": StandIn(), "strategy": strategy, "precision": "bf16-mixed", "logger": False}
        options |= {"enable_checkpointing": False, "limit_val_batches": 0}
    lightning.seed_everything(1, verbose=False)
    tokens = TensorDataset(torch.randint(0, VOCABULARY, (96, SEQUENCE + 1)))
    trainer = lightning.Trainer(
        devices=2, callbacks=callbacks, accumulate_grad_batches=2, **{"max_epochs": 1000, **options}
    )
    trainer.fit(Lit(), DataLoader(tokens, batch_size=BATCH), DataLoader(tokens, batch_size=3 * BATCH))
    names = [type(each).__name__ for each in trainer.callbacks]
    print("ended", trainer.global_rank, trainer.world_size, trainer.global_step, *names, flush=True)


def fabric() -> None:
    made = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp", precision="bf16-mixed")
    if "LT_CLI_USED" not in os.environ:
        made.launch()
    plain = GPT(GPTConfig(VOCABULARY, SEQUENCE, 2, 4, 32))
    model, optimizer = made.setup(plain, torch.optim.AdamW(plain.parameters()))
    over = torch.zeros(())
    while not over.item():
        tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE + 1))
        made.backward(F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()))
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.1)
        over = made.all_reduce(torch.tensor(float(Path("over").exists())), reduce_op="sum")
    print("ended", made.global_rank, made.world_size, flush=True)


if __name__ == "__main__":
    if KIND == "fabric":
        fabric()
    else:
        train()
