# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir analyze``: a model and a plan in, the predicted step out."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .advice import add_advice, advised, check_advice
from .analysis import analyse
from .exporting import add_exporting
from .opt import script
from .options import add_model_options, check_model_options, model_inputs
from .outputs import Outputs, add_force
from .stages import StagedModel
from .terminal import put, put_page, say, wants_colour
from .traces import add_trace, promise_trace, write_trace


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "analyze",
        help="distribute a model and predict its step on a system",
        description="Distribute a model over a mesh and predict time, memory and traffic.",
        allow_abbrev=False,
    )
    add_model_options(parser, system_required=True)
    add_exporting(parser)
    add_advice(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--report", metavar="r.html", help="write a self-contained HTML report")
    add_trace(parser)
    parser.add_argument(
        "-o",
        dest="folder",
        metavar="DIR",
        help="write program, plan, IR levels, report and analysis into DIR",
    )
    add_force(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Load, distribute, export, simulate, write."""
    check_advice(arguments)
    axes = check_model_options(arguments)
    outputs = Outputs(model_inputs(arguments), force=arguments.force)
    from tvm_distir.core import collector_paused

    with collector_paused():
        return _run(arguments, axes, outputs)


def _run(arguments: argparse.Namespace, axes: dict[str, int] | None, outputs: Outputs) -> int:
    report = outputs.promise(arguments.report, "--report")
    trace = promise_trace(arguments, outputs)
    folder = outputs.promise_folder(arguments.folder, "-o", _FOLDER_FILES)
    found = analyse(arguments, axes, keep=folder is not None)
    work, program, result = found.work, found.program, found.result
    analysis = advised(found.analysis, work, program, arguments, axes)
    from tvm_distir.interface.report.document import to_dict, to_json
    from tvm_distir.interface.report.text import to_text
    from tvm_distir.interface.report.verdict import check_fits, to_verdict

    data = to_json(to_dict(analysis))
    if report is not None or folder is not None:
        from tvm_distir.interface.report.html import to_html

        page = to_html(analysis)
        outputs.add(report, page)
        if folder is not None:
            outputs.add(folder / "report.html", page)
    write_trace(trace, outputs, result)
    if folder is not None:
        _add_folder(outputs, folder, work, program)
        outputs.add(folder / "analysis.json", data)
        outputs.add(folder / "analysis.txt", to_text(analysis))
    written = outputs.commit()
    folders = [one for one in (folder, trace.path if trace else None) if one is not None]
    for path in written:
        if path.parent not in folders:
            say(f"wrote {path}")
    for one in folders:
        count = sum(path.parent == one for path in written)
        if count:
            say(f"wrote {count} files into {one}")
    if arguments.json:
        put(data)
    else:
        colour = wants_colour()
        put_page(to_text(analysis, colour), to_verdict(analysis, colour))
    check_fits(analysis)
    return 0


_LEVEL_FILES = {
    "annotate": "2-annotated.py",
    "propagate": "3-distributed.py",
    "optimize": "4-legalized.py",
    "lower": "5-local.py",
}
_FOLDER_FILES = (
    "program.json",
    "plan.json",
    "1-global.py",
    *_LEVEL_FILES.values(),
    "report.html",
    "analysis.json",
    "analysis.txt",
)
"""What stands in the folder of ``-o``."""


def _add_folder(outputs: Outputs, folder: Path, work: StagedModel, program: Any) -> None:
    """Program, plan and one TVMScript text per IR level."""
    outputs.add(folder / "program.json", program.to_json() + "\n")
    outputs.add(folder / "plan.json", json.dumps(work.plan.to_dict(), indent=1) + "\n")
    outputs.add(folder / "1-global.py", script(work.model.mod))
    for name, file in _LEVEL_FILES.items():
        outputs.add(folder / file, script(work.levels[name]))
