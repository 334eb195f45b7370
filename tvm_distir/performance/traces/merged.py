# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Merge Chrome traces, so that Perfetto shows a run and its prediction side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvm_distir.support import UsageError, read_json

from .files import write_trace


def merge_traces(path: str | Path, **traces: str | Path) -> None:
    """Write several traces of Chrome's JSON into a file, with the processes of a rank together.

    Parameters
    ----------
    path : str or Path
        The new file.
    **traces : str or Path
        The traces, by the word that is put before the names of their processes.

    Raises
    ------
    UsageError
        DIST0152 for a file that is no such trace, DIST0153 when the new file cannot be written.

    Examples
    --------
    >>> import os, tempfile
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> dist = td.distribute(mod, plan)
    >>> result = td.simulate(td.export(dist), "h100")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [f"{folder}/{name}.json" for name in ("first", "second", "both")]
    ...     for path in paths[:2]:
    ...         result.to_perfetto(path)
    ...     td.merge_traces(paths[2], first=paths[0], second=paths[1])
    ...     os.path.getsize(paths[2]) > os.path.getsize(paths[0])
    True
    """
    events = [
        _moved(event, label, number, len(traces))
        for number, (label, source) in enumerate(traces.items())
        for event in _events(source)
    ]
    write_trace(path, json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode())


def _events(source: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace, and the place of each process that has none."""
    content = read_json(source, _wrong)
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list) or not all(
        isinstance(event, dict) and isinstance(event.get("pid"), int) for event in events
    ):
        raise _wrong(
            str(source), "it has no traceEvents of numbered processes", "Give a trace as JSON."
        )
    yield from (event for event in events if event.get("name") != "process_sort_index")
    for pid in sorted({event["pid"] for event in events}):
        position = {"sort_index": pid}
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": position}


def _moved(event: dict[str, Any], label: str, number: int, count: int) -> dict[str, Any]:
    """Return an event of trace ``number`` of ``count``, in a process of its own."""
    pid, args = event["pid"] * count + number, event.get("args", {})
    if event.get("name") == "process_name":
        args = {"name": f"{label}: {args['name']}"}
    elif event.get("name") == "process_sort_index":
        args = {"sort_index": pid}
    return {**event, "pid": pid, **({"args": args} if args else {})}


def _wrong(location: str, problem: str, remedy: str) -> UsageError:
    return UsageError("DIST0152", problem, location=location, remedy=remedy)
