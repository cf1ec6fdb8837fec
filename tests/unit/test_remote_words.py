"""What is typed as a target, what ssh says when it fails, and what the far side lists: texts alone, no network."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ranktop.tui.remote.explain import explain
from ranktop.tui.remote.far import FarError, read_listing
from ranktop.tui.remote.passing import words
from ranktop.tui.remote.ssh import Ssh, SshError
from ranktop.tui.remote.target import Target, TargetError, parse_target, split_job

WAY = Ssh(Target("gpu01", "me"))


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("gpu01", Target("gpu01")),
        ("me@gpu01:2222", Target("gpu01", "me", 2222)),
        ("me@realm@login.example.org", Target("login.example.org", "me@realm")),
        ("CORP\\me@gpu01", Target("gpu01", "CORP\\me")),
        ("ssh://me@gpu01:22/", Target("gpu01", "me", 22)),
        ("SSH://gpu01", Target("gpu01")),
        ("[::1]", Target("::1")),
        ("me@[fe80::1%eth0]:22", Target("fe80::1%eth0", "me", 22)),
        ("10.0.0.7:22", Target("10.0.0.7", port=22)),
    ],
)
def test_targets(text: str, target: Target) -> None:
    assert parse_target(text) == target
    assert parse_target(target.words) == target


@pytest.mark.parametrize(
    "text",
    [
        "", "-oProxyCommand=x", "ssh://-oProxyCommand=x", "me@-x", "-me@gpu01", "@gpu01", "me@", "gpu01:", "gpu01:0",
        "gpu01:65536", "gpu01:22x", "gpu01:²", "::1", "[::1", "[::1]22", "[gpu01]", "http://gpu01", "gpu 01", "gpu;01",
        "$(x)@gpu01 ", "a`b@gpu01", "gpu01\n", "gpu\x1b[31m", "gpu01/ab", "me'@gpu01", 'me"@gpu01', "%h",
    ],
)  # fmt: skip
def test_what_is_no_target_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(TargetError) as refused:
        parse_target(text)
    assert str(refused.value).isprintable()
    assert "a target is [user@]host[:port]" in str(refused.value)


def test_a_job_of_another_machine() -> None:
    assert split_job("me@[::1]:22/ab12") == (Target("::1", "me", 22), "ab12")
    assert split_job("ssh://gpu01/train gpt") == (Target("gpu01"), "train gpt")
    for wrong in ("gpu01", "gpu01/", "/ab", "gpu01/a/b", "-x/ab", "ssh://gpu01"):
        with pytest.raises(TargetError):
            split_job(wrong)


@pytest.mark.parametrize(
    "way",
    [
        Ssh(Target("gpu01"), ("-oProxyCommand=x",)),
        Ssh(Target("gpu01"), ("ProxyCommand",)),
        Ssh(Target("gpu01"), jump="-x"),
        Ssh(Target("gpu01"), identity=""),
        Ssh(Target("gpu01"), remote_command=" "),
        Ssh(Target("gpu01"), remote_command="a\nb"),
    ],
)
def test_options_that_ssh_would_take_for_others_are_refused(way: Ssh) -> None:
    with pytest.raises(SshError):
        way.check()


def test_what_the_person_says_goes_before_our_defaults_and_behind_what_must_hold() -> None:
    command = Ssh(Target("::1", "me", 22), ("ConnectTimeout=3", "ForwardAgent=yes"), jump="bastion").command(
        "exec sh -s", batch=True
    )
    options = [after for word, after in pairwise(command) if word == "-o"]
    assert options.index("ConnectTimeout=3") < options.index("ConnectTimeout=10")
    assert options.index("ForwardAgent=no") < options.index("ForwardAgent=yes")
    assert "BatchMode=yes" in options
    assert "ClearAllForwardings=yes" in options
    assert command[-3:] == ["--", "me@::1", "exec sh -s"]


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("ssh: connect to host gpu01 port 22: Connection timed out", "", "gpu01 did not answer in time"),
        ("ssh: connect to host gpu01 port 22: No route to host", "", "there is no way to gpu01 now"),
        ("ssh: connect to host bastion port 22: Connection refused", "", "bastion refuses the connection"),
        ("ops@bastion: Permission denied (publickey).", "auth", "permission denied by ops@bastion"),
        ("Host key for [gpu01]:22 has changed and you", "auth", "if it was set up anew: ssh-keygen -R '[gpu01]:22'"),
        ("Timeout, server gpu01 not responding.", "", "gpu01 did not answer in time"),
        ("client_loop: send disconnect: Broken pipe", "", "gpu01 closed the connection"),
        ("Received disconnect: Too many authentication failures", "auth", "permission denied by me@gpu01"),
        (
            "bastion: Permission denied\x1b[2J (publickey).",
            "",
            "ssh to me@gpu01 failed: bastion: Permission denied (publ",
        ),
        ("", "", "ssh to me@gpu01 failed"),
    ],
)
def test_ssh_in_one_line(said: str, kind: str, words: str) -> None:
    told = explain(said + "\n", WAY.target)
    assert told[0] == kind
    assert told[1].startswith(words) or words in told[1]
    assert told[1].isprintable()


def listing(**changed: Any) -> bytes:
    told = {"schema": 1, "ranktop": "0.1.0", "wire": 1, "host": "gpu01", "jobs": [], **changed}
    return json.dumps(told).encode()


def job(**changed: Any) -> dict[str, Any]:
    told = {"id": "ab12", "name": "train", "state": "running", "world_size": 8, "started": 5.0, "bytes": None}
    return {**told, "socket": "/tmp/ranktop-0/ab12/viewers.sock", **changed}


def read(answer: bytes, code: int = 0, said: str = "") -> Any:
    return read_listing(answer, code, said, WAY, "0.1.0")


def test_live_jobs_first_past_ones_not_at_all() -> None:
    jobs = [job(state="ended", id="e"), job(), job(state="past", id="p", socket=None, bytes=7)]
    told = read(listing(jobs=jobs), said="ranktop: one is odd\n")
    assert [(entry.id, entry.ended) for entry in told.jobs] == [("ab12", False), ("e", True)]
    assert told.jobs[0].directory == Path("/tmp/ranktop-0/ab12")
    assert told.problems == ("one is odd",)
    assert told.sizes == {"p": 7}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"wire": 0, "ranktop": "0.0.9"}, "ranktop on me@gpu01 is 0.0.9 (wire schema 0), here 0.1.0 (wire schema 1): "
         "me@gpu01 is older: upgrade ranktop there"),
        ({"wire": 2}, "this side is older: upgrade ranktop here"),
        ({"wire": None}, "me@gpu01 is older"),
        ({"schema": 2}, "this side is older"),
        ({"wire": True, "ranktop": "\x1b[31m"}, "of an unknown version"),
    ],
)  # fmt: skip
def test_another_version_says_which_side_is_older(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(FarError) as refused:
        read(listing(**changed))
    assert words in str(refused.value)
    assert refused.value.kind == "final"


@pytest.mark.parametrize(
    ("answer", "code", "said", "words"),
    [
        (b"", 127, "", "no ranktop on me@gpu01"),
        (b"", 2, "Error: No such command 'jobs'.", "older than 0.1.0 and cannot list its jobs"),
        (b"{", 1, "boom\x1b]0;x\x07\n", "did not list its jobs (exit code 1): boom"),
        (b"[" * 100_000, 0, "", "did not list its jobs"),
        (b"[1]", 0, "", "did not list its jobs"),
        (b"\xff", 0, "", "did not list its jobs"),
    ],
)
def test_no_listing_is_one_line(answer: bytes, code: int, said: str, words: str) -> None:
    with pytest.raises(FarError) as refused:
        read(answer, code, said)
    assert words in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "socket",
    [
        None, 7, "viewers.sock", "/tmp/a:b/viewers.sock", "/tmp/%h/viewers.sock", "/tmp/${HOME}/viewers.sock",
        "/tmp/a b/viewers.sock", "/tmp/x.sock", f"/{'x' * 200}/viewers.sock", "/tmp/a\n/viewers.sock",
        "/t\\/viewers.sock",
    ],
)  # fmt: skip
def test_a_path_that_ssh_would_read_otherwise_is_not_forwarded(socket: object) -> None:
    told = read(listing(jobs=[job(socket=socket)]))
    assert told.jobs == ()
    assert "cannot be forwarded" in told.problems[0]


def test_what_the_far_side_says_is_harmless() -> None:
    told = read(
        listing(
            host="\x1b[2Jgpu", jobs=[job(name="\x1b]0;owned\x07tr\nain", world_size=-1, started=float("1e300")), 7,
                                     job(id="../../etc"), job(id="-x"), *[job(id=f"j{n}") for n in range(2000)]],
        )
    )  # fmt: skip
    assert told.host == "gpu"
    (first,) = [entry for entry in told.jobs if entry.id == "ab12"]
    assert (first.name, first.world_size, first.started) == ("tr ain", 0, 0.0)
    assert len(told.jobs) <= 1000
    assert all(entry.id.isalnum() for entry in told.jobs)


def test_flags_become_arguments() -> None:
    assert words("status", job="-x; rm", json=True, fail_on=None) == ["status", "--job=-x; rm", "--json"]
    assert words("status", json=False, fail_on="warning") == ["status", "--fail-on=warning"]
