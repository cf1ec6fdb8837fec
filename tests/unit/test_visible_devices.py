"""Which devices a CUDA process sees: the rules of NVIDIA's guides by hand, and torch's own reading of the variable."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranktop.probes.visible import Seen, Visible, resolve

UUIDS = (
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "GPU-89aa0c11-52a4-4f0b-9e3f-0b7a1b2f6d01",
    "GPU-1f2d3c4b-0001-4a5b-8c9d-aabbccddeeff",
    "GPU-e429a63e-c61c-4795-b757-5132caeb8e70",
)
HOST = tuple(Seen(i, uuid, f"00000000:{17 + 16 * i:02X}:00.0", "NVIDIA H100 80GB HBM3") for i, uuid in enumerate(UUIDS))
SLICES = ("MIG-89c850dc-38e3-57df-85c7-690c186b68e9", "MIG-f2b5fbbd-850e-51bb-8ffa-ac9fb48126da")
MIG_GPU = Seen(0, UUIDS[0], "00000000:07:00.0", "NVIDIA A100-SXM4-80GB", SLICES, ((1, 0), (5, 0)), True)
ONE_SLICE = Seen(0, UUIDS[0], "00000000:07:00.0", "NVIDIA A100-SXM4-80GB", SLICES[:1], ((1, 0),), True)
BESIDE = Seen(1, UUIDS[1], "00000000:0B:00.0", "NVIDIA A100-SXM4-80GB")


def indexes(seen: Visible) -> list[int]:
    assert [entry.ordinal for entry in seen.devices] == list(range(len(seen.devices)))
    return [entry.device.nvml_index for entry in seen.devices]


@pytest.mark.parametrize(
    ("visible", "expected", "word"),
    [
        (None, [0, 1, 2, 3], ""),  # "If the variable is not set, all GPU devices are visible."
        ("", [], "is empty"),  # "If the variable is set to an empty string, no GPU devices are visible."
        (" ", [], "is empty"),
        ("2,1", [2, 1], ""),  # "CUDA_VISIBLE_DEVICES=2,1 makes device 0 not visible and enumerates 2 before 1"
        ("0,2,-1,1", [0, 2], "-1 ends"),  # "makes devices 0 and 2 visible, while device 1 is not visible"
        ("-1", [], "-1 ends"),
        ("0,4,1", [0], "there is no GPU 4"),
        ("3,", [3], ""),
        (",3", [], "an empty entry"),
        ("0,,1", [0], "an empty entry"),
        (" 1 , 0", [1, 0], ""),
        ("0,0", [], "twice"),
        ("0,1,0", [], "twice"),
        ("NoDevFiles", [], "Slurm"),
        ("all", [], "NVIDIA_VISIBLE_DEVICES"),
        ("one,1", [], "one in CUDA_VISIBLE_DEVICES names no device"),
        (UUIDS[3], [3], ""),
        (f"{UUIDS[3]},{UUIDS[0]}", [3, 0], ""),
        ("GPU-8932f937", [0], ""),  # "GPU-8932f937 may be a valid way ... assuming no other GPU shares this prefix"
        ("GPU-1,GPU-89a", [2, 1], ""),
        ("GPU-89", [], "fits 2 GPUs"),
        ("GPU-1,GPU-89,GPU-e4", [2], "fits 2 GPUs"),
        ("GPU-ffff", [], "names no device"),
        ("GPU-1,GPU-1f2d", [], "named before"),
        (f"{UUIDS[3]},{UUIDS[3]}", [], "twice"),
        ("MIG-12345678", [], "names no device"),
    ],
)
@pytest.mark.parametrize("order", [None, "FASTEST_FIRST", "PCI_BUS_ID"])
def test_the_rules_of_the_programming_guide(
    visible: str | None, expected: list[int], word: str, order: str | None
) -> None:
    seen = resolve(visible, order, HOST)
    assert indexes(seen) == expected
    assert all(entry.certain for entry in seen.devices)
    assert any(word in note for note in seen.notes) if word else seen.notes == ()


@pytest.mark.parametrize(
    ("visible", "likely", "word"),
    [
        ("1gpu2,2ampere", [1, 2], "not a plain number"),
        ("0x1", [0], "not a plain number"),
        ("0-2", [0], "not a plain number"),
        ("0,GPU-1", [0, 2], "mixed"),
        ("GPU-1,0", [2, 0], "mixed"),
        ("GPU-1, GPU-e4", [2, 3], "space"),
    ],
)
def test_what_only_cuda_knows_is_likely_and_not_certain(visible: str, likely: list[int], word: str) -> None:
    seen = resolve(visible, None, HOST)
    assert indexes(seen) == likely
    assert not seen.devices[-1].certain
    assert any(word in note for note in seen.notes)


MIXED = (
    Seen(0, UUIDS[0], "00000000:01:00.0", "NVIDIA T400"),
    Seen(1, UUIDS[1], "00000000:41:00.0", "NVIDIA A100-PCIE-40GB"),
    Seen(2, UUIDS[2], "00000000:81:00.0", "NVIDIA A100-PCIE-40GB"),
)


def test_on_a_host_with_several_kinds_indexes_are_only_certain_in_pci_order() -> None:
    by_pci = resolve("1,0", "PCI_BUS_ID", MIXED)
    assert (indexes(by_pci), [entry.certain for entry in by_pci.devices], by_pci.notes) == ([1, 0], [True, True], ())
    for order in (None, "FASTEST_FIRST"):
        for visible in ("1,0", None):
            fastest = resolve(visible, order, MIXED)
            assert not any(entry.certain for entry in fastest.devices)
            assert "PCI_BUS_ID" in fastest.notes[0]
    by_uuid = resolve("GPU-1,GPU-89a", None, MIXED)
    assert (indexes(by_uuid), [entry.certain for entry in by_uuid.devices], by_uuid.notes) == ([2, 1], [True, True], ())
    assert resolve("", None, MIXED).notes == ("CUDA_VISIBLE_DEVICES is empty: CUDA sees no device",)


def test_pci_ids_are_compared_as_numbers_whatever_order_the_gpus_are_given_in() -> None:
    far = Seen(2, UUIDS[2], "00000001:01:00.0")
    near = Seen(0, UUIDS[0], "0000:FF:00.0")
    middle = Seen(1, UUIDS[1], "00000000:ff:01.0")
    assert indexes(resolve(None, "PCI_BUS_ID", [far, near, middle])) == [0, 1, 2]
    # WSL tells no bus id: then NVML's index.
    assert indexes(resolve(None, None, [Seen(1, UUIDS[1]), Seen(0, UUIDS[0], "x")])) == [0, 1]


def test_an_unknown_order_is_said() -> None:
    assert "CUDA_DEVICE_ORDER=PCI is no order" in resolve("0", "PCI", HOST).notes[0]


@pytest.mark.parametrize("visible", [None, "0", UUIDS[0]])
def test_a_gpu_in_mig_mode_is_seen_as_one_instance(visible: str | None) -> None:
    """Measured by torch's maintainers on an A100: one device, with the variable unset and with 0 (pytorch #92315)."""
    single = resolve(visible, None, [ONE_SLICE])
    assert [(entry.uuid, entry.device, entry.certain) for entry in single.devices] == [(SLICES[0], ONE_SLICE, True)]
    several = resolve(visible, None, [MIG_GPU])
    assert [(entry.uuid, entry.certain) for entry in several.devices] == [(SLICES[0], False)]
    assert "2 MIG instances" in several.notes[0]


