"""Which rank broke the job, restarts, silence, absence, other versions: what is said, and when nothing."""

from __future__ import annotations

import pytest
from hand_made import NOW, absent, ended, evidence, found, rank, the

from ranktop.probes.reading import DeviceIdentity
from ranktop.tui.session.findings.death import death
from ranktop.tui.session.findings.missing import missing
from ranktop.tui.session.findings.restart import restart
from ranktop.tui.session.findings.silent import silent
from ranktop.tui.session.findings.versions import versions
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.rank_view import RankView
from ranktop.wire.schema import End, Versions

GONE = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:4242"


@pytest.mark.parametrize("rule", [death, restart, silent, missing, versions])
def test_a_sound_job_raises_nothing(rule: object) -> None:
    assert callable(rule)
    assert found(rule, *(rank(number) for number in range(4))) == []
    assert found(rule) == []


def test_the_rank_that_was_killed_is_named_and_the_others_are_its_consequences() -> None:
    one = the(
        death,
        ended(0, "exception", 1, GONE, at=990.0),
        ended(1, "signal", 9, "SIGKILL", at=991.2),
        ended(2, "signal", 15, "SIGTERM", at=992.0),
        ended(3, "exception", 1, GONE, at=990.1),
        state="ended",
    )
    assert (one.severity, one.ranks, one.since, one.step) == ("critical", (1,), 991.2, 20)
    assert one.sentence == "rank 1 was killed (signal 9): SIGKILL"
    told = evidence(one)
    assert told["then ranks 0, 3"] == ("failed (exit code 1): RuntimeError: Connection closed by peer")
    assert told["then rank 2"] == "was killed (signal 15): SIGTERM"
    both = the(death, *(ended(number, "signal", 9 if number == 1 else 15, "") for number in range(3)), state="ended")
    assert evidence(both)["then ranks 0, 2"] == "were killed (signal 15): SIGTERM"
    assert (told["node"], told["process id"], told["phase"]) == ("n0", 101, "backward")
    assert "kill -9" in one.advice


def test_the_oom_killer_is_recognised_as_the_hub_words_it() -> None:
    words = "SIGKILL by the kernel's OOM killer: its cgroup's limit is 2 GiB"
    one = the(death, rank(0), ended(1, "signal", 9, words))
    assert one.sentence == f"rank 1 was killed (signal 9): {words}"
    assert "memory" in one.advice
    assert "kill -9" not in one.advice


def test_an_exception_is_told_with_its_text_and_those_that_raised_the_same_are_in_the_sentence() -> None:
    one = the(
        death, *(ended(number, "exception", 1, "ValueError: x", at=990.0 + number) for number in (0, 1, 2)), rank(3)
    )
    assert one.ranks == (0,)
    assert one.sentence == "rank 0 failed (exit code 1): ValueError: x; ranks 1, 2 as well"


def test_one_that_lost_its_peer_is_not_to_blame_where_another_failed_by_itself() -> None:
    one = the(death, ended(0, "exception", 1, GONE, at=990.0), ended(1, "exception", 1, "KeyError: 'x'", at=990.4))
    assert one.ranks == (1,)
    alone = the(death, ended(0, "exception", 1, GONE, at=990.0), rank(1))
    assert found(death, ended(0, "exception", 1, GONE, at=NOW - 2), rank(1)) == [], "its peer will be missed"
    assert alone.ranks == (0,)
    assert "gone first" in alone.advice


def test_one_that_lost_its_peer_is_not_named_while_that_peer_may_still_be_missed() -> None:
    assert found(death, ended(0, "exception", 1, GONE, at=NOW - 0.3), rank(1)) == []
    assert the(death, ended(0, "exception", 1, GONE, at=NOW - 6), rank(1)).ranks == (0,)
    assert the(death, ended(0, "exception", 1, GONE, at=NOW - 0.3)).ranks == (0,), "nobody else is left"
    assert the(death, ended(0, "exception", 1, "KeyError: 'x'", at=NOW - 0.3), rank(1)).ranks == (0,)


