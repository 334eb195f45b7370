# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""StableHLO out: what is written is read back and computes the same; shardings, forms, refusals."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tvm_distir import transforms as transform
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.engines.xla.engine import XlaEngine
from tvm_distir.execution.runtime.engines.xla.process import XlaProcess
from tvm_distir.execution.runtime.engines.xla.worker import collectives
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.interface.command import main
from tvm_distir.models.mlir.parser import parse_module
from tvm_distir.support.errors.tree import DependencyError, EngineError, ModelError, UsageError

MESH = {"dp": 2, "tp": 2}


def small(name, **keys):
    return td.zoo.build(name, {"size": "tiny", "layers": "1", "batch": "4", **keys})


@pytest.fixture(scope="module")
def gpt():
    mod = small("gpt")
    return mod, td.planning.make_plan(mod, "data_parallel+tensor_parallel", MESH)


def read_back(mod):
    """The module as it is read again: names say nothing of weights, so all are data."""
    return td.from_stablehlo(td.to_stablehlo(mod), inline=0)


def check(mod, back):
    inputs = draw_inputs(mod, 0)
    names = [str(n) for n in mod["main"].attrs["dist.param_names"]]
    order = [names.index(str(n)) for n in back["main"].attrs["dist.param_names"]]
    result = Reference(back).run([inputs[i] for i in order])
    for array, other in zip(result, Reference(mod).run(inputs), strict=True):
        np.testing.assert_allclose(array, other, 2e-4, 2e-5 * np.abs(other).max())


@pytest.mark.parametrize("name", ["llama", "moe"])
def test_models_are_read_back(name):
    mod = small(name)
    back = read_back(mod)
    check(mod, back)
    assert len(back.functions) == len(mod.functions)  # layers stay functions


def test_a_training_step_is_read_back(gpt):
    mod = td.train_step(gpt[0])
    mod["main"] = mod["main"].with_attr(
        "dist.param_names", [str(p.name) for p in mod["main"].params]
    )
    check(mod, read_back(mod))


def test_annotations_are_shardings(gpt):
    mod, plan = gpt
    text = td.to_stablehlo(transform.AnnotateSharding(plan)(mod))
    assert 'sdy.mesh @mesh0 = <["dp"=2, "tp"=2]>' in text
    assert 'sdy.sharding = #sdy.sharding<@mesh0, [{"dp"}, {}]>' in text
    back = td.from_stablehlo(text, inline=0)
    report = td.verify(back, None)
    assert report.equal
    assert {c.mesh_axis for c in report.collectives} == {"tp"}


def test_distributed_modules_say_how_all_lies(gpt):
    mod, plan = gpt
    placed = transform.PropagateSharding()(transform.AnnotateSharding(plan)(mod))
    for module in (placed, transform.LegalizeRedistribute()(placed)):
        text = td.to_stablehlo(module)
        assert "sdy.sharding_constraint" in text and "stablehlo.all_reduce" not in text
        parse_module(text)


def operations(text):
    result, todo = [], [op for op in parse_module(text).operations if op.regions]
    while todo:
        op = todo.pop()
        result.append(op.name)
        todo += [inner for block in op.regions for inner in block.operations]
    return result


def test_local_modules_have_collectives(gpt):
    local = td.distribute(*gpt)
    text = td.to_stablehlo(local, "replicas")
    assert "mhlo.num_replicas = 4" in text and "sdy.sharding" not in text
    assert operations(text).count("stablehlo.all_reduce") > 0
    assert "replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>" in text
    with pytest.raises(ModelError, match="DIST0380"):
        td.to_stablehlo(local, "manual")  # its vocabulary of 250 is not cut evenly
    assert td.to_stablehlo(local) == text


def test_manual_computations():
    mod = small("moe")
    plan = td.planning.make_plan(mod, "data_parallel+expert_parallel", {"dp": 2, "ep": 2})
    text = td.to_stablehlo(td.distribute(mod, plan))
    assert 'manual_axes={"dp", "ep"}' in text and "use_global_device_ids" in text
    assert "mhlo.num_partitions = 4" in text


