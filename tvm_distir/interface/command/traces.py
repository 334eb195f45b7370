# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``--trace`` and ``--trace-format``: the forms of traces, and the files that they make."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any, NamedTuple

from tvm_distir.support import UsageError, nearest

from .outputs import Outputs

FILES = {"json": "Chrome's JSON", "pftrace": "Perfetto's protocol buffers, with all ops"}
FOLDERS = {
    "hta": "a file per rank for Holistic Trace Analysis",
    "chakra": "one per rank for ASTRA-sim",
}
_NAMES = {"hta": ("rank*.json",), "chakra": ("trace.*.et", "comm_group.json")}
"""Files of the folders."""


class Trace(NamedTuple):
    """A trace that is to be written: where, and in which form."""

    path: Path
    form: str


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    forms = ", ".join(f"{form} ({what})" for form, what in {**FILES, **FOLDERS}.items())
    parser.add_argument(
        "--trace",
        metavar="t.pftrace",
        help="write a trace for Perfetto: t.pftrace, t.json; other formats: a folder of files",
    )
    parser.add_argument("--trace-format", metavar="F", help=f"{forms}; else as --trace ends")


def promise_trace(arguments: argparse.Namespace, outputs: Outputs) -> Trace | None:
    """Check the options before the work.

    Raises
    ------
    UsageError
        DIST0151 for a format without a path, DIST0152 for an unknown one, DIST0153 for a path that
        cannot be written.
    """
    form, path = arguments.trace_format, arguments.trace
    if form is not None and form not in (*FILES, *FOLDERS):
        raise UsageError(
            "DIST0152",
            f'there is no format "{form}"',
            place="--trace-format",
            remedy=nearest(form, (*FILES, *FOLDERS)),
        )
    if path is None:
        if form is None:
            return None
        raise UsageError(
            "DIST0151", "it needs --trace", place="--trace-format", remedy="Name a path: --trace."
        )
    if form in FOLDERS:
        folder = outputs.promise_folder(path, "--trace", _NAMES[form])
        return None if folder is None else Trace(folder, form)
    target = outputs.promise(path, "--trace")
    if target is None:
        return None
    from tvm_distir.performance import trace_form

    return Trace(target, form or trace_form(target))


def write_trace(trace: Trace | None, outputs: Outputs, result: Any) -> None:
    """Add the files of a trace to the outputs."""
    if trace is None:
        return
    if trace.form in FOLDERS:
        for name, content in result.trace_files(trace.form):
            outputs.add(trace.path / name, content)
    else:
        outputs.add(trace.path, functools.partial(result.to_perfetto, form=trace.form))
