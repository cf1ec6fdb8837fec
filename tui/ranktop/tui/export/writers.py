"""The forms of an export, each written row by row: CSV, JSON, Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec

from ranktop.tui.export.columns import COLUMNS, Value, values
from ranktop.tui.export.events import events, harmless
from ranktop.tui.export.rows import Row, Stretch, rows

if TYPE_CHECKING:
    from ranktop.wire.recording import Recording

SCHEMA: Final = 1

BATCH_ROWS: Final = 4096
"""Rows of Parquet that are held before they are written."""

NO_PYARROW: Final = "parquet needs pyarrow, which is not installed: pip install 'ranktop[parquet]'"


class NoPyarrow(Exception):
    """The library that writes Parquet is missing; the text is one line: what to do."""


def head(recording: Recording, stretch: Stretch) -> dict[str, Any]:
    """Return what stands above the rows."""
    from importlib.metadata import version

    job = recording.job
    return {
        "schema": SCHEMA,
        "ranktop": version("ranktop"),
        "job": harmless(
            {
                "id": job.id, "name": job.name, "world_size": job.world_size, "launcher": job.launcher,
                "run_id": job.run_id, "simulated": recording.simulated, "host": recording.host,
                "started": recording.started, "ended": recording.ended,
            }
        ),
        "from": recording.wall(stretch.after),
        "to": recording.wall(stretch.until),
        "every": stretch.every or None,
    }  # fmt: skip


def write_csv(recording: Recording, stretch: Stretch, sink: BinaryIO) -> None:
    """Write the rows, a line of names first; what is not known is empty."""
    text = io.TextIOWrapper(sink, encoding="utf-8", newline="", write_through=False)
    try:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(column.name for column in COLUMNS)
        for row in rows(recording, stretch):
            writer.writerow(values(row))
        text.flush()
    finally:
        _let_go(text)


def write_json(recording: Recording, stretch: Stretch, sink: BinaryIO) -> None:
    """Write one object: the job, the columns, the events, and the rows, a line each."""
    text = io.TextIOWrapper(sink, encoding="utf-8", newline="", write_through=False)
    try:
        top = {
            **head(recording, stretch),
            "columns": [{"name": column.name, "type": column.type, "unit": column.unit} for column in COLUMNS],
        }
        text.write(json.dumps(top, ensure_ascii=False)[:-1])
        _list(text, "events", (json.dumps(one, ensure_ascii=False) for one in events(recording, stretch)))
        _list(text, "rows", (json.dumps(_object(row), ensure_ascii=False) for row in rows(recording, stretch)))
        text.write("}\n")
        text.flush()
    finally:
        _let_go(text)


def _list(text: io.TextIOWrapper, name: str, lines: Iterator[str]) -> None:
    text.write(f',\n"{name}": [')
    between = "\n"
    for line in lines:
        text.write(between + line)
        between = ",\n"
    text.write("]")


def _object(row: Row) -> dict[str, Any]:
    """A row with what no single column can hold: every step that was timed, every process group."""
    found: dict[str, Any] = dict(zip((column.name for column in COLUMNS), values(row), strict=True))
    found["steps"] = harmless([msgspec.to_builtins(step) for step in row.steps])
    found["groups"] = harmless([msgspec.to_builtins(group) for group in row.sample.collectives.groups])
    return found


def _let_go(text: io.TextIOWrapper) -> None:
    """Leave the sink open for its owner; what is still buffered has nowhere to go when the reader has left."""
    try:
        text.detach()
    except (OSError, ValueError):
        return


def write_parquet(recording: Recording, stretch: Stretch, sink: BinaryIO) -> None:
    """Write the rows in groups of ``BATCH_ROWS``; units stand with the columns. NoPyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise NoPyarrow(NO_PYARROW) from None
    types = {"int": pyarrow.int64(), "float": pyarrow.float64(), "text": pyarrow.string()}
    fields = [pyarrow.field(one.name, types[one.type], metadata={"unit": one.unit}) for one in COLUMNS]
    schema = pyarrow.schema(fields, metadata={"ranktop": json.dumps(head(recording, stretch))})
    writer = parquet.ParquetWriter(sink, schema, compression="zstd")
    batch: list[list[Value]] = []
    for row in rows(recording, stretch):
        batch.append(values(row))
        if len(batch) >= BATCH_ROWS:
            writer.write_batch(_batch(pyarrow, batch, schema))
            batch = []
    if batch:
        writer.write_batch(_batch(pyarrow, batch, schema))
    writer.close()


def _batch(pyarrow: Any, batch: list[list[Value]], schema: Any) -> Any:
    columns = zip(*batch, strict=True)
    arrays = [pyarrow.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