@pytest.mark.parametrize(
    ("how", "code", "words", "advice"),
    [
        ("signal", 11, "was killed (signal 11): SIGSEGV", "PYTHONFAULTHANDLER"),
        ("signal", 7, "was killed (signal 7): SIGBUS", "/dev/shm"),
        ("signal", 200, "was killed (signal 200)", ""),
        ("exit", 3, "failed (exit code 3)", "standard error"),
        ("vanished", None, "vanished without a word", "on n0"),
    ],
)
def test_every_way_to_go_has_its_words(how: str, code: int | None, words: str, advice: str) -> None:
    one = the(death, ended(0, how, code), rank(1))
    assert one.sentence == f"rank 0 {words}"
    assert advice in one.advice


def test_ranks_that_end_by_themselves_are_no_finding() -> None:
    assert found(death, ended(0, "exit", 0), ended(1, "exit", 0), state="ended") == []
    assert found(death, ended(0, "exit", 0), rank(1)) == []


def test_a_job_that_was_told_to_end_is_information() -> None:
    one = the(death, *(ended(number, "signal", 15, "SIGTERM", at=990.0 + number) for number in range(4)), state="ended")
    assert (one.severity, one.ranks, one.since) == ("info", (0, 1, 2, 3), 990.0)
    assert one.sentence == "the job was told to end: all 4 ranks got SIGTERM"
    saved = the(death, ended(0, "signal", 2, "SIGINT"), ended(1, "exit", 0), state="ended")
    assert (saved.severity, saved.sentence) == ("info", "the job was told to end: rank 0 got SIGINT")


def test_one_that_was_told_to_go_alone_is_the_culprit_once_the_others_had_time() -> None:
    assert found(death, ended(0, "signal", 15, "SIGTERM", at=NOW - 2), rank(1)) == []
    one = the(death, ended(0, "signal", 15, "SIGTERM", at=NOW - 20), rank(1))
    assert (one.severity, one.ranks) == ("critical", (0,))
    assert "alone" in one.advice


def test_an_end_before_the_job_was_restarted_is_past() -> None:
    dead = ended(3, "signal", 9, "SIGKILL", at=NOW - 60)
    anew = [rank(number, restart=1, uptime=30.0) for number in range(3)]
    assert found(death, *anew, dead) == []
    later = [rank(number, restart=1, uptime=100.0) for number in range(3)]
    assert the(death, *later, dead).ranks == (3,)


def test_a_restart_is_told_with_its_count_and_how_the_life_before_ended() -> None:
    formers = {
        0: End(rank=0, how="exception", code=1, detail=GONE),
        1: End(rank=1, how="signal", code=9, detail="SIGKILL"),
        2: End(rank=2, how="signal", code=15, detail="SIGTERM"),
    }
    one = the(restart, *(rank(number, restart=1, uptime=50.0, former=formers[number]) for number in range(3)))
    assert one.sentence == "the job was started anew once: before, rank 1 was killed (signal 9): SIGKILL"
    assert (one.severity, one.ranks) == ("warning", ())
    assert one.since == pytest.approx(NOW - 50.4)
    assert evidence(one)["before, rank 2"] == "was killed (signal 15): SIGTERM"
    unknown = the(restart, *(rank(number, restart=1) for number in range(3)))
    assert (unknown.severity, unknown.sentence) == ("info", "the job was started anew once")
    assert "not known" in unknown.advice
    assert the(restart, *(rank(number, restart=2) for number in range(3))).severity == "warning"


def test_ranks_that_alone_are_in_a_later_life_are_named() -> None:
    told = End(rank=0, how="signal", code=15, detail="SIGTERM")
    one = the(restart, rank(0), rank(1), rank(2, restart=1, former=told), rank(3, restart=1, former=told))
    assert one.sentence == ("ranks 2, 3 were started anew once: before, rank 2 was killed (signal 15): SIGTERM")
    assert one.severity == "info"


def test_a_rank_that_lost_its_peer_is_not_named_before_that_peer_has_begun_anew() -> None:
    lost = End(rank=0, how="exception", code=1, detail=GONE)
    broke = End(rank=1, how="exception", code=1, detail="RuntimeError: a link went down")
    first = the(restart, rank(0, restart=1, former=lost), rank(1))
    assert "Connection closed" not in first.sentence
    both = the(restart, rank(0, restart=1, former=lost), rank(1, restart=1, former=broke))
    assert both.sentence.endswith("before, rank 1 failed (exit code 1): RuntimeError: a link went down")


