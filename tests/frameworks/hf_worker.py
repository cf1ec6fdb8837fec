"""Training scripts as people write them for transformers, TRL, PEFT and Accelerate; only ``explicit`` names ranktop.

``hf_worker.py WHAT`` with the name of a function below. Every rank counts its live tensors at one step, by itself, and
writes what it found to ``counted-<rank>.json``.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

STEPS, COUNT_AT = 30, 8
MICRO_BATCH, ACCUMULATION, LENGTH, VOCABULARY = 4, 2, 128, 512
LAYER = "LlamaDecoderLayer"


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Random tokens, the same in every process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids.clone()}


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=320, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
        )
    )  # fmt: skip


def storages(tensors: Iterable[Any]) -> int:
    """Return the bytes of the distinct storages behind tensors (of their local parts)."""
    found = {}
    for tensor in tensors:
        if torch.is_tensor(tensor):
            storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def count(model: torch.nn.Module, optimizer: Any) -> None:
    """Write what is alive now by category. DeepSpeed hides gradients and master weights from this look."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    parameters = list(model.parameters())
    states = [value for state in optimizer.state.values() for value in state.values()]
    found = {
        "parameters": storages(parameters),
        "gradients": storages(p.grad for p in parameters),
        "optimizer": storages(states),
    }
    Path(f"counted-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))


class Counting(TrainerCallback):
    beside: tuple[TrainerCallback, ...] = ()
    """Callbacks that are copied and pickled from within an evaluation, as searches for hyperparameters do."""

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for each in self.beside:
            pickle.dumps(copy.deepcopy(each))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == COUNT_AT:
            count(kwargs["model"], kwargs["optimizer"])


def on_a_slow_disk(save: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Save for longer than a few samples take: of a model this small a save would pass between two of them."""
    save(*args, **kwargs)
    time.sleep(0.4)


def arguments(**more: Any) -> TrainingArguments:
    return TrainingArguments("out", **{**common(), **more})


def common() -> dict[str, Any]:
    return {
        "use_cpu": True, "ddp_backend": "gloo", "max_steps": STEPS, "per_device_train_batch_size": MICRO_BATCH,
        "gradient_accumulation_steps": ACCUMULATION, "logging_steps": 5, "report_to": "none", "disable_tqdm": True,
        "save_strategy": "no",
    }  # fmt: skip


def ddp() -> None:
    """Evaluates and saves every 10 steps; says what a script can see of its callbacks."""
    args = arguments(
        bf16=True,
        eval_strategy="steps",
        eval_steps=10,
        save_strategy="steps",
        save_steps=10,
        per_device_eval_batch_size=1,
    )
    counting, model = Counting(), llama()
    model.save_pretrained = functools.partial(on_a_slow_disk, model.save_pretrained)  # type: ignore[method-assign]
    trainer = Trainer(model, args, train_dataset=Texts(4000), eval_dataset=Texts(120), callbacks=[counting])
    counting.beside = tuple(each for each in trainer.callback_handler.callbacks if each is not counting)
    trainer.train()
    if args.process_index == 0:
        print("callbacks:", *(type(each).__name__ for each in trainer.callback_handler.callbacks))


def zero3() -> None:
    from deepspeed.ops import __compatible_ops__

    __compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles an operator at start
    options = {"stage": 3, "stage3_prefetch_bucket_size": 10_000, "reduce_bucket_size": 100_000}
    config = {
        "zero_optimization": options, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": "auto"},
    }  # fmt: skip
    Trainer(llama(), arguments(bf16=True, deepspeed=config), train_dataset=Texts(4000)).train()


def as_on_gpus() -> None:
    """Have Accelerate shard: it does so on accelerators only, though FSDP itself also works on CPUs."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def fsdp2_lora() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        llama(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.05, task_type="CAUSAL_LM")
    )
    args = arguments(
        bf16=True, fsdp=True, fsdp_config={"transformer_layer_cls_to_wrap": [LAYER], "sync_module_states": False}
    )
    assert args.device.type == "cpu"  # makes Accelerate's state
    as_on_gpus()
    Trainer(model, args, train_dataset=Texts(4000), callbacks=[Counting()]).train()


def fsdp1() -> None:
    """Accelerate alone, as its documentation has it for FSDP1: the model is prepared before its optimizer is made."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
    from torch.distributed.fsdp import FullyShardedDataParallel

    made: Any = FullyShardedDataParallel.__init__

    def on_cpu(self: Any, *args: Any, device_id: Any = None, **kwargs: Any) -> None:
        made(self, *args, device_id=torch.device("cpu"), **kwargs)

    FullyShardedDataParallel.__init__ = on_cpu  # type: ignore[method-assign]
    PartialState(cpu=True)
    as_on_gpus()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=1, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=[LAYER],
        sync_module_states=False, cpu_ram_efficient_loading=False,
    )  # fmt: skip
    loop(Accelerator(mixed_precision="bf16", gradient_accumulation_steps=ACCUMULATION, fsdp_plugin=plugin))


def loop(accelerator: Any) -> None:
    model = accelerator.prepare(llama())
    optimizer, data = accelerator.prepare(
        torch.optim.AdamW(model.parameters(), lr=1e-3), torch.utils.data.DataLoader(Texts(4000), batch_size=MICRO_BATCH)
    )
    steps = 0
    for batch in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            if accelerator.sync_gradients and steps == COUNT_AT:
                count(model, optimizer)
            optimizer.step()
            optimizer.zero_grad()
            steps += accelerator.sync_gradients
        if steps == STEPS:
            break
    accelerator.end_training()


def explicit() -> None:
    """TRL's SFTTrainer with LoRA on a checkpointed base, and the explicit line instead of ``-m ranktop.agent``."""
    import datasets
    import trl
    from peft import LoraConfig
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    from ranktop.agent.huggingface import RanktopCallback

    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), pad_token="w1", eos_token="w2"
    )
    texts = [{"input_ids": Texts(1)[index]["input_ids"].tolist()} for index in range(1000)]
    args = trl.SFTConfig("out", max_length=LENGTH, gradient_checkpointing=True, **common())
    trl.SFTTrainer(
        llama(),
        args,
        train_dataset=datasets.Dataset.from_list(texts),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[Counting(), RanktopCallback()],
    ).train()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
