"""The strategies screen: every strategy for the running job, what the keys change, and the explanation behind Enter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from dashboard import Dashboard, dashboard
from fake_job import FakeJob, fsdp_job, host_job
from msgspec.structs import replace as replace_card

import ranktop.budget.project
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import OptimizerPlan, State
from ranktop.budget.project import project
from ranktop.budget.run import STRATEGIES, Projection, Run
from ranktop.tui.keys import STRATEGY_KEYS
from ranktop.tui.screens.explain import ExplainScreen
from ranktop.tui.screens.strategies import StrategiesScreen

GIB = 1024**3
MIB = 1024**2


@pytest.fixture(autouse=True)
def _known_projections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same question has the same answer in every test: it is computed once."""
    monkeypatch.setattr(ranktop.budget.project, "project", known)


def known(run: Run, strategy: str, desk: object = None) -> Projection:
    before = KNOWN.setdefault(strategy, [])
    if all(asked != run for asked, _ in before):
        before.append((run, project(run, strategy)))
    return next(found for asked, found in before if asked == run)


KNOWN: dict[str, list[tuple[Run, Projection]]] = {}


def screen_of(run: Dashboard) -> StrategiesScreen:
    screen = run.app.screen
    assert isinstance(screen, StrategiesScreen)
    return screen


async def computed(run: Dashboard) -> StrategiesScreen:
    """Wait until every row is there."""
    screen = screen_of(run)
    for _ in range(400):
        if screen.whatif.complete:
            screen.hurry()
            await run.pilot.pause()
            return screen
        await run.pilot.pause(0.02)
    raise AssertionError("the rows were not computed within 8 seconds")


async def own_line(run: Dashboard, condition: Callable[[str], bool]) -> None:
    """Wait until the row of the job's own strategy, which is computed before the others, meets a condition."""
    for _ in range(400):
        screen_of(run).hurry()
        await run.pilot.pause(0.02)
        if condition(line_of(run, " ▶ fsdp-full")):
            return
    raise AssertionError(f"the row did not come within 8 seconds: {run.text()}")


async def opened(run: Dashboard) -> StrategiesScreen:
    await run.pilot.press("s")
    await run.pilot.pause()
    return await computed(run)


def line_of(run: Dashboard, start: str) -> str:
    return next(line for line in run.text().splitlines() if line[1:].split()[:1] == [start] or line.startswith(start))


def test_the_job_comes_first_with_what_it_measured_under_it() -> None:
    async def first() -> None:
        async with dashboard(fsdp_job(), (120, 40)) as run:
            screen = await opened(run)
            lines = run.text().splitlines()
            assert lines[1].startswith(" as it runs: 8 ranks · batch 1 · 4,096 tokens · bf16-master")
            assert lines[3].split()[:3] == ["▶", "fsdp-full", "exp"]
            assert lines[4].split()[:3] == ["rank", "3", "now"]
            measured = screen.whatif.measured
            assert measured is not None
            assert measured.over is not None
            assert f"{measured.over / GIB:+.1f} fwd end, cache " in lines[4]
            assert f" {measured.total / GIB:.1f} " in lines[4]
            assert len(screen.whatif.rows) == len(STRATEGIES)
            own = screen.whatif.rows["fsdp-full"]
            assert own.rank is not None
            assert own.rank.total is not None
            assert f"{own.rank.total / GIB:.1f}" in lines[3]

    asyncio.run(first())


def test_a_row_is_what_the_planner_says_for_the_same_run() -> None:
    async def rows() -> None:
        async with dashboard(fsdp_job(), (140, 40)) as run:
            screen = await opened(run)
            asked = screen.whatif.asked()
            assert asked is not None
            for name in ("zero3", "ddp", "tp"):
                found = project(asked, name)
                assert found.rank is not None
                assert found.rank.total is not None
                assert f"{found.rank.total / GIB:.1f}" in line_of(run, f"   {name} ")
            assert "-102." in line_of(run, "   single ")

    asyncio.run(rows())