def test_an_error_of_torchs_allocator_keeps_its_sentence() -> None:
    raised = (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
    )
    one = the(death, ended(0, "exception", 1, raised), rank(1))
    assert one.sentence.startswith("rank 0 failed (exit code 1): RuntimeError: DefaultCPUAllocator: can't allocate")
    bare = the(death, ended(0, "exception", 1, "RuntimeError: [enforce fail at pair.cc:42] op.offset < size"), rank(1))
    assert bare.sentence == "rank 0 failed (exit code 1): RuntimeError: op.offset < size"


def test_ranks_are_told_in_one_way_and_many_are_counted() -> None:
    assert ranks_words([5, 1], "keep") == "ranks 1, 5 keep"
    assert ranks_words([3], "keep") == "rank 3 keeps"
    assert ranks_words(range(0, 1024, 2), "keep") == "512 ranks (0, 2, 4, ...) keep"


def test_a_short_silence_is_not_told_and_many_silent_ranks_are_one_finding() -> None:
    assert found(silent, rank(0), rank(1, age=2.0, state="silent")) == []
    quiet = [rank(number, age=4.0 + number / 16, card={"node": f"n{number}"}) for number in range(1, 20)]
    one = the(silent, rank(0), *quiet)
    assert one.ranks == tuple(range(1, 20))
    assert one.sentence.startswith("ranks 1-19 are silent for 4.1 s to 5.2 s: nothing is known")


def test_a_stopped_rank_is_said_to_be_stopped_at_once() -> None:
    one = the(silent, rank(0), rank(1), rank(2, age=4.0, process="stopped"))
    assert one.sentence == "rank 2 is silent for 4.0 s: its process is stopped (SIGSTOP or a debugger)"
    assert (one.severity, one.ranks, one.since) == ("warning", (2,), NOW - 4.0)
    assert "kill -CONT" in one.advice


@pytest.mark.parametrize(("age", "severity"), [(4.0, "info"), (14.0, "warning")])
def test_silence_for_another_reason_is_a_warning_only_when_it_is_long(age: float, severity: str) -> None:
    for process, words in (("", "nothing is known of its process"), ("running", "its process is alive and running")):
        one = the(silent, rank(0), rank(1, age=age, process=process))
        assert (one.severity, one.sentence.partition(": ")[2]) == (severity, words)


def test_silent_ranks_of_one_node_are_one_finding_and_unknown_words_are_made_plain() -> None:
    quiet = [rank(number, age=20.0 + number, process="zombie\x1b[31m") for number in (8, 9, 10)]
    one = the(silent, rank(0), *quiet)
    assert one.ranks == (8, 9, 10)
    assert one.sentence == "ranks 8-10 are silent for 28 s to 30 s: their processes are zombie"


def test_when_nobody_speaks_the_way_to_them_is_suspected() -> None:
    one = the(silent, rank(0, age=20.0), rank(1, age=21.0), ended(2, "exit", 0))
    assert (one.severity, one.ranks) == ("info", ())
    assert one.sentence == "all 2 ranks are silent for 20 s: the hub, or the way to it, may be gone"
    stopped = the(silent, rank(0, age=20.0, process="stopped"), rank(1, age=21.0, process="stopped"))
    assert (stopped.severity, stopped.ranks) == ("warning", (0, 1))


def test_a_silence_of_less_than_three_seconds_is_not_told_of_anybody() -> None:
    """A machine that is busy for a second is all that it takes where the agents speak ten times a second."""
    quiet = [rank(number, age=1.0, state="silent") for number in (0, 1)]
    assert found(silent, *quiet) == []
    assert found(silent, *quiet, rank(2)) == []


def test_a_rank_that_never_came_is_missed_after_a_minute_or_some_steps() -> None:
    def seven(step: int, uptime: float) -> list[RankView]:
        return [*(rank(number, step=step, uptime=uptime) for number in range(7)), absent(7)]

    assert found(missing, *seven(0, 40.0)) == []
    assert found(missing, *seven(2, 40.0)) == []
    for step, uptime in ((0, 61.0), (3, 5.0)):
        one = the(missing, *seven(step, uptime))
        assert (one.severity, one.ranks) == ("warning", (7,))
        assert one.sentence == "7 of 8 ranks seen: rank 7 not heard of"


def test_missing_ranks_are_told_as_ranges_and_not_of_a_job_that_is_over() -> None:
    ranks = [rank(0), absent(1), absent(2), absent(3), rank(4), absent(5)]
    assert the(missing, *ranks).sentence == "2 of 6 ranks seen: ranks 1-3, 5 not heard of"
    assert found(missing, *ranks, state="ended") == []
    assert found(missing, absent(0), absent(1)) == []