@pytest.mark.parametrize(
    ("visible", "instance", "certain"),
    [
        (SLICES[1], SLICES[1], True),
        (f"{SLICES[1]},{SLICES[0]}", SLICES[1], True),  # The same measurement: two named, one seen.
        ("MIG-f2b5", SLICES[1], False),
        (f"MIG-{UUIDS[0]}/5/0", SLICES[1], True),
        (f"MIG-{UUIDS[0]}/1/0", SLICES[0], True),
        ("MIG-GPU-8932f937/5/0", SLICES[1], True),
        (f"{SLICES[1]},{UUIDS[1]}", SLICES[1], True),
    ],
)
def test_mig_instances_by_name(visible: str, instance: str, certain: bool) -> None:
    seen = resolve(visible, None, [MIG_GPU, BESIDE])
    assert [(entry.uuid, entry.mig, entry.device.nvml_index, entry.certain) for entry in seen.devices] == [
        (instance, instance, 0, certain)
    ]
    assert any("one MIG instance" in note for note in seen.notes) is ("," in visible)


@pytest.mark.parametrize("visible", [f"MIG-{UUIDS[0]}/2/0", f"MIG-{UUIDS[1]}/1/0", "MIG-ffff", "MIG-"])
def test_a_mig_instance_that_is_not_there_ends_the_list(visible: str) -> None:
    seen = resolve(
        f"{visible},{SLICES[0]}", None, [MIG_GPU, Seen(1, UUIDS[1], "00000000:0B:00.0", instances=((9, 9),))]
    )
    assert seen.devices == ()
    assert "names no device" in seen.notes[-1]


