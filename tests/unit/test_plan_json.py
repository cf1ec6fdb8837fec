"""The contract of ``ranktop plan --json``: keys, types, sums, and a reason beside every null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from plan_answer import G, hand_made

from ranktop.budget.collective import KINDS
from ranktop.budget.planning.as_json import answer_json
from ranktop.budget.planning.sizes import seconds
from ranktop.budget.run import STRATEGIES
from ranktop.budget.terms import ALL_MOMENTS, BUDGETED
from ranktop.tui.explain import explain
from ranktop.tui.plan import plan

STRATEGY_KEYS = {
    *("name", "refused", "bytes", "at_least", "host_bytes", "nvme_bytes", "per_rank", "worst_rank", "fits", "headroom"),
    *("max_micro_batch", "comm_bytes_per_step", "seconds_at_least", "collectives", "peak_moment", "moment", "moments"),
    *("layout", "confidence", "rules", "parts", "assumptions", "reasons"),
}
RUN_KEYS = {
    *("world_size", "gpus_per_node", "dp", "tp", "pp", "cp", "ep", "sequence_parallel", "virtual_stages", "precision"),
    *("optimizer", "micro_batch", "sequence_length", "accumulation", "global_batch", "checkpointing", "attention"),
    *("checkpoint_every", "loss", "stack", "lora_rank", "quantized", "device", "device_memory", "link", "own_strategy"),
    *("notes", "assumptions", "reasons"),
}
OPTIONAL = {"refused", "worst_rank"}
"""Keys of a strategy that are null without a reason: null says it."""


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert plan([*arguments, "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    found = json.loads(said.out)
    assert isinstance(found, dict)
    return found


def check(answer: dict[str, Any]) -> None:
    """Hold an answer against what docs/planning.md promises."""
    assert answer["schema"] == 1
    assert set(answer) == {"schema", "model", "run", "best", "strategies"}
    assert set(answer["run"]) == RUN_KEYS
    for strategy in answer["strategies"]:
        assert set(strategy) == STRATEGY_KEYS, strategy["name"]
        check_bytes(strategy["bytes"])
        for rank in strategy["per_rank"]:
            assert set(rank) == {"ranks", "stage", "bytes", "host_bytes", "nvme_bytes", "peak_moment"}
            check_bytes(rank["bytes"])
        for table in strategy["moments"].values():
            check_bytes(table)
        traffic = strategy["comm_bytes_per_step"]
        assert set(traffic) == {*KINDS, "total"}
        if traffic["total"] is not None:
            assert traffic["total"] == sum(traffic[kind] for kind in KINDS)
            assert traffic["total"] == sum(one["sent"] for one in strategy["collectives"])
        check_reasons(strategy)


def check_bytes(table: dict[str, Any]) -> None:
    assert set(table) == {*BUDGETED, "total"}
    assert all(size is None or (type(size) is int and size >= 0) for size in table.values())
    if table["total"] is not None:
        assert table["total"] == sum(table[name] for name in BUDGETED)


def check_reasons(strategy: dict[str, Any]) -> None:
    reasons = strategy["reasons"]
    assert all(type(text) is str and text for text in reasons.values())
    if strategy["refused"] is not None:
        assert set(reasons.values()) == {strategy["refused"]}
        return
    missing = {key for key, value in strategy.items() if value is None} - OPTIONAL
    missing |= {key for key, size in strategy["bytes"].items() if size is None}
    assert missing <= set(reasons), strategy["name"]


def test_every_case_of_an_answer_made_by_hand() -> None:
    answer = json.loads(json.dumps(answer_json(hand_made(link=50e9))))
    check(answer)
    ddp, tp, fsdp, pp, unknown = answer["strategies"]
    assert answer["best"] == "fsdp-full"
    assert ddp["bytes"]["total"] == int(113 * G)
    assert (ddp["fits"], ddp["headroom"], ddp["max_micro_batch"]) == (False, -33 * G, 0)
    assert ddp["comm_bytes_per_step"]["broadcast"] == 6 * G
    assert ddp["seconds_at_least"] == pytest.approx(6 * G / 50e9)
    assert ddp["confidence"]["parameters"] == {
        **{"within": 0.0, "guessed_bytes": 0, "slack_bytes": 0, "words": "exact"}
    }
    assert ddp["confidence"]["runtime"]["guessed_bytes"] == G // 2
    assert ddp["confidence"]["total"]["within"] == pytest.approx(0.03 * 12.5 / 113)
    assert tp["refused"].startswith("3 GPUs")
    assert tp["per_rank"] == []
    assert fsdp["fits"] is True
    assert fsdp["moments"]["load"]["total"] == 50 * G
    assert [rank["ranks"] for rank in pp["per_rank"]] == [[0], [3]]
    assert pp["host_bytes"] == 3 * G
    assert pp["bytes"] == pp["per_rank"][0]["bytes"]
    assert unknown["bytes"]["activations"] is None
    assert unknown["bytes"]["total"] is None
    assert unknown["at_least"] == int(4.5 * G)
    assert unknown["reasons"]["activations"] == "no rule for this"
    assert unknown["fits"] is None


def test_without_device_and_link_it_says_what_to_give() -> None:
    answer = answer_json(hand_made(memory=None))
    check(answer)
    assert answer["run"]["reasons"] == {
        "device_memory": "no device given: --device-memory or --gpu",
        "link": "no link speed given: --link",
    }
    assert answer["strategies"][0]["reasons"]["fits"] == "no device given: --device-memory or --gpu"
    assert answer["strategies"][0]["reasons"]["seconds_at_least"] == "no link speed given: --link"


def test_plan_explain_and_fit_reckon_the_same_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Tensor parallel stays in a node and is not sent over the link between nodes."""
    flags = ["--model", "llama-3-70b", "--world-size", "64", "--gpu", "h100", "--link", "400Gb/s"]
    row = asked(capsys, *flags, "--strategy", "3d")["strategies"][0]
    inside = sum(one["sent"] for one in row["collectives"] if one["axis"] == "tensor") / 450e9
    outside = sum(one["sent"] for one in row["collectives"] if one["axis"] != "tensor") / 50e9
    assert inside > 0.1
    assert row["seconds_at_least"] == pytest.approx(inside + outside)
    assert explain(["3d", *flags]) == 0
    page = capsys.readouterr().out
    assert "450 GB/s within a node, 50 GB/s per GPU between nodes" in page
    total = next(line for line in page.splitlines() if line.startswith("   in all"))
    assert total.split()[-1] == seconds(row["seconds_at_least"])
    small = ["--model", "gpt2", "--world-size", "16", "--gpu", "h100", "--link", "400Gb/s", "--strategy", "ddp"]
    cheapest = asked(capsys, *small, "--fit", "--global-batch", "16")["fit"]["fitting"][0]
    alone = asked(capsys, *small, "--global-batch", "16")["strategies"][0]
    assert cheapest["seconds"]["sending"] == pytest.approx(alone["seconds_at_least"])