def test_the_ranks_of_whole_other_nodes_may_be_where_this_hub_does_not_hear_them() -> None:
    one = the(missing, *(rank(number) for number in range(8)), *(absent(number) for number in range(8, 16)))
    assert (one.severity, one.confidence) == ("info", "low")
    assert one.sentence == (
        "8 of 16 ranks seen: ranks 8-15 not heard of; they may be on other nodes, which this node's hub does not hear"
    )
    hole = [
        *(rank(number) for number in (0, 1, 2, 4, 5, 6, 7)),
        absent(3),
        *(absent(number) for number in range(8, 16)),
    ]
    one = the(missing, *hole)
    assert (one.severity, one.ranks) == ("warning", (3,))
    assert one.sentence == "7 of 16 ranks seen: rank 3 not heard of, beside ranks 8-15, which may be on other nodes"


def test_where_the_launcher_tells_how_many_ranks_a_node_has_nothing_is_guessed() -> None:
    two = {"local_size": 2}
    one = the(missing, rank(0, card=two), absent(1))
    assert (one.severity, one.ranks) == ("warning", (1,))
    away = the(missing, rank(0, card=two), rank(1, card=two), absent(2))
    assert (away.severity, away.ranks) == ("info", (2,))
    assert the(missing, rank(0), absent(1)).severity == "info", "may be two nodes of one rank"
    dealt = [rank(2 * number, card={"local_rank": number, "node": "n0"}) for number in range(4)]
    assert the(missing, *sorted([*dealt, *map(absent, (1, 3, 5, 7))], key=lambda view: view.rank)).severity == "info"


def test_a_minority_with_another_torch_is_named_with_what_came_with_it() -> None:
    other = Versions(ranktop="0.1.0", python="3.12.4", torch="2.12.0", cuda="12.8", nccl="2.26.2")
    one = the(versions, *(rank(number) for number in range(3)), rank(3, card={"versions": other}))
    assert (one.subject, one.severity, one.ranks, one.peers) == ("torch", "warning", (3,), (0, 1, 2))
    assert one.sentence == "rank 3 runs torch 2.12.0, the other 3 ranks 2.13.0"
    assert one.since == pytest.approx(NOW - 300.4), "since its process began"
    assert {"NCCL of rank 3", "NCCL of ranks 0-2", "node"} <= set(evidence(one))
    assert not any(name.startswith("CUDA") for name in evidence(one))


def test_other_code_and_other_libraries_are_findings_of_their_own() -> None:
    other = Versions(ranktop="0.1.0", python="3.11.9", torch="2.12.0", cuda="12.8", nccl="2.27.5")
    told = found(
        versions,
        *(rank(number) for number in range(2)),
        *(rank(number, card={"versions": other, "code": "bbbbbbbb"}) for number in (2, 3, 4)),
    )
    assert [(one.subject, one.ranks) for one in told] == [("torch", (0, 1)), ("python", (0, 1)), ("code", (0, 1))]
    assert told[-1].sentence == "ranks 0, 1 run another train.py than the other 3 ranks"
    assert evidence(told[-1])["SHA-256 of ranks 0, 1"] == "aaaaaaaa"


def test_what_is_not_known_and_what_is_another_program_is_not_compared() -> None:
    bare = rank(1, card={"versions": Versions(), "code": ""})
    actor = rank(2, card={"script": "actor.py", "code": "cccccccc", "device": DeviceIdentity()})
    assert found(versions, rank(0), bare, actor, absent(3)) == []
    tie = the(versions, rank(0), rank(1, card={"code": "bbbbbbbb"}))
    assert tie.ranks == (1,)
    assert tie.sentence == "rank 1 runs another train.py than rank 0"


def test_while_ranks_are_on_their_way_nobody_is_the_odd_one() -> None:
    early = [rank(0, step=0, uptime=2), rank(2, step=0, uptime=2, card={"code": "bbbbbbbb"})]
    assert found(versions, early[0], absent(1), early[1]) == []
    late = [rank(0, step=0, uptime=90), absent(1), rank(2, step=0, uptime=90, card={"code": "bbbbbbbb"})]
    assert the(versions, *late).ranks == (2,)