KEYS = (
    ("w", "16 ranks", "W"), ("b", "batch 2", "B"), ("l", "8,192 tokens", "L"), ("p", "bf16 ", "P"),
    ("c", "checkpointing selective", "C"), ("o", "AdamW8bit", "O"), ("f", "FSDP offload cpu", "F"),
)  # fmt: skip


def test_a_key_changes_what_is_asked_and_its_capital_takes_it_back() -> None:
    async def changing() -> None:
        async with dashboard(fsdp_job(), (140, 40)) as run:
            screen = await opened(run)
            before = line_of(run, " ▶ fsdp-full")
            for key, words, back in KEYS:
                await run.pilot.press(key)
                await own_line(run, lambda line: line != before)
                question = run.text().splitlines()[1]
                assert question.startswith(" what if: "), key
                assert words.strip() in question
                await run.pilot.press(back)
                await own_line(run, lambda line: line == before)
                assert not screen.whatif.changes

    asyncio.run(changing())


def test_changes_add_up_and_one_key_drops_them() -> None:
    async def adding() -> None:
        async with dashboard(fsdp_job(), (140, 40)) as run:
            screen = await opened(run)
            await run.pilot.press("b", "c", "w")
            await computed(run)
            assert (screen.whatif.changes.micro_batch, screen.whatif.changes.checkpointing) == (2, "selective")
            assert screen.whatif.changes.world_size == 16
            await run.pilot.press("x")
            await computed(run)
            assert not screen.whatif.changes
            assert run.text().splitlines()[1].startswith(" as it runs: ")

    asyncio.run(adding())


def test_the_caches_bytes_are_named_beside_those_that_are_compared() -> None:
    """A job that holds to the byte what it should shows the same total on both sides, however much is cached."""

    async def caching() -> tuple[str, str, str]:
        job = host_job()
        job.specs = {rank: replace(spec, cache=135 * MIB) for rank, spec in job.specs.items()}
        async with dashboard(job, (80, 24)) as run:
            await opened(run)
            lines = run.text().splitlines()
            return lines[3], lines[4], lines[-2]

    expected, measured, below = asyncio.run(caching())
    assert ", cache 135" in measured
    by_far = float(measured.split()[3]) - float(expected.split()[3])
    assert abs(by_far) < 30, "without what the optimizer's step needs for a moment"
    assert f"{float(measured.split()[3]) + 135:.1f} with cache at bwd start" in below
    assert "within " in below, "how sure the expected total is"


def test_a_frozen_picture_stands_still_here_too() -> None:
    async def frozen() -> tuple[str, str]:
        async with dashboard(fsdp_job(), (120, 30)) as run:
            await run.press("space")
            before = run.text().splitlines()[0]
            await run.after(30.0)
            await opened(run)
            return before, run.text().splitlines()[0]

    before, here = asyncio.run(frozen())
    step = before[before.index("step ") :].split()[1]
    assert "FROZEN" in here
    assert f"step {step}" in here


def test_ranks_of_one_host_share_its_memory() -> None:
    async def sharing() -> tuple[list[str], str, StrategiesScreen]:
        async with dashboard(host_job(), (120, 30)) as run:
            screen = await opened(run)
            two = run.text()
            await run.pilot.press("w")
            await computed(run)
            return two.splitlines(), run.text(), screen

    two, four, screen = asyncio.run(sharing())
    assert "12.0 GiB = RAM / 2 ranks" in two[2]
    assert "host" not in two[2].split(), "nothing is beside the device"
    assert "6.0 GiB = RAM / 4 ranks" in four
    for projection in screen.whatif.rows.values():
        if projection.headroom is not None:
            assert projection.rank is not None
            assert projection.headroom + (projection.rank.total or 0) == 6 * GIB


