# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define ``--trace`` and ``--trace-format``, and write the files of traces."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any, NamedTuple

from tvm_distir.support import UsageError, check_choice

from .outputs import Outputs

FILES = {"json": "Chrome JSON", "pftrace": "Perfetto protocol buffers with all ops"}
FOLDERS = {
    "hta": "Holistic Trace Analysis, a file per rank",
    "chakra": "ASTRA-sim, a file per rank",
}
_NAMES = {"hta": ("rank*.json",), "chakra": ("trace.*.et", "comm_group.json")}
"""Files of the folders."""


class Trace(NamedTuple):
    """The path and the format of a trace to write."""

    path: Path
    format: str


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Add the options of traces."""
    forms = ", ".join(f"{name} ({title})" for name, title in {**FILES, **FOLDERS}.items())
    about = "Write a trace to a file (t.pftrace or t.json) or, for other formats, a folder."
    parser.add_argument("--trace", metavar="t.pftrace", help=about)
    about = f"Set the trace format: {forms} (default: by the extension of --trace)."
    parser.add_argument("--trace-format", metavar="F", help=about)


def reserve_trace(path: str | None, format: str | None, outputs: Outputs) -> Trace | None:
    """Check the options before any work.

    Raises
    ------
    UsageError
        DIST0151 for a format without a path, DIST0152 for an unknown one, DIST0153 for a path that
        cannot be written.
    """
    if format is not None:
        check_choice(format, "format", (*FILES, *FOLDERS), "--trace-format")
    if path is None:
        if format is None:
            return None
        problem = "--trace-format needs --trace"
        raise UsageError("DIST0151", problem, location="--trace-format", remedy="Add --trace PATH.")
    if format in FOLDERS:
        folder = outputs.reserve_folder(path, "--trace", _NAMES[format])
        return None if folder is None else Trace(folder, format)
    target = outputs.reserve(path, "--trace")
    if target is None:
        return None
    from tvm_distir.performance import trace_format

    return Trace(target, format or trace_format(target))


def write_trace(trace: Trace | None, outputs: Outputs, result: Any) -> None:
    """Add the files of a trace to the outputs."""
    if trace is None:
        return
    if trace.format in FOLDERS:
        for name, content in result.trace_files(trace.format):
            outputs.add(trace.path / name, content)
    else:
        outputs.add(trace.path, functools.partial(result.to_perfetto, form=trace.format))
