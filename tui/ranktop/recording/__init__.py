"""A reader for recordings, for scripts and notebooks; also of a job that still runs.

::

    from ranktop.recording import open_recording

    with open_recording("run.ranktop") as run:              # or a job's id or name; also me@gpu01/ab12
        print(run.job.name, run.strategy, run.ranks)
        for sample in run.samples(every=10):
            print(sample.time, sample.rank, sample.measured["activations"], sample.expected["activations"])
        print(run.findings())

Sizes are bytes (integers), times seconds (floats), unknown is None. Texts come from the job: escape them before you
show them.
"""

from __future__ import annotations

from ranktop.recording.reader import JobFacts, Reader, open_recording
from ranktop.recording.sample import Held, Sample, Series, Value
from ranktop.wire.recording_file import RecordingError

__all__ = ["Held", "JobFacts", "Reader", "RecordingError", "Sample", "Series", "Value", "open_recording"]
