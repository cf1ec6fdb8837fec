"""The agent's one thread: every interval it reads the probes, makes a sample and hands it to the publisher."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranktop.agent import progress
from ranktop.agent.black_box import Failure, box_of
from ranktop.agent.identity import Identity
from ranktop.agent.loaded import backend, versions
from ranktop.agent.looks import Looks
from ranktop.agent.mode import Mode
from ranktop.agent.own_device import OwnDevice
from ranktop.agent.publisher import Publisher, Said
from ranktop.agent.runner import one_line
from ranktop.agent.say import say
from ranktop.agent.script_code import ScriptCode
from ranktop.agent.stalls import StallWatch
from ranktop.budget.terms import Memory
from ranktop.probes.allocator import HostAllocator
from ranktop.probes.collectives import CollectiveProbe
from ranktop.probes.identity import at_moment, compose
from ranktop.probes.reading import AllocatorReading, DeviceIdentity, DeviceReading, Resident, StepTimes
from ranktop.probes.starvation import StarvationProbe
from ranktop.wire.activity import VALIDATION, kind_of
from ranktop.wire.schema import Card, Cost, End, Sample, Table

if TYPE_CHECKING:
    from ranktop.agent.facts import Facts
    from ranktop.agent.meeting import Meeting
    from ranktop.agent.watch import Watch

ANSWER_SECONDS: Final = 0.1
"""Seconds after a sample when a hub's answer has come; looked for only while there may be none."""

PATIENCE_SECONDS: Final = 2.0
"""Longest time between two looks, however long the interval: a hub that is gone must be replaced."""

STEPS_PER_SAMPLE: Final = 16

HOST_NOTE: Final = (
    "host memory: activations are what malloc has given out beyond the states since the third step began, Python's "
    "own objects included; what it held before that counts as runtime"
)


NO_MODEL: Final = Resident(parameters=0, gradients=0, optimizer=0, buffers=0)