def test_an_older_drivers_mig_names() -> None:
    name = f"MIG-{UUIDS[0]}/1/0"
    gpu = Seen(0, UUIDS[0], None, "NVIDIA A100-SXM4-40GB", (name,), mig_enabled=True)
    assert [(entry.uuid, entry.certain) for entry in resolve(name, None, [gpu]).devices] == [(name, True)]


def test_an_instance_whose_ids_are_unknown_is_not_guessed() -> None:
    gpu = Seen(0, UUIDS[0], None, "NVIDIA A100-SXM4-40GB", SLICES)
    seen = resolve(f"MIG-{UUIDS[0]}/1/0", None, [gpu])
    assert [(entry.mig, entry.device, entry.certain) for entry in seen.devices] == [(None, gpu, False)]
    assert "can't be told" in seen.notes[0]


def test_mig_beside_whole_gpus() -> None:
    whole = Seen(0, UUIDS[2], "00000000:01:00.0", "NVIDIA A100-SXM4-80GB")
    seen = resolve(None, None, [whole, ONE_SLICE])
    assert [(entry.uuid, entry.certain) for entry in seen.devices] == [(SLICES[0], False)]
    empty = Seen(0, UUIDS[0], "00000000:07:00.0", "NVIDIA A100-SXM4-80GB", mig_enabled=True)
    beside = resolve(None, None, [empty, BESIDE])
    assert [(entry.ordinal, entry.uuid) for entry in beside.devices] == [(0, UUIDS[1])]
    assert "no instance" in beside.notes[0]


def test_an_ordinal_that_is_not_there() -> None:
    seen = resolve("2", None, HOST)
    assert (seen.at(0), seen.at(1), seen.at(-1)) == (seen.devices[0], None, None)
    assert resolve(None, None, []).devices == ()


INDEXES = st.lists(
    st.one_of(st.integers(-2, 6).map(str), st.sampled_from(["", "+1", "-0", " 2", "3 ", "1gpu", "two", "0x1"])),
    max_size=6,
).map(",".join)
PREFIXES = st.sampled_from(UUIDS).flatmap(lambda uuid: st.integers(5, len(uuid)).map(lambda length: uuid[:length]))
NAMES = st.lists(st.one_of(PREFIXES, st.just("GPU-f"), st.just("GPU-")), min_size=1, max_size=5).map(",".join)


@given(visible=st.one_of(INDEXES, NAMES), count=st.integers(0, 4))
def test_it_reads_the_variable_as_torch_does(visible: str, count: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", visible)
        parsed = torch.cuda._parse_visible_devices()
    if parsed and isinstance(parsed[0], str):
        uuids = [str(name) for name in parsed]
        expected = torch.cuda._transform_uuid_to_ordinals(uuids, list(UUIDS[:count]))
    else:
        numbers = [int(number) for number in parsed]
        end = next((place for place, number in enumerate(numbers) if number >= count), len(numbers))
        expected = numbers[:end]
    assert indexes(resolve(visible, "PCI_BUS_ID", HOST[:count])) == expected
