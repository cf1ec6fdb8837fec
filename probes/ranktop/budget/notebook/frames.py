"""Tables for pandas, where it is installed: what is not known stays missing, whole numbers stay whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas

NO_PANDAS: Final = "to_pandas needs pandas, which is not installed: pip install pandas"


def frame(
    columns: Sequence[tuple[str, str]],
    values: Mapping[str, Sequence[Any]],
    index: tuple[str, Sequence[Any]] | None = None,
) -> pandas.DataFrame:
    """Return a frame. ``columns``: (name, pandas type). ``index``: its name and values; None: numbered.

    Raises ImportError with one line when pandas is not installed.
    """
    try:
        library: Any = import_module("pandas")
    except ImportError:
        raise ImportError(NO_PANDAS) from None
    made = {name: library.array(list(values[name]), dtype=kind) for name, kind in columns}
    rows = None if index is None else library.Index(list(index[1]), name=index[0])
    found: pandas.DataFrame = library.DataFrame(made, index=rows)
    return found