def test_without_a_gpu_the_speed_within_a_node_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "gpt2", "--strategy", "ddp", "--link", "400Gb/s"]
    found = asked(capsys, *flags, "--world-size", "16")["run"]["assumptions"]
    assert any("300 GB/s within a node" in text for text in found)
    found = asked(capsys, *flags, "--world-size", "8")["run"]["assumptions"]
    assert not any("within a node" in text for text in found)


def test_every_strategy_of_a_real_model(capsys: pytest.CaptureFixture[str]) -> None:
    answer = asked(capsys, "--model", "gpt2", "--world-size", "4", "--device-memory", "24GiB", "--link", "50GB/s")
    check(answer)
    assert [strategy["name"] for strategy in answer["strategies"]] == list(STRATEGIES)
    assert answer["model"]["parameters"] == 124_439_808, "as transformers counts GPT-2"
    assert answer["run"]["device_memory"] == 24 * G
    assert answer["run"]["link"] == 50e9
    for strategy in answer["strategies"]:
        if strategy["refused"] is None:
            assert set(strategy["moments"]) == set(ALL_MOMENTS)
            ranks = sorted(rank for each in strategy["per_rank"] for rank in each["ranks"])
            assert ranks == list(range(strategy["layout"]["world_size"])), strategy["name"]