class Sampler(threading.Thread):
    """Reads and publishes until it is stopped. A failure in it ends in the error count, never in the job."""

    def __init__(
        self,
        identity: Identity,
        directory: Path,
        script: str,
        interval: float,
    ) -> None:
        super().__init__(name="ranktop-agent", daemon=True)
        self.identity = identity
        self.watch: Watch | None = None
        """Set once torch has been imported."""
        self.meeting: Meeting | None = None
        """Where the job has other nodes, in one rank of each."""
        self.failure: Failure | None = None
        """The out-of-memory that ends the script; None again once it has been told."""
        self.said: tuple[Card, Sample, float] | None = None
        """The newest card and sample, and when they were made (``time.monotonic``): for whoever asks in this process
        (``push``)."""
        self._directory = directory
        self._script = script
        self.host_allocator = HostAllocator()
        self._interval = interval
        self._stopping = threading.Event()
        self._end: End | None = None
        self._device = OwnDevice(identity.rank, interval, directory)
        self._collectives = CollectiveProbe()
        self._looks = Looks(self._collectives)
        self._mode = Mode()
        self._starvation = StarvationProbe()
        self._stalls = StallWatch(identity.rank)
        self._code = ScriptCode()
        self._began = time.monotonic()
        self._carded: tuple[object, ...] = ()
        self._revision = -1
        self._errors = 0
        self._last_error = ""
        self._problem = ""
        self._last_steps: tuple[StepTimes, ...] = ()
        self._cpu = 0.0
        self._hook_seconds = 0.0
        self._reports = progress.begin(lambda: self.watch)

    def start(self) -> None:
        """Begin. Where no thread can be had, nothing of what the script tells is kept either."""
        try:
            super().start()
        except BaseException:
            progress.end(self._reports)
            raise

    def mark_baseline(self) -> None:
        """Count what malloc holds now as runtime: the script has not made its model yet."""
        self.host_allocator.mark_baseline()

    def finish(self, end: End, deadline: float) -> None:
        """Send the last words and stop; waits no longer than ``deadline`` seconds."""
        self._end = end
        progress.end(self._reports)
        self._stopping.set()
        self.join(deadline)

    def run(self) -> None:
        """Sample until told to stop."""
        try:
            self._sample_until_stopped()
        except BaseException as error:
            say(f"the agent of rank {self.identity.rank} has ended, training goes on: {one_line(error)}")

    def _sample_until_stopped(self) -> None:
        identity = self.identity
        publisher = Publisher(identity.job, identity.rank, identity.pid, identity.restart, self._directory)
        due = time.monotonic()
        before = time.thread_time()
        while not self._stopping.is_set():
            self._guarded(lambda: self._publish(publisher))
            self._tell(publisher.problem)
            # All since the last sample: the looks between two cost something too.
            before, self._cpu = (now := time.thread_time()), now - before
            due = max(due + self._interval, time.monotonic() + 0.2 * self._interval)
            self._rest(publisher, due)
        self._guarded(lambda: self._last_words(publisher))
        publisher.close()
        self._device.close()

    def _rest(self, publisher: Publisher, due: float) -> None:
        """Wait for the time of the next sample; between, look at the collectives, and talk to the hub if need be.

        Waking is most of what this thread costs beside a busy trainer: a hub that is well has its answer read with the
        next sample.
        """
        now = time.monotonic()
        pump = now + (PATIENCE_SECONDS if publisher.settled else ANSWER_SECONDS)
        while now < due:
            until = min(due, pump, self._looks.due() or due)
            if until > now and self._stopping.wait(until - now):
                return
            self._guarded(self._looks.look)
            now = time.monotonic()
            if pump <= now < due:
                self._guarded(lambda: self._attend(publisher))
                now = time.monotonic()
                pump = now + PATIENCE_SECONDS

    def _attend(self, publisher: Publisher) -> None:
        """Say what there is beside samples, and hear the hub."""
        said: list[Said] = []
        try:
            self._add_news(said)
        finally:
            self._exchange(publisher, said)

    def _exchange(self, publisher: Publisher, said: list[Said]) -> None:
        """Say it and hear the hub, whose door is for the thread that looks for the job's other hubs."""
        publisher.pump(*said)
        if self.meeting is not None:
            self.meeting.answered(publisher.door)

    def _add_news(self, said: list[Said]) -> None:
        """Add what that thread has found, and where the training thread is when a step takes too long."""
        doors = self.meeting.take() if self.meeting is not None else None
        if doors is not None:
            said.append(doors)
        stack = self._stalls.look(self.watch)
        if stack is not None:
            said.append(stack)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # what a script has put into torch may raise anything
            self._errors += 1
            text = one_line(error)[:200]
            if text != self._last_error:
                say(f"the agent met an error and trains on: {text}")
            self._last_error = text

    def _tell(self, problem: str) -> None:
        """Say once why nothing can be sent; training is not disturbed by it."""
        if problem and problem != self._problem:
            say(f"nothing is shown of rank {self.identity.rank}: {problem}")
            self._problem = problem

    def _publish(self, publisher: Publisher) -> None:
        """Say what is due; whatever can't be read, the hub is heard."""
        said: list[Said] = []
        try:
            if self.watch is not None:
                self._device.choose(self.watch.device)
            self._add_sample(publisher.dropped, said)
            self._add_news(said)
        finally:
            self._exchange(publisher, said)

    def _add_sample(self, dropped: int, said: list[Said]) -> None:
        failure = self.failure
        allocator = self._allocator()
        sample = self._sample(allocator, dropped)
        news = self._device.news(allocator)
        # Last made and first sent: no value is heard before the identity of the device that it is of.
        card = self._card_if_changed(allocator)
        known = card or (self.said[0] if self.said is not None else None)
        if known is not None:
            self.said = known, sample, time.monotonic()
        said += [message for message in (card, sample, news) if message is not None]
        if failure is not None:
            said.append(box_of(failure, sample, allocator))
            self.failure = None

    def _allocator(self) -> AllocatorReading:
        watch = self.watch
        probe = watch.allocator if watch is not None and watch.allocator is not None else self.host_allocator
        if self.failure is not None:
            probe.look_again()
        return probe.read()

    def _last_words(self, publisher: Publisher) -> None:
        if self.failure is not None:
            self._guarded(lambda: self._publish(publisher))
        elif self.watch is not None:
            said: list[Said] = []
            self._add_sample(publisher.dropped, said)
            publisher.send(*said)
        if self._end is not None:
            publisher.send(self._end)

    # -- what is said ------------------------------------------------------------------------------------------------

    def _card_if_changed(self, allocator: AllocatorReading) -> Card | None:
        facts = self.watch.facts if self.watch is not None else None
        device = self._device.identity()
        notes = (*self._notes(), *self._device.notes(allocator))
        key = (facts, device, backend(), self.watch is not None, notes, self._code.digest())
        if key == self._carded:
            return None
        self._carded = key
        self._revision += 1
        return self._card(facts, device, notes)

    def _card(self, facts: Facts | None, device: DeviceIdentity, notes: tuple[str, ...]) -> Card:
        identity = self.identity
        return Card(
            job=identity.job,
            rank=identity.rank,
            local_rank=identity.local_rank,
            node=identity.node,
            pid=identity.pid,
            restart=identity.restart,
            revision=self._revision,
            device=device,
            versions=versions(),
            backend=backend(),
            model=facts.model if facts is not None else "",
            inventory=facts.inventory if facts is not None else None,
            plan=facts.plan if facts is not None else None,
            trainer=facts.trainer if facts is not None else "",
            script=self._script,
            notes=notes,
            pids=self._device.pids,
            code=self._code.digest(),
            local_size=identity.local_size,
            node_rank=identity.node_rank,
        )

    def _notes(self) -> tuple[str, ...]:
        notes: list[str] = []
        watch = self.watch
        if self.meeting is not None and self.meeting.problem:
            notes.append(self.meeting.problem)
        if watch is None:
            notes.append("torch has not been imported yet")
        else:
            if watch.device is not None and watch.device.type == "cpu":
                notes.append(HOST_NOTE)
            if watch.facts is not None:
                notes += watch.facts.notes
            if why := stopped(watch):
                notes.append(why)
            recorder = watch.recorder
            if recorder is not None and recorder.count > 0 and not recorder.optimizer_seen:
                notes.append("no optimizer has stepped: each forward counts as a step")
        return tuple(notes)

    def _sample(self, allocator: AllocatorReading, dropped: int) -> Sample:
        watch = self.watch
        recorder = watch.recorder if watch is not None else None
        device = self._device.read(allocator)
        resident = self._resident()
        if resident is None:
            # No model has run, so nothing of it is an activation: it is libraries, and what the script prepares.
            allocator = replace(allocator, baseline=allocator.allocated or 0)
        now, reasons = compose(allocator, resident or NO_MODEL, device)
        if resident is None:
            reasons = {**reasons, "activations": "no model has run yet: what is allocated is shown as runtime"}
        table, table_reasons = self._table(allocator, device)
        errors = self._errors + (watch.errors if watch is not None else 0)
        collectives = self._collectives.read()
        thread = watch.thread if watch is not None else None
        activity = self._reports.activity(thread)
        if recorder is not None:
            recorder.also = self._reports.collect if self._reports.waiting else None
        return Sample(
            rank=self.identity.rank,
            uptime=time.monotonic() - self._began,
            interval=self._interval,
            now=now,
            table=table,
            reasons={**table_reasons, **reasons},
            device=device,
            peak_allocated=allocator.peak_allocated,
            inactive_split=allocator.inactive_split,
            retries=allocator.retries,
            ooms=allocator.ooms,
            step=recorder.count if recorder is not None else 0,
            step_age=None if recorder is None or recorder.last_end is None else time.perf_counter() - recorder.last_end,
            steps=self._steps(),
            phase="eval" if kind_of(activity) == VALIDATION else self._mode.phase(watch),
            collectives=collectives,
            cost=Cost(cpu_s=self._cpu, hook_s=self._hooks(), dropped=dropped, errors=errors),
            looks=self._looks.take([group.name for group in collectives.groups]),
            starved=self._starvation.read(thread),
            progress=self._reports.progress(),
            activity=activity,
        )

    def _resident(self) -> Resident | None:
        """Return what the training thread last saw of its tensors; none is touched from this thread.

        Between two steps a script drops its gradients or keeps them: what it did at the last step's start holds.
        """
        watch = self.watch
        resident = watch.resident if watch is not None else None
        recorder = watch.recorder if watch is not None else None
        table = recorder.table if recorder is not None else None
        if resident is None or recorder is None or table is None or recorder.phase != "data":
            return resident
        start = table.moments.get("step_start")
        return resident if start is None else replace(resident, gradients=start.resident.gradients)

    def _steps(self) -> tuple[StepTimes, ...]:
        """Return the steps finished since the last sample; else the last one again, for who asks only once."""
        recorder = self.watch.recorder if self.watch is not None else None
        taken = recorder.take()[-STEPS_PER_SAMPLE:] if recorder is not None else ()
        self._last_steps = taken[-1:] or (self._last_steps if recorder is not None else ())
        return taken or self._last_steps

    def _hooks(self) -> float:
        """Return the seconds spent in the training thread since the last sample."""
        recorder = self.watch.recorder if self.watch is not None else None
        if recorder is None:
            return 0.0
        spent = recorder.hook_seconds - self._hook_seconds
        self._hook_seconds = recorder.hook_seconds
        return max(0.0, spent)

    def _table(self, allocator: AllocatorReading, device: DeviceReading) -> tuple[Table | None, dict[str, str]]:
        recorder = self.watch.recorder if self.watch is not None else None
        table = recorder.table if recorder is not None else None
        if recorder is None or table is None:
            return None, {}
        reasons: dict[str, str] = {}
        moments: dict[str, Memory] = {}
        for name, moment in table.moments.items():
            memory, why = at_moment(moment.allocated, moment.reserved, moment.resident, allocator, device)
            moments[name] = memory
            reasons.update(why)
        age = time.perf_counter() - recorder.table_time
        return Table(step=table.index, first=table.first, moments=moments, age=age), reasons


def stopped(watch: Watch) -> str:
    """Say why the model is no longer followed; nothing while it is, or when the process ends."""
    if not watch.gave_up:
        return ""
    errors = f" after {watch.errors} error{'' if watch.errors == 1 else 's'}" if watch.errors else ""
    return f"the agent stopped following the model{errors}: {watch.last_error}"