def test_optimizers_have_the_words_of_the_header() -> None:
    def momentum() -> FakeJob:
        job = host_job()
        sgd = OptimizerPlan(name="SGD", count=1, options={"momentum": 0.9}, states=(State(name="momentum_buffer"),))
        return replace(job, plan=replace(job.plan, optimizer=sgd))

    async def words() -> list[str]:
        async with dashboard(momentum(), (120, 30)) as run:
            await opened(run)
            found = run.text().splitlines()[:2]
            await run.pilot.press("o")
            await computed(run)
            found.append(run.text().splitlines()[1])
            await run.pilot.press("O")
            await computed(run)
            return [*found, run.text().splitlines()[1]]

    header, own, changed, back = asyncio.run(words())
    assert "SGD momentum" in header
    assert own.endswith("SGD momentum")
    assert changed.endswith("SGD"), "the next one of the list"
    assert back == own


def test_rows_stay_while_the_measurement_stays_and_until_new_ones_are_there() -> None:
    async def measuring() -> None:
        job = host_job()
        large = {rank: replace(spec, activations=200 * MIB) for rank, spec in job.specs.items()}
        job.specs = large
        async with dashboard(job, (80, 24)) as run:
            screen = await opened(run)
            before, shown = dict(screen.whatif.rows), screen.whatif.measured
            assert shown is not None
            for step in range(1, 6):
                # The median is now one rank's, now the other's; both breathe by less than a few percent.
                moved = {0: 200 + step % 2 * 3, 1: 200 + (step + 1) % 2 * 4}
                job.specs = {rank: replace(large[rank], activations=size * MIB) for rank, size in moved.items()}
                await run.after(1.0)
                screen.hurry()
                await run.pilot.pause()
                assert all(screen.whatif.rows[name] is row for name, row in before.items())
                assert screen.whatif.measured is not None
                assert screen.whatif.measured.rank == shown.rank, "nor does the rank beside them"
            job.specs = {rank: replace(spec, activations=260 * MIB) for rank, spec in large.items()}
            await run.after(1.0)
            screen.whatif.look(screen.snapshot())
            assert set(screen.whatif.rows) == set(before), "nothing goes blank"
            await computed(run)
            assert all(screen.whatif.rows[name] is not row for name, row in before.items())
            # The card comes again, saying the same: nothing to compute.
            before = dict(screen.whatif.rows)
            card = replace_card(job.card(0), revision=7)
            run.source.extra.append(run.source.message(0, card, "card"))
            await run.after(1.0)
            screen.hurry()
            await run.pilot.pause()
            assert all(screen.whatif.rows[name] is row for name, row in before.items())

    asyncio.run(measuring())


def test_enter_explains_and_escape_goes_back() -> None:
    async def explaining() -> None:
        async with dashboard(fsdp_job()) as run:
            await opened(run)
            await run.pilot.press("down", "enter")
            await run.pilot.pause()
            assert isinstance(run.app.screen, ExplainScreen)
            assert run.text().splitlines()[0].startswith(" single")
            before = run.text()
            await run.pilot.press("pagedown")
            await run.pilot.pause()
            assert run.text() != before
            await run.pilot.press("escape")
            await run.pilot.pause()
            assert screen_of(run).choice.at == 1
            await run.pilot.press("escape")
            await run.pilot.pause()
            assert run.ranks

    asyncio.run(explaining())


def test_every_key_at_any_size_leaves_no_trouble() -> None:
    async def storm() -> None:
        async with dashboard(fsdp_job(), (80, 24)) as run:
            await opened(run)
            for width, height in ((1, 1), (30, 8), (80, 24), (200, 60), (3, 40), (60, 3)):
                await run.pilot.resize_terminal(width, height)
                await run.pilot.pause()
                screen_of(run).hurry()
                assert run.app.trouble == ""
            for key in STRATEGY_KEYS:
                if key.action in ("back", "explain", "fit"):
                    continue
                await run.pilot.press(key.keys.split(",")[0])
                await run.pilot.pause()
                assert run.app.trouble == "", key
            await run.pilot.resize_terminal(80, 60)
            await run.pilot.press("question_mark")
            await run.pilot.pause()
            assert "twice the ranks" in run.text()
            assert "without the allocator's cache" in " ".join(run.text().split())

    asyncio.run(storm())