def test_what_has_no_form():
    x = relax.Var("x", relax.TensorType([4], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.selu(x), "y")
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    with pytest.raises(ModelError) as caught:
        td.to_stablehlo(builder.get())
    assert caught.value.code == "DIST0380" and "main/y (nn.selu)" in str(caught.value)
    with pytest.raises(UsageError, match="DIST0152"):
        td.to_stablehlo(builder.get(), "replica")


def test_convert_writes_stablehlo(tmp_path):
    path = tmp_path / "m.mlir"
    assert main(["convert", "zoo:gpt?size=tiny,layers=1", str(path)]) == 0
    assert path.read_text(encoding="utf-8").startswith("module attributes")
    plan = ["--strategy", "data_parallel", "--mesh", "dp=2"]
    assert main(["convert", str(path), str(tmp_path / "l.mlir"), *plan]) == 0
    assert "sdy.manual_computation" in (tmp_path / "l.mlir").read_text(encoding="utf-8")


def test_engine_xla_without_jax(gpt, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jax" else find(name)
    )
    with pytest.raises(DependencyError, match="DIST0111"):
        td.verify(*gpt, engine="xla")
    with pytest.raises(EngineError, match="DIST0615"):
        XlaEngine("/bin/false").run(td.distribute(*gpt), draw_inputs(gpt[0], 0))


COMPILED = """
  %a = f32[8,64]{1,0} all-gather(%p), channel_id=1, replica_groups=[2,2]<=[4], dimensions={0}
  ROOT %b = (f32[16]{0}, bf16[3,5]{1,0}) all-reduce(%p, %q), replica_groups={{0,2},{1,3}}
  %c = pred[] all-reduce(%p), replica_groups={}, to_apply=%and
  %d = (s64[2]{0}, s64[4]{0}) all-gather-start(%p), replica_groups={{0,1,2,3}}
  %e = f8e4m3fn[6]{0} collective-permute(%p), source_target_pairs={{0,1},{1,2}}
  %f = f32[8,64]{1,0} add(%a, %all-reduce.1)
"""


def test_collectives_of_what_xla_compiled_are_read():
    assert collectives(COMPILED, 4) == [
        ("all-gather", 2048, 2),
        ("all-reduce", 64 + 30, 2),
        ("all-reduce", 1, 4),
        ("all-gather", 32, 4),
        ("collective-permute", 6, 4),
    ]


def test_engine_xla(gpt):
    pytest.importorskip("jax", reason="the extra jax is not installed")
    engine = XlaEngine(sys.executable)
    assert td.verify(*gpt, engine=engine).equal
    assert engine.compiled["all-reduce"] > 0


STUCK = """#!{python}
import os, sys, time
print('{{"version": "none"}}', flush=True)
for line in sys.stdin:
    if {dies}:
        os._exit(3)
    time.sleep(3600)
"""


@pytest.mark.parametrize(("dies", "code"), [(False, "DIST0617"), (True, "DIST0615")])
def test_a_process_of_xla_that_does_not_answer_is_killed(tmp_path, monkeypatch, dies, code):
    python = tmp_path / "python"
    python.write_text(STUCK.format(python=sys.executable, dies=dies), encoding="utf-8")
    python.chmod(0o700)
    (tmp_path / "kept").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "kept"))
    worker = XlaProcess(str(python), 1)
    pid = worker._process.pid
    with pytest.raises(EngineError) as caught:
        worker.run("", [np.zeros(1)], 1, replicas=True, timeout_s=0.3)
    assert caught.value.code == code
    assert not worker.is_alive and list((tmp_path / "kept").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    again = XlaProcess(str(python), 1)  # and another one can be asked
    again.kill()
    assert not again.is_alive


def test_a_process_of_xla_that_does_not_start_is_killed(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 3600\n", encoding="utf-8")
    python.chmod(0o700)
    with pytest.raises(EngineError, match=r"DIST0617 .*start within 0\.2 s"):
        XlaProcess(str(python), 1, timeout_s=0.2)
