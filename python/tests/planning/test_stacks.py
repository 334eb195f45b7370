# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Stacks pin what their files say, stated options win, and programs are as counted by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.interface.command.app import main
from tvm_distir.interface.command.resumable import begin
from tvm_distir.performance import Profile
from tvm_distir.planning import Stack, StepOptions, Study, stack_names
from tvm_distir.support import HardwareError, UsageError

pytestmark = pytest.mark.quick
LAYERS, MICRO_BATCHES = 4, 2
MODEL = f"zoo:llama3?size=tiny,layers={LAYERS},seq=64,dtype=bfloat16"
DELAYED = "fused-fp8-delayed"
PAGE = Path(__file__).parents[3] / "docs" / "stacks.md"


SIZES = [
    (str(param.name), math.prod(int(n) for n in param.ty.shape))
    for param in td.load_model(MODEL).mod["main"].params[1:]
]
ELEMENTS = sum(size for _, size in SIZES)
OF_LAYERS = sum(size for name, size in SIZES if name.startswith("layers"))


def step(strategy: str, mesh: dict[str, int], stack: str, **more: Any) -> Any:
    """Return the analysis of a step of Adam in bfloat16 with float32 masters."""
    return td.analyze(
        MODEL, strategy=strategy, mesh=mesh, system="h100", stack=stack,
        train={"optimizer": "adamw"}, **{"batch": 8, **more},
    )  # fmt: skip


def sent(result: Any) -> dict[tuple[str, str], tuple[int, int]]:
    """Return how often collectives are run, and the bytes that a device sends, by kind and axis.

    Scalars, such as the norm of gradients, are left out.
    """
    return {
        (total.kind, total.mesh_axis): (total.count, total.wire_bytes_per_device)
        for total in result.simulation.collectives
        if total.bytes_per_device >= 1024 * total.count
    }


def test_every_stack_has_a_section_and_reads_without_faults() -> None:
    sections = PAGE.read_text(encoding="utf-8") if PAGE.exists() else None
    for name in stack_names():
        stack = Stack.load(name)
        assert stack.name == name and stack.source and stack.leaves_open
        assert sections is None or f"## `{name}`" in sections


def test_best_pins_nothing() -> None:
    options: dict[str, Any] = {
        "strategy": "fsdp", "mesh": {"dp": 4}, "system": "h100", "batch": 8, "train": True,
    }  # fmt: skip
    plain, best = (td.analyze(MODEL, **options, **more) for more in ({}, {"stack": "best"}))
    assert plain.time_s == best.time_s and plain.peak_memory_bytes == best.peak_memory_bytes
    assert "stack best" in best.summary and plain.report.band == best.report.band


def test_stated_options_win_over_the_stack_and_are_said() -> None:
    result = td.analyze(
        MODEL, strategy="fsdp", mesh={"dp": 4}, system="h100", stack="torch-fsdp", batch=8,
        train=True, kernels="fused", overlap_activations=False, allocator="framework",
    )  # fmt: skip
    assert result.study.kernels == "fused" and result.study.bucket_bytes == "unit"
    said = [line for line in result.summary.splitlines() if "as the stack torch-fsdp pins" in line]
    assert [line.split()[0] for line in said] == ["kernels", "allocator"]
    assert result.to_dict()["basis"]["stack"] == "torch-fsdp"


def test_a_profile_with_the_name_that_the_stack_pins_is_not_said() -> None:
    pinned = Profile.resolve(str(Stack.load("torch-fsdp").options.kernels))
    options = StepOptions(MODEL, stack="torch-fsdp", kernels=pinned)
    assert options.stack_notes == ()


def test_words_for_recomputation_are_those_of_the_stack() -> None:
    for stack, policy in (("megatron-core", "core"), ("torch-fsdp", "alternate"), ("best", None)):
        study = Study(MODEL, system="h100", stack=stack, recompute="selective")
        assert study.recompute == (policy or "selective")


