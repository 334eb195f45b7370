# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules with several entry points, ``prefill`` and ``decode``: each is verified and simulated."""

from __future__ import annotations

import json

import pytest
from tvm import relax

import tvm_distir as td
from tvm_distir.core.rewriting.entries import keep_entry
from tvm_distir.interface.command import main
from tvm_distir.support.errors.tree import ModelError

R = relax.op
BATCH, HEADS, DIM, PLACES = 4, 4, 4, 6
WIDTH = HEADS * DIM


def _tensor(*sizes):
    return relax.TensorType(list(sizes), "float32")


def _attention(builder, name, tokens):
    """``name(x, (keys, values), q, k, v, o) -> (y, keys, values)``, the caches in a tuple."""
    x = relax.Var("x", _tensor(BATCH, tokens, WIDTH))
    part = _tensor(BATCH, PLACES, HEADS, DIM)
    caches = relax.Var("cache", relax.TupleType([part, part]))
    weights = [relax.Var(n, _tensor(WIDTH, WIDTH)) for n in ("q", "k", "v", "o")]
    with builder.function(name, [x, caches, *weights], attrs={"num_input": 2}):
        with builder.dataflow():
            q, k, v = (
                builder.emit(R.reshape(R.matmul(x, w), (BATCH, tokens, HEADS, DIM)))
                for w in weights[:3]
            )
            joined = []
            for index, rows in enumerate((k, v)):
                old = builder.emit(relax.TupleGetItem(caches, index))
                remaining = R.strided_slice(old, [1], [tokens], [PLACES])
                joined.append(builder.emit(R.concat([remaining, rows], axis=1)))
            q, keys, values = (R.permute_dims(t, [0, 2, 1, 3]) for t in (q, *joined))
            scores = R.nn.softmax(R.matmul(q, R.permute_dims(keys, [0, 1, 3, 2])))
            mixed = R.permute_dims(R.matmul(scores, values), [0, 2, 1, 3])
            y = builder.emit(R.matmul(R.reshape(mixed, (BATCH, tokens, WIDTH)), weights[3]))
            out = builder.emit_output(relax.Tuple([y, *joined]))
        builder.emit_func_output(out)


@pytest.fixture(scope="module")
def mod():
    builder = relax.BlockBuilder()
    _attention(builder, "prefill", 3)
    _attention(builder, "decode", 1)
    return builder.get()


@pytest.fixture(scope="module")
def script(mod, tmp_path_factory):
    path = tmp_path_factory.mktemp("entries") / "m.py"
    path.write_text(mod.script(show_meta=True), encoding="utf-8")
    return path


def rules(function):
    """Heads cut, caches too."""
    cut = {"q": "S[1]", "k": "S[1]", "v": "S[1]", "o": "S[0]"}
    return [{"function": function, "param": n, "placement": p} for n, p in cut.items()]


PLAN = {"schema_version": 1, "mesh": {"tp": 2}, "rules": [*rules("prefill"), *rules("decode")]}


@pytest.mark.parametrize("entry", ["prefill", "decode"])
def test_each_entry_is_verified_with_its_caches(mod, entry):
    plan = td.Plan.from_dict({**PLAN, "rules": rules(entry)})
    report = td.verify(mod, plan, entry=entry)
    assert report.equal and len(report.outputs) == 3
    assert [c.kind for c in report.collectives] == ["all_reduce"]


def test_one_module_distributed_as_a_whole_is_verified_by_its_entries(mod):
    dist = td.distribute(mod, td.Plan.from_dict(PLAN))
    assert td.verify(mod, dist=dist, entry="decode").equal
    with pytest.raises(ModelError, match=r"DIST0341 module: .*decode, prefill.*--entry NAME"):
        td.export(dist)


@pytest.mark.parametrize("form", ["nested", "named"])
def test_inputs_of_tuples_are_given_nested_or_by_name(mod, form):
    drawn = td.execution.draw_inputs(keep_entry(mod, "decode"))
    x, keys, values, *weights = drawn
    names = ["x", "cache_0", "cache_1", "q", "k", "v", "o"]
    passed = [x, (keys, values), *weights] if form == "nested" else dict(zip(names, drawn))
    plan = td.Plan.from_dict({**PLAN, "rules": rules("decode")})
    assert td.verify(mod, plan, entry="decode", inputs=passed).equal


def test_the_command_takes_one_entry(script, tmp_path, capsys):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(PLAN), encoding="utf-8")
    requests = [str(script), "--plan", str(plan), "--entry", "decode", "--json"]
    assert main(["verify", *requests, "--engine", "virtual"]) == 0
    assert json.loads(capsys.readouterr().out)["equal"]
    assert main(["analyze", *requests, "--system", "dgx-a100"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert [c["kind"] for c in reported["collectives"]] == ["all_reduce"]


@pytest.mark.parametrize("entry", [[], ["--entry", "decod"]])
def test_the_command_says_which_entries_there_are(script, capsys, entry):
    requests = [str(script), *entry, "--strategy", "tensor_parallel", "--mesh", "tp=2"]
    assert main(["verify", *requests, "--engine", "virtual"]) == (2 if entry else 1)
    reported = capsys.readouterr().err
    assert "DIST0341" in reported and "decode, prefill" in reported
