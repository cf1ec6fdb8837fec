"""How a model is trained: layout of ranks, strategy with its options, precision, optimizer, batch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of the parallel axes and this rank's place on them. Their product is the world size."""

    world_size: int = 1
    replicate: int = 1
    """Data-parallel replicas that hold the same bytes (DDP's size; the outer axis of a hybrid mesh)."""
    shard: int = 1
    """Data-parallel ranks over which states are split (FSDP, ZeRO)."""
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    replicate_rank: int = 0
    shard_rank: int = 0
    """This rank's index within its sharding group."""
    tensor_rank: int = 0
    pipeline_rank: int = 0
    """This rank's pipeline stage."""

    @property
    def data(self) -> int:
        """Data-parallel size: replicas x shards."""
        return self.replicate * self.shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddp:
    """Options of DistributedDataParallel that move bytes."""

    gradient_as_bucket_view: bool = False
    bucket_bytes: tuple[int, ...] = ()
    """Sizes of the reducer's buckets, when it tells them."""
    static_graph: bool = False
    bucket_cap_mb: float = 25.0
    """MiB of gradients after which a bucket is closed; the first bucket is of 1 MiB."""
    hook_dtype: str | None = None
    """Dtype to which a communication hook compresses a bucket (``bf16_compress_hook``); None = no such hook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp:
    """Options of FSDP1 (``FullyShardedDataParallel``) and FSDP2 (``fully_shard``)."""

    version: int = 2
    sharding: str = "full"
    """``full``, ``grad-op`` (parameters stay gathered through backward), ``hybrid``, ``hybrid-grad-op``,
    ``none``."""
    use_orig_params: bool = True
    cpu_offload: bool = False
    reshard_after_forward: int | None = None
    """Size of the smaller group that parameters are re-sharded to after forward, when there is one."""
    prefetch: bool = True
    """Backward gathers the next unit before the current one has ended (BACKWARD_PRE; FSDP2's default)."""
    limit_all_gathers: bool = True
    """FSDP1: at most two units are gathered at once."""
    reduce_dtype: str | None = None
    """Dtype in which a config asks for gradients to be reduced; None leaves it to the precision."""
    root_resharded: bool = False
    """FSDP2: the root, too, lets its parameters go after forward (``reshard_after_forward`` given for it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero:
    """Options of DeepSpeed ZeRO; bucket sizes in elements, as its JSON has them."""

    stage: int = 0
    offload_optimizer: str = "none"
    """``none``, ``cpu`` or ``nvme``."""
    offload_parameters: str = "none"
    reduce_bucket_size: int = 500_000_000
    allgather_bucket_size: int = 500_000_000
    overlap_comm: bool = False
    contiguous_gradients: bool = True
    round_robin_gradients: bool = False
    persistence_threshold: int = 100_000
    """Stage 3: parameters of at most this many elements stay whole on every rank."""
    sub_group_size: int = 1_000_000_000
    gradient_dtype: str | None = None
    """Dtype in which gradients are accumulated; None = the parameters' own."""
    model_persistence_threshold: int = 2**63 - 1
    """Stage 3: elements that may stay whole on every rank, over all parameters."""
    parameter_alignment: bool = False
    """Stages 1 and 2: every parameter starts at a multiple of 16 bytes in its flat group."""
    wrapper: str = ""
    """Class of DeepSpeed's own optimizer around the base one (``BF16_Optimizer``); empty for the default."""
    not_budgeted: tuple[str, ...] = ()
    """Options in use that move bytes by a rule the budget does not have."""
    prefetch_bucket_size: int = 50_000_000
    """Stage 3: elements gathered ahead."""
    max_live_parameters: int = 1_000_000_000
    """Stage 3: gathered elements beyond which nothing is prefetched."""
    max_reuse_distance: int = 1_000_000_000
    """Stage 3: a parameter that is used again within so many elements is not released."""
    pin_memory: bool = True
    """Host memory of offloaded states is page-locked."""
    gather_weights_on_save: bool = False
    """Stage 3: the 16-bit weights are gathered whole when the model is saved."""
    nvme_buffer_count: int = 5
    """Parameter offload to NVMe: buffers of ``nvme_buffer_size`` elements in host memory."""
    nvme_buffer_size: int = 100_000_000
    max_in_cpu: int = 1_000_000_000
    """Parameter elements kept in host memory although they are offloaded to NVMe."""
    optimizer_buffer_count: int = 4
    """Optimizer offload to NVMe: buffers of the largest sub-group in host memory."""
    communication_dtype: str | None = None
    """Dtype in which gradients are reduced; None = the gradients' own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Dtype names by role; None = the parameters' own."""

    parameters: str = "float32"
    """Dtype of most stored parameters."""
    gradients: str | None = None
    compute: str | None = None
    """Dtype of FSDP's mixed precision or of the gathered parameters."""
    reduce: str | None = None
    autocast: str | None = None
    master: str | None = None
    """Dtype of the optimizer's own master copy of the weights; None = there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One tensor that an optimizer keeps for each parameter."""

    name: str
    """Key in the optimizer's state, e.g. ``exp_avg``."""
    like: str = "parameter"
    """``parameter`` (same elements), ``scalar`` (one element), ``rows``/``columns`` (factored, matrices
    only), ``vector`` (same elements, parameters of at most one dimension only), ``other``."""
    dtype: str | None = None
    """None = the parameter's own."""
    on_device: bool = True
    """False when it lives on the host although the parameter does not (a CPU ``step`` counter)."""
    bytes: int | None = None
    """Total bytes over all parameters, for ``other``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerPlan:
    """Which optimizer updates the parameters, and what it keeps per parameter."""

    name: str = ""
    """Class name, e.g. ``AdamW``; empty when there is none."""
    count: int = 0
    """How many optimizers the job runs."""
    options: dict[str, bool | float | str] = field(default_factory=dict)
    """Those that change bytes: momentum, amsgrad, fused, foreach, capturable, ..."""
    states: tuple[State, ...] = ()
    """As seen on the live optimizer; empty before its first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one rank feeds the model; None = not seen."""

    micro_batch: int | None = None
    """Samples per forward and rank."""
    sequence_length: int | None = None
    """Tokens per sample, for models fed with integer tokens."""
    accumulation: int | None = None
    """Forwards per optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How micro-batches run through the stages of a pipeline."""

    schedule: str = "1f1b"
    """``gpipe``, ``1f1b``, ``interleaved``, ``looped-bfs``, ``interleaved-zero-bubble``, ``zbv`` or ``dualpipe-v``."""
    micro_batches: int = 1
    """Micro-batches per optimizer step."""
    virtual: int = 1
    """Chunks of layers per rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapters on a frozen base."""

    rank: int = 8
    targets: tuple[str, ...] = ()
    """Roles of the linear layers that get an adapter (``Tensor.role``); empty for all of them."""
    dtype: str = "float32"
    """Dtype of the adapters; PEFT keeps them in fp32 on a 16-bit base."""
    quantized: str | None = None
    """How the frozen linear weights are stored: ``nf4``, ``nf4-double``, ``int8``, or None for as they are."""
    dropout: float = 0.0
    """Of what an adapter reads (``lora_dropout``): each adapter then keeps an input of its own, and a mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """What a live model's forward shows of its architecture; None = could not be told."""

    heads: int | None = None
    """Attention heads, by the model's config or its modules."""
    dropout: float = 0.0
    """Largest probability of its dropout modules while training."""
    output_bytes: int | None = None
    """Bytes of the outputs that get a gradient (logits): the script holds them as long as it likes."""
    loss_inside: bool | None = None
    """The outputs contain the loss, so that forward has computed it."""
    cache_bytes: int = 0
    """Bytes of a key/value cache among the outputs; it lives as long as the output object."""
    held_bytes: int | None = None
    """Bytes of all these that the script still holds when the next forward begins."""
    autocast_inside: bool = False
    """Autocast is in force inside the model's forward alone: what it has cached is gone when forward returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything the budget needs beside the inventory."""

    strategy: str = "single"
    """``single``, ``dp`` (DataParallel), ``ddp``, ``zero-redundancy``, ``fsdp1``, ``fsdp2``,
    ``zero0`` ... ``zero3``, ``tp``, ``pp``."""
    layout: Layout = field(default_factory=Layout)
    ddp: Ddp | None = None
    fsdp: Fsdp | None = None
    zero: Zero | None = None
    zero_redundancy: bool = False
    """Optimizer state is split by whole parameters (``ZeroRedundancyOptimizer``)."""
    precision: Precision = field(default_factory=Precision)
    optimizer: OptimizerPlan = field(default_factory=OptimizerPlan)
    batch: Batch = field(default_factory=Batch)
    checkpointing: str | None = None
    """Activation checkpointing: ``none``, ``full``, ``selective``, or None when it cannot be seen."""
    compiled: bool = False
    gradients_at: tuple[str, ...] = ("backward_end", "step_end")
    """Moments at which gradients exist: where the script zeroes them is a habit of the script."""
    notes: tuple[str, ...] = ()
    """What could not be told, each with its reason."""
    groups: tuple[OptimizerPlan, ...] = ()
    """One for each parameter group, as ``Kind.group`` counts; empty when ``optimizer`` speaks for all."""
    host: bool = False
    """The device is the machine's RAM: what optimizers keep on the CPU counts."""
    unsharded_gradients_at: tuple[str, ...] = ()
    """Moments at which whole gradients wait for their reduction (``no_sync``, ``set_requires_gradient_sync``)."""
    attention: str = "sdpa"
    """``eager``, ``sdpa`` or ``flash``; what of attention is saved for backward."""
    loss: str = "upcast"
    """``upcast`` (cross entropy on logits in fp32), ``plain`` (in the logits' own dtype), ``hf`` (upcast, and the
    output object keeps the logits), ``megatron`` (vocabulary-parallel, in place), ``megatron-fused``, ``chunked``
    (never all logits at once), ``none``."""
    checkpoint_every: int = 1
    """With full checkpointing: blocks in one checkpointed segment."""
    sequence_parallel: str = ""
    """``megatron`` (sharded inputs are saved and gathered again) or ``dtensor`` (gathered inputs are saved);
    empty for tensor parallel alone."""
    pipeline: Pipeline | None = None
    lora: Lora | None = None
    stack: str = "torch"
    """Whose layers run: ``torch`` (eager modules of the family), ``megatron`` (Megatron Core with
    TransformerEngine)."""
    forward: Forward | None = None
    """Seen on a live model; None for a plan on paper."""

    @property
    def micro_batches(self) -> int:
        """Forwards of one rank per optimizer step: through a pipeline, or by accumulation; 1 when neither is known."""
        return self.pipeline.micro_batches if self.pipeline is not None else self.batch.accumulation or 1