def test_a_small_job_on_a_host_and_without_colour() -> None:
    async def small() -> str:
        async with dashboard(host_job(), (80, 24), ascii=True) as run:
            await opened(run)
            return run.text()

    text = asyncio.run(small())
    assert text.isascii()
    assert "MiB" in text
    lines = text.splitlines()
    assert "fsdp-full" in lines[3]
    # What other processes hold on a host is nobody's plan: expected and measured bars are equally long.
    expected, measured = (sum(cell.isalpha() for cell in line[29:51]) for line in lines[3:5])
    assert abs(expected - measured) <= 1


def test_a_model_of_no_known_architecture_is_projected_per_token_and_says_what_it_cannot() -> None:
    def odd() -> FakeJob:
        job = host_job()
        kinds = [Kind((513, 77), "float32", unit=unit) for unit in range(5)]
        return replace(job, inventory=Inventory.of(kinds), model="Odd")

    async def unknown() -> tuple[str, StrategiesScreen]:
        async with dashboard(odd(), (120, 40)) as run:
            screen = await opened(run)
            return run.text(), screen

    text, screen = asyncio.run(unknown())
    tensor = screen.whatif.rows["tp"]
    assert "architecture is not known" in tensor.refused
    assert "architecture is not known" in text
    ddp = screen.whatif.rows["ddp"]
    assert ddp.rank is not None
    assert ddp.rank.total is not None


def test_a_strategy_that_cannot_be_computed_costs_its_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ranktop.budget.project.project

    def broken(run: object, strategy: str, desk: object) -> object:
        if strategy == "zero2":
            raise ZeroDivisionError("nothing to divide")
        return whole(run, strategy, desk)  # type: ignore[arg-type]

    monkeypatch.setattr(ranktop.budget.project, "project", broken)

    async def one() -> str:
        async with dashboard(fsdp_job(), (100, 30)) as run:
            await opened(run)
            return line_of(run, "   zero2 ")

    assert "ZeroDivisionError: nothing to divide" in asyncio.run(one())


def test_nodes_and_devices_are_as_the_job_has_them_for_every_screen() -> None:
    async def on_two_nodes() -> tuple[StrategiesScreen, ExplainScreen]:
        job = replace(fsdp_job(), node=lambda rank: f"node{rank // 4}")
        async with dashboard(job) as run:
            screen = await opened(run)
            await run.pilot.press("enter")
            await run.pilot.pause()
            explained = run.app.screen
            assert isinstance(explained, ExplainScreen)
            return screen, explained

    screen, explained = asyncio.run(on_two_nodes())
    assert screen.whatif.run is not None
    assert screen.whatif.run.gpus_per_node == 4
    assert "one node: 4 GPUs" in screen.whatif.rows["dp"].refused
    assert explained.at.device == "h100"
    assert explained.at.link < explained.at.node_link


def test_the_hints_of_an_explanation_are_readable_in_ascii() -> None:
    async def last_line() -> str:
        async with dashboard(fsdp_job(), ascii=True) as run:
            await opened(run)
            await run.pilot.press("enter")
            await run.pilot.pause()
            return run.text().splitlines()[-1]

    assert "Up Down PgUp PgDn scroll" in asyncio.run(last_line())


def test_a_key_computes_each_strategy_once_and_none_where_it_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counting(run: Run, strategy: str, desk: object = None) -> Projection:
        asked.append(strategy)
        return known(run, strategy)

    monkeypatch.setattr(ranktop.budget.project, "project", counting)

    async def after(run: Dashboard, *keys: str) -> list[str]:
        asked.clear()
        await run.pilot.press(*keys)
        screen = await computed(run)
        assert screen.whatif._desk is None  # what the rows shared is gone with the last of them
        return sorted(asked)

    async def pressing() -> None:
        async with dashboard(fsdp_job(), (140, 40)) as run:
            await opened(run)
            assert sorted(asked) == sorted(STRATEGIES)
            assert await after(run, "b") == sorted(STRATEGIES)
            assert await after(run, "B") == sorted(STRATEGIES)
            for keys in (("B",), ("x",), ("j", "k", "down"), ("z", "z")):
                assert await after(run, *keys) == []

    asyncio.run(pressing())
