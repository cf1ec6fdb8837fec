"""What others' estimators say: DeepSpeed's own functions over a grid, the documents' rule for buckets."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from typing import Any

import pytest

from ranktop.budget.estimators import bucket_rule, deepspeed_zero2, deepspeed_zero3

GRID = [
    (params, layer, per_node, nodes)
    for params, layer in ((124_439_808, 38_597_376), (2_851_000_001, 32_899_072), (70_553_706_496, 1_050_673_152))
    for per_node, nodes in ((1, 1), (4, 1), (8, 2), (6, 3))
]

THEIRS = f"""
import itertools, json
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as three
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as two
found = []
for params, layer, per_node, nodes in {GRID!r}:
    for offload, weights, init, factor in itertools.product((True, False), (True, False), (True, False), (1.0, 1.5)):
        found.append([two(params, per_node, nodes, offload, factor),
                      three(params, layer, per_node, nodes, offload, weights, init, factor)])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def theirs() -> list[Any]:
    """DeepSpeed's answers over the grid."""
    done = subprocess.run([sys.executable, "-c", THEIRS], capture_output=True, text=True, timeout=100, check=False)
    if "No module named 'deepspeed'" in done.stderr:
        pytest.skip("DeepSpeed is not installed")
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_deepspeeds_estimators_to_the_byte(theirs: list[Any]) -> None:
    options = list(product((True, False), (True, False), (True, False), (1.0, 1.5)))
    cases = [(*point, *option) for point in GRID for option in options]
    assert len(cases) == len(theirs) == 192
    for case, (two, three) in zip(cases, theirs, strict=True):
        params, layer, per_node, nodes, offload, weights, init, factor = case
        ours = deepspeed_zero2(params, per_node, nodes, offload=offload, buffer_factor=factor)
        assert (ours.cpu, ours.gpu) == tuple(two), case
        ours = deepspeed_zero3(
            params,
            layer,
            per_node,
            nodes,
            offload_optimizer=offload,
            offload_parameters=weights,
            zero_init=init,
            buffer_factor=factor,
        )
        assert (ours.cpu, ours.gpu) == tuple(three[:2]), case


def test_what_deepspeeds_page_prints_for_a_3b_model() -> None:
    # docs/code-docs/source/memory.rst: 5.31GB per GPU with ZeRO-2 offload, 0.12GB with everything offloaded.
    assert deepspeed_zero2(2_851_000_000, 8).printed[1] == 5.31
    assert deepspeed_zero3(2_851_000_000, 32_000_000, 8).printed[1] == 0.12


def test_the_documents_rule_for_the_buckets() -> None:
    # transformers docs/source/en/deepspeed.md: 9GB at 5e8, 3.6GB at 2e8.
    assert bucket_rule(500_000_000, 500_000_000) == 9e9
    assert bucket_rule(200_000_000, 200_000_000) == 3.6e9