def test_words_for_recomputation_by_function_and_call_are_those_of_the_stack() -> None:
    for given, policies in (
        ("layer=selective,head*=full", "layer=core,head*=checkpoint"),
        ("layer = selective*2 + cut:0.5", "layer =core*2 + cut:0.5"),
        ({"layer": "full*2+none"}, {"layer": "checkpoint*2+none"}),
    ):
        study = Study(MODEL, system="h100", stack="megatron-core", recompute=given)
        assert study.recompute == policies


def test_the_host_of_a_stack_replaces_assumed_constants_alone() -> None:
    stack = Stack.load("megatron-lm")
    for name, replaced in (("a100", True), ("dgx-a100-megatron", False)):
        system = td.System.load(name)
        changed = stack.on(system).constant("python_launch_us") != system.constant(
            "python_launch_us"
        )
        fitted = system.constants["python_launch_us"].source.startswith("fitted")
        assert changed == replaced == (not fitted)


def test_a_file_is_a_stack(tmp_path: Path) -> None:
    content = {
        "schema_version": 1, "name": "mine", "description": "d", "source": "s",
        "leaves_open": "o", "options": {"kernels": "eager"},
    }  # fmt: skip
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    forms: tuple[Any, ...] = (path, str(path))
    for given in forms:
        assert Study(MODEL, system="h100", stack=given).kernels == "eager"
    path.write_text(json.dumps({**content, "pins": {}}), encoding="utf-8")
    with pytest.raises(HardwareError, match="DIST0703"):
        Stack.load(path)
    with pytest.raises(HardwareError, match=r"DIST0701.*megatron-core"):
        StepOptions(MODEL, stack="megatron-cor").stack_values()


@pytest.mark.parametrize(
    ("key", "value"), [("bucket_bytes", "64MB"), ("allocator", "tvm"), ("allocator", "glibc")]
)
def test_options_that_no_step_takes_are_refused(tmp_path: Path, key: str, value: str) -> None:
    path = tmp_path / "mine.json"
    texts = dict.fromkeys(("name", "description", "source", "leaves_open"), "x")
    path.write_text(json.dumps({"schema_version": 1, **texts, "options": {key: value}}), "utf-8")
    with pytest.raises(HardwareError, match=rf"DIST0703.*options/{key}"):
        Stack.load(path)


def test_what_is_no_stack_is_refused() -> None:
    wrong: Any = 3
    with pytest.raises(UsageError, match=r"DIST0152.*int.*megatron-core"):
        Study(MODEL, system="h100", stack=wrong)


def test_tensor_parallelism_of_megatron_is_as_counted_by_hand() -> None:
    """Per layer and micro-batch 6 gathers, 2 of them again for gradients of weights, and 4 sums.

    Per micro-batch the head gathers its input, also again, and its gradient is summed; the table
    sums its rows, whose gradient is gathered.
    """
    result = step(
        "zero:stage=1+megatron:sequence=1", {"dp": 2, "tp": 2}, "megatron-core",
        micro_batches=MICRO_BATCHES,
    )  # fmt: skip
    found = sent(result)
    assert found["all_gather", "tp"][0] == (6 * LAYERS + 3) * MICRO_BATCHES
    assert found["reduce_scatter", "tp"][0] == (4 * LAYERS + 2) * MICRO_BATCHES
    assert {kind for kind, axis in found if axis == "tp"} == {"all_gather", "reduce_scatter"}


