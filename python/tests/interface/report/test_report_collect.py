# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What a report shows of a real simulation, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.plain_systems import PLAIN_A100
from tvm_distir.hardware.systems.system import System
from tvm_distir.interface.report.collect import analysis_of, batch_of, parameters_of
from tvm_distir.interface.report.collected_hardware import main_dtype
from tvm_distir.interface.report.html import to_html
from tvm_distir.interface.report.model import Analysis
from tvm_distir.interface.report.text import to_text
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.parts import Entry, Function, Op, Value
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.simulation.simulator import simulate

ROWS, INNER, COLS = 4, 8, 16
FLOPS = 2 * ROWS * INNER * COLS


def value(name: str, shape: tuple[int, ...], **more: object) -> Value:
    """A bfloat16 tensor."""
    size = 2
    for dim in shape:
        size *= dim
    return Value(name, shape, "bfloat16", size, **more)  # type: ignore[arg-type]


def program() -> Program:
    """Two devices: ``x @ w`` in a layer called twice, then an all-reduce of the result."""
    layer = Function(
        mesh=0,
        params=(0, 1),
        ops=(
            Op(
                "lv",
                "compute",
                "relax.matmul",
                (0, 1),
                (2,),
                flops=FLOPS,
                bytes_read=2 * (ROWS * INNER + INNER * COLS),
                bytes_written=2 * ROWS * COLS,
                kernel_class="matmul",
                dtype="bfloat16",
            ),
        ),
        results=(2,),
        values=(
            value("x", (ROWS, INNER)),
            value("w", (INNER, COLS)),
            value("lv", (ROWS, COLS)),
        ),
    )
    reduced = 2 * ROWS * COLS
    main = Function(
        mesh=0,
        params=(0, 1),
        ops=(
            Op("a", "call", "layer", (0, 1), (2,), callee="layer"),
            Op("b", "call", "layer", (0, 1), (3,), callee="layer"),
            Op(
                "c",
                "collective",
                "relax.dist.all_reduce",
                (3,),
                (4,),
                collective="all_reduce",
                mesh_axes=(0,),
                group_size=2,
                payload_bytes=reduced,
            ),
        ),
        results=(2, 4),
        values=(
            value(
                "x", (ROWS, INNER), role="input", whole_shape=(2 * ROWS, INNER), placement="S[0]"
            ),
            value("h.0.w", (INNER, COLS), role="weight", whole_shape=(INNER, COLS), placement="R"),
            value("a", (ROWS, COLS)),
            value("b", (ROWS, COLS)),
            value("c", (ROWS, COLS)),
        ),
    )
    mesh = Mesh("mesh0", ("dp",), (2,), (0, 1))
    return Program((mesh,), {"main": main, "layer": layer}, (Entry(0, "main"),))


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    """The program on a DGX A100."""
    system = System.load(PLAIN_A100)
    return analysis_of(
        simulate(program(), system),
        program(),
        system,
        model="folder/toy.onnx",
        command="tvm-distir analyze folder/toy.onnx",
    )


def test_facts_of_the_program() -> None:
    assert main_dtype(program()) == "bfloat16" and batch_of(program()) == 2 * ROWS


def test_random_bits_do_not_decide_the_type_of_the_peak() -> None:
    """Operations on wide integers have no matrix units, however many there are."""
    known = program()
    bits = Op(
        "bits", "compute", "relax.right_shift", (0,), (2,),
        flops=1000 * FLOPS, kernel_class="elementwise", dtype="uint32",
    )  # fmt: skip
    functions = {name: replace(fn, ops=(*fn.ops, bits)) for name, fn in known.functions.items()}
    assert main_dtype(replace(known, functions=functions)) == "bfloat16"


def test_parameters_say_whole_and_local_sizes() -> None:
    x, w = parameters_of(program())
    assert (x.name, x.shape, x.placement, x.mesh) == ("x", (2 * ROWS, INNER), "S[0]", "mesh0")
    assert (x.full_bytes, x.device_bytes) == (2 * 2 * ROWS * INNER, 2 * ROWS * INNER)
    assert w.full_bytes == w.device_bytes == 2 * INNER * COLS


def test_times_are_those_of_the_system(analysis: Analysis) -> None:
    system = System.load(PLAIN_A100)
    moved = 2 * (ROWS * INNER + INNER * COLS + ROWS * COLS)
    kernel_s = system.roofline(FLOPS, moved, "matmul", "bfloat16").time_s
    reduce_s = system.collective_time_s("all_reduce", 2 * ROWS * COLS, (0, 1))
    assert analysis.time_s == pytest.approx(2 * kernel_s + reduce_s, rel=1e-6)
    (lane,) = analysis.timelines
    assert lane.devices == (0, 1)
    names = [(e.name, e.op, e.stream, e.scope) for e in lane.events]
    assert names == [
        ("lv", "matmul", "compute", "main/a"),
        ("lv", "matmul", "compute", "main/b"),
        ("c", "all_reduce", "comm", "main"),
    ]
    assert sum(e.duration_s for e in lane.events) == pytest.approx(analysis.time_s, rel=1e-6)
    assert lane.events[0].detail.startswith("1.02 kFLOP, ")


def test_tables_add_up(analysis: Analysis) -> None:
    (op,) = analysis.ops
    assert (op.op, op.module, op.phase) == ("matmul", "h.*.w", "forward")
    assert (op.count, op.flops) == (2, 2 * FLOPS)
    times = analysis.modules
    assert {(time.module, time.phase) for time in times} == {("h.*.w", "forward")}
    assert sum(time.compute_s for time in times) == pytest.approx(op.time_s)
    assert sum(time.comm_s for time in times) == pytest.approx(analysis.collectives[0].time_s)
    assert analysis.focus == "devices 0-1 of mesh0"


def test_peak_is_that_of_the_dtype(analysis: Analysis) -> None:
    system = System.load(PLAIN_A100)
    assert analysis.hardware.peak_flops == system.peak_flops_per_s("bfloat16")
    assert analysis.capacity_bytes == system.memory_capacity_bytes


def test_colours_of_the_timeline_are_those_of_the_tables(analysis: Analysis) -> None:
    page = to_html(analysis)
    assert '"matmul",0' in page and '"all_reduce",100' in page
    assert "<h1>toy.onnx</h1>" in page and "folder/toy.onnx" in page
    assert "toy.onnx on plain-a100" in to_text(analysis)
