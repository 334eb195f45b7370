# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""TVM's storage plan against a log of the allocator while the threads engine runs, byte by byte."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly import nightly_but

PROGRAMS = {
    "gpt": "gpt;dp=2,tp=2;data_parallel+megatron;",
    "llama": "llama;dp=2,tp=2;data_parallel+megatron;",
    "bert": "bert;tp=2;tensor_parallel;",
    "vit": "vit;tp=2;tensor_parallel;",
    "resnet": "resnet;dp=2;data_parallel;",
    "moe": "moe;dp=2,ep=2;data_parallel+expert_parallel;",
    "gpt train": "gpt;dp=2,tp=2;data_parallel+megatron;step",
    "gpt train zero 3": "gpt;dp=4;deepspeed_zero3;step",
    "llama train": "llama;dp=2,tp=2;data_parallel+megatron;step",
    "gpt in stages": "gpt;pp=2,dp=2;pipeline:schedule=1f1b,micro_batches=2+data_parallel;"
    "1f1b:stages=2,micro_batches=2",
    "llama in stages, zero bubble": "llama;pp=2,dp=2;"
    "pipeline:schedule=zero_bubble,micro_batches=2+data_parallel;"
    "zero_bubble:stages=2,micro_batches=2",
    "llama in stages, zero bubble v": "llama;pp=2;"
    "pipeline:schedule=zero_bubble_v,micro_batches=4;zero_bubble_v:stages=2,micro_batches=4",
    "gpt in stages, interleaved": "gpt;pp=2,tp=2;"
    "pipeline:schedule=interleaved,micro_batches=2+megatron;interleaved:stages=2,micro_batches=2",
}
HERE = Path(__file__).parent
#: One program of each structure: layers, convolutions, experts, a step that gathers its weights,
#: and stages with backward parts at once, with parts in two and two chunks, and with two chunks.
DAILY = (
    "gpt",
    "resnet",
    "moe",
    "gpt train zero 3",
    "gpt in stages",
    "llama in stages, zero bubble v",
    "gpt in stages, interleaved",
)


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, list[int]]]:
    """What the log and the plan of each program that is asked for have."""
    tests = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in tests if isinstance(item, pytest.Function)]
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler for the log, or no LD_PRELOAD")
    library = tmp_path_factory.mktemp("log") / "allocator_log.so"
    flags = ["-O1", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run(
        [compiler, *flags, str(HERE / "allocator_log.c"), "-ldl", "-lpthread"], check=True
    )
    done = subprocess.run(
        [sys.executable, str(HERE / "allocator_log.py")],
        input="".join(f"{PROGRAMS[name]}\n" for name in names),
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    return {
        name: json.loads(row.removeprefix("FOUND")) for name, row in zip(names, rows, strict=True)
    }


@pytest.mark.parametrize("name", nightly_but(PROGRAMS, set(map(list(PROGRAMS).index, DAILY))))
def test_the_plan_is_what_the_allocator_does(name, found) -> None:
    log, plan = found[name]["log"], found[name]["plan"]
    assert max(itertools.accumulate(plan)) == max(itertools.accumulate(log)) > 0
    assert plan == log[: len(plan)]
    # Behind the run its results are freed, by who asked for them.
    assert all(size < 0 for size in log[len(plan) :])
    assert sum(log) == 0