def test_a_bare_count_has_states_and_says_why_it_has_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    """Rajbhandari et al. (arXiv:1910.02054), figure 1: 7.5e9 parameters with mixed precision and Adam."""
    answer = asked(capsys, "--params", "7.5B", "--world-size", "64", "--gpus-per-node", "64")
    check(answer)
    assert answer["model"]["parameters"] == 7_500_000_000
    assert answer["model"]["layers"] is None
    assert "number of parameters" in answer["model"]["reasons"]["layers"]
    found = {strategy["name"]: strategy for strategy in answer["strategies"]}
    start = {name: found[name]["moments"]["step_start"] for name in ("ddp", "zero1", "zero3")}
    states = {name: table["parameters"] + table["optimizer"] for name, table in start.items()}
    assert states["ddp"] == 14 * 7_500_000_000
    assert states["zero1"] == pytest.approx(2 * 7.5e9 + 12 * 7.5e9 / 64, rel=1e-6)
    assert states["zero3"] == pytest.approx(14 * 7.5e9 / 64, rel=1e-6)
    for strategy in answer["strategies"]:
        if strategy["refused"] is None:
            assert strategy["bytes"]["total"] is None
            assert strategy["at_least"] > 0
            assert "activations" in strategy["reasons"]
            assert strategy["fits"] is None


def test_a_bare_count_claims_nothing_that_layers_and_heads_would_tell(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--params", "7e9", "--world-size", "64", "--strategy", "tp,pp-1f1b,3d"]
    tensor, stages, both = asked(capsys, *flags)["strategies"]
    assert "tp 8: within one node; heads not known" in tensor["assumptions"]
    assert any(text.startswith("pp 64: as if the layers") for text in stages["assumptions"])
    for row, axis in ((tensor, "tensor"), (stages, "pipeline"), (both, "tensor"), (both, "pipeline")):
        assert any(f"not counted in what is sent: what {axis} parallel" in text for text in row["assumptions"])
    assert both["reasons"]["activations"] == tensor["reasons"]["activations"]
    assert "''" not in str(both)
    known = asked(capsys, "--model", "gpt2", "--world-size", "4", "--strategy", "tp,pp-1f1b")["strategies"]
    assert not any("not counted" in text or "not known" in text for row in known for text in row["assumptions"])


def test_what_is_known_may_be_too_much_already(capsys: pytest.CaptureFixture[str]) -> None:
    answer = asked(capsys, "--params", "70e9", "--world-size", "8", "--device-memory", "80GiB", "--strategy", "ddp")
    ddp = answer["strategies"][0]
    assert ddp["bytes"]["total"] is None
    assert ddp["fits"] is False
    assert ddp["headroom"] is None


def test_strategies_keep_the_order_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    answer = asked(capsys, "--model", "gpt2", "--strategy", "zero3,ddp, single")
    assert [strategy["name"] for strategy in answer["strategies"]] == ["single", "ddp", "zero3"]


def test_a_global_batch_sets_what_is_left_open(capsys: pytest.CaptureFixture[str]) -> None:
    base = ("--model", "gpt2", "--world-size", "4", "--tp", "2", "--global-batch", "24", "--strategy", "ddp,zero1")
    for more in ((), ("--micro-batch", "3"), ("--grad-accum", "4")):
        for strategy in asked(capsys, *base, *more)["strategies"]:
            assert strategy["refused"] is None
    refused = asked(capsys, "--model", "gpt2", "--world-size", "3", "--global-batch", "8", "--strategy", "single,ddp")
    assert [strategy["refused"] is None for strategy in refused["strategies"]] == [True, False]
    assert "8 samples per step are not a multiple of 3 replicas" in refused["strategies"][1]["refused"]


def test_the_documentation_names_every_key() -> None:
    text = (Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
    answer = answer_json(hand_made(link=50e9))
    named: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            named.update(value)
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    for key in ("schema", "model", "run", "best"):
        walk({key: answer[key]})
    for strategy in answer["strategies"]:
        walk({key: value for key, value in strategy.items() if key not in ("reasons", "rules", "parts")})
    missing = {key for key in named if f'"{key}"' not in text}
    assert not missing