def test_the_distributed_optimizer_sums_and_gathers_once_per_step() -> None:
    """Float32 gradients and 16-bit weights, whatever the number of micro-batches."""
    one, two = (
        sent(step("zero:stage=1", {"dp": 4}, "megatron-core", micro_batches=n)) for n in (1, 2)
    )
    assert one == two and set(one) == {("all_gather", "dp"), ("reduce_scatter", "dp")}
    assert one["all_gather", "dp"][1] == 2 * ELEMENTS * 3 // 4
    assert one["reduce_scatter", "dp"] == (LAYERS, 4 * ELEMENTS * 3 // 4)


def test_float8_of_megatron_stores_and_gathers_weights_of_layers_in_eight_bits() -> None:
    """NeMo's recipe (delayed scaling, ``fp8_param_gather``): norms, table and head stay 16 bits."""
    assert Study(MODEL, system="h100", stack="megatron-core", kernels="fp8").kernels == DELAYED
    assert Study(MODEL, system="h100", kernels="fused-fp8").kernels == "fused-fp8"
    narrow = sum(size for name, size in SIZES if "proj" in name)
    for count in (1, 2):
        more = {"micro_batches": count, "kernels": "fp8"}
        found = sent(step("zero:stage=1", {"dp": 4}, "megatron-core", **more))
        assert found["all_gather", "dp"][1] == (2 * ELEMENTS - narrow) * 3 // 4
        assert found["reduce_scatter", "dp"] == (LAYERS, 4 * ELEMENTS * 3 // 4)


def test_float8_of_megatron_gathers_shards_of_activations_in_eight_bits() -> None:
    """Six gathers of a layer feed products in float8; those of the head and the table do not."""
    wide, narrow = (
        sent(
            step(
                "megatron:sequence=1", {"tp": 2}, "megatron-core", micro_batches=MICRO_BATCHES,
                kernels=kernels,
            )
        )
        for kernels in ("fused", "fp8")
    )  # fmt: skip
    assert narrow["reduce_scatter", "tp"] == wide["reduce_scatter", "tp"]
    (count, whole), (same, sent_bytes) = (each["all_gather", "tp"] for each in (wide, narrow))
    assert count == same == (6 * LAYERS + 3) * MICRO_BATCHES
    of_layers = whole * 6 * LAYERS // (6 * LAYERS + 3)
    assert sent_bytes == whole - of_layers // 2


def test_sums_of_gradients_do_not_depend_on_micro_batches() -> None:
    """Float32, in full on each device: 4 bytes per parameter, but for blocks of 512 bytes."""
    for count in (2, 4):
        result = step(
            "zero:stage=1", {"dp": 2}, "megatron-core", batch=2 * count, micro_batches=count
        )
        held = result.simulation.lanes[0].account.at_peak["gradients"]
        assert 4 * ELEMENTS <= held <= 4 * ELEMENTS + 512 * len(SIZES)


def test_fsdp_gathers_each_block_twice_and_sums_it_once() -> None:
    found = sent(step("fsdp", {"dp": 4}, "torch-fsdp", batch=64))
    assert set(found) == {("all_gather", "dp"), ("reduce_scatter", "dp")}
    gathered, summed = 2 * (ELEMENTS + OF_LAYERS) * 3 / 4, 2 * ELEMENTS * 3 / 4
    assert found["all_gather", "dp"][1] == pytest.approx(gathered, rel=0.01)
    assert found["reduce_scatter", "dp"][1] == pytest.approx(summed, rel=0.01)


def test_stacks_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    stacks = ("megatron-core", "torch-fsdp")
    words = ["compare", MODEL, "--strategy", "fsdp", "--mesh", "dp=2", "--system", "h100"]
    words += ["--train", "--batch", "4", "--json"]
    assert main([*words, *(word for name in stacks for word in ("--stack", name))]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["name"] for row in rows] == [f"fsdp by {name}" for name in stacks]


def test_names_of_kernels_are_those_of_the_stack_in_sweeps_and_searches() -> None:
    """These take the kernels of their system, whose profile the stack's word names."""
    given = {"system": "h100", "stack": "megatron-core"}
    for kernels, expected in (("fp8", DELAYED), ("mxfp8", "fused-mxfp8"), (None, "fused")):
        step = StepOptions(MODEL, **given, kernels=kernels)
        assert begin(step, "--compare", None).kernels == expected
    with pytest.raises(UsageError, match="DIST0701"):
        begin(StepOptions(MODEL, system="h100", kernels="fp8"), "--compare", None)
