# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Indices outside of what they index: inputs are refused, computed ones read zeros."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_distir as td
from tvm_distir.core.ir.types import named_leaves
from tvm_distir.core.ops.index_ranges import input_index_ranges
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.support.errors.tree import EngineError
from tvm_distir.transforms import kernel_passes, repair_kernels

TABLE = np.arange(1, 33, dtype="float32").reshape(8, 4)
IDS = np.array([[0, 7, 3], [1, 2, 6]])


def module(write, *types):
    builder = relax.BlockBuilder()
    params = [relax.Var(f"p{i}", relax.TensorType(list(s), d)) for i, (s, d) in enumerate(types)]
    with builder.function("main", params, {"num_input": len(params)}):
        with builder.dataflow():
            result = builder.emit_output(write(builder, *params))
        builder.emit_func_output(result)
    return builder.finalize()


def distributed(mod, *rules):
    plan = {
        "schema_version": 1,
        "mesh": {"tp": 2},
        "rules": [{"param": name, "placement": placement} for name, placement in rules],
    }
    return td.distribute(mod, td.Plan.from_dict(plan))


def take(builder, table, ids):
    return relax.op.take(table, ids, axis=0)


def counted_take(builder, table, ids):
    below = builder.emit(relax.op.less(ids, relax.const(0, "int64")))
    moved = builder.emit(relax.op.add(ids, relax.const(8, "int64")))
    return relax.op.take(table, builder.emit(relax.op.where(below, moved, ids)), axis=0)


def with_id(value):
    ids = IDS.copy()
    ids[1, 2] = value
    return ids


TYPES = (((8, 4), "float32"), ((2, 3), "int64"))
ENGINES = ("virtual", "threads")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("value", [8, -1, 100_000])
def test_input_outside_of_its_table_is_refused(engine, value):
    dist = distributed(module(take, *TYPES), ("p0", "S[0]"))
    with pytest.raises(EngineError, match=r"at \[1, 2\]") as caught:
        td.run(dist, [TABLE, with_id(value)], engine=engine)
    assert caught.value.code == "DIST0619"


def test_reference_and_parts_of_an_earlier_run_are_refused_as_well():
    mod = module(take, *TYPES)
    with pytest.raises(EngineError) as caught:
        Reference(mod).run([TABLE, with_id(8)])
    assert caught.value.code == "DIST0619"
    same = module(lambda builder, ids: relax.op.add(ids, relax.const(1, "int64")), TYPES[1])
    (parts,) = td.run(distributed(same, ("p0", "S[0]")), [IDS], outputs="sharded")
    with pytest.raises(EngineError) as caught:
        td.run(distributed(mod, ("p1", "S[0]")), [TABLE, parts])
    assert caught.value.code == "DIST0619"


def test_deployed_folder_refuses(tmp_path):
    dist = distributed(module(take, *TYPES), ("p0", "S[0]"))
    td.deploy(dist, tmp_path / "model")
    loaded = td.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.run([TABLE, IDS])[0], TABLE[IDS])
    with pytest.raises(EngineError) as caught:
        loaded.run([TABLE, with_id(-1)])
    assert caught.value.code == "DIST0619"


@pytest.mark.parametrize(("value", "allowed"), [(-1, True), (-8, True), (-9, False), (8, False)])
def test_indices_that_count_from_the_end(value, allowed):
    dist = distributed(module(counted_take, *TYPES), ("p0", "S[0]"))
    ids = with_id(value)
    if allowed:
        np.testing.assert_array_equal(td.run(dist, [TABLE, ids])[0], TABLE[ids])
        return
    with pytest.raises(EngineError) as caught:
        td.run(dist, [TABLE, ids])
    assert caught.value.code == "DIST0619"


@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_modes_that_allow_all_indices(mode):
    mod = module(lambda builder, t, ids: relax.op.take(t, ids, axis=0, mode=mode), *TYPES)
    ids = with_id(11)
    result = td.run(distributed(mod, ("p0", "S[0]")), [TABLE, ids])[0]
    np.testing.assert_array_equal(result, np.take(TABLE, ids, axis=0, mode=mode))


def test_ignored_targets_are_allowed_and_others_are_not():
    mod = module(
        lambda builder, logits, targets: relax.op.nn.nll_loss(logits, targets, reduction="sum"),
        ((4, 8), "float32"),
        ((4,), "int64"),
    )
    dist = distributed(mod, ("p0", "S[0]"))
    logits = TABLE.reshape(4, 8)
    targets = np.array([1, -100, 7, 0])
    expected = -sum(logits[row, target] for row, target in enumerate(targets) if target >= 0)
    np.testing.assert_array_equal(td.run(dist, [logits, targets])[0], expected)
    targets[0] = 8
    with pytest.raises(EngineError) as caught:
        td.run(dist, [logits, targets])
    assert caught.value.code == "DIST0619"


def shifted(builder, ids):
    return builder.emit(relax.op.add(ids, relax.const(1 << 40, "int64")))


COMPUTED = {
    "take": lambda b, t, i: relax.op.take(t, shifted(b, i), axis=0),
    "gather_elements": lambda b, t, i: relax.op.gather_elements(
        t, b.emit(relax.op.broadcast_to(shifted(b, i), (3, 4))), axis=0
    ),
    "scatter_elements": lambda b, t, i: relax.op.scatter_elements(
        t,
        b.emit(relax.op.broadcast_to(shifted(b, i), (3, 4))),
        b.emit(relax.op.ones((3, 4), "float32")),
        axis=0,
    ),
    "take_backward": lambda b, t, i: relax.op.grad.take_backward(
        b.emit(relax.op.ones((3, 4), "float32")),
        t,
        b.emit(relax.op.reshape(shifted(b, i), (3,))),
        axis=0,
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_indices_leave_no_buffer(name):
    ids = np.array([[0], [2], [5]])
    write = COMPUTED[name]
    mod = module(write, TYPES[0], ((3, 1), "int64"))
    result = Reference(mod).run([TABLE, ids])[0]
    remaining = name == "scatter_elements"  # nothing is written
    np.testing.assert_array_equal(result, TABLE if remaining else np.zeros_like(result))
    np.testing.assert_array_equal(td.run(distributed(mod, ("p0", "S[0]")), [TABLE, ids])[0], result)


def test_what_is_chosen_by_a_condition_may_hold_anything():
    def write(builder, table, ids):
        known = builder.emit(relax.op.greater(ids, relax.const(-1, "int64")))
        near = builder.emit(relax.op.where(known, ids, relax.const(0, "int64")))
        return relax.op.take(table, near, axis=0)

    ids = with_id(-100)
    result = td.run(distributed(module(write, *TYPES), ("p0", "S[0]")), [TABLE, ids])[0]
    np.testing.assert_array_equal(result, TABLE[np.maximum(ids, 0)])


def test_no_warning_of_tvm_is_shown(capfd):
    Reference(module(take, ((9, 5), "float32"), ((2, 3), "int64")))
    assert "segfaults" not in capfd.readouterr().err


def test_soft_suppression_of_boxes_compiles_and_selects_as_the_kernel_of_tvm_does():
    """The repair of its nested extremes and computed indices does not multiply the kernel."""

    def write(builder, *params):
        return builder.emit(relax.op.vision.non_max_suppression(*params, soft_nms_sigma=0.5))

    count = 5
    types = (((1, count, 6), "float32"), ((1,), "int32"), ((1, count), "int32"))
    stock = tvm.transform.Sequential(kernel_passes())(module(write, *types))
    repaired = repair_kernels(stock)
    assert len(repaired.script()) < 2 * len(stock.script())  # was 8 times as long
    rng = np.random.default_rng(0)
    corners = rng.uniform(size=(1, count, 2))
    columns = np.zeros((1, count, 1)), rng.uniform(size=(1, count, 1)), corners, corners + 0.5
    boxes = np.concatenate(columns, axis=2).astype("float32")
    data = boxes, np.array([count], "int32"), np.arange(count, dtype="int32")[None]
    results = []
    for mod in (stock, repaired):
        executable = tvm.compile(mod, tvm.target.Target({"kind": "llvm", "opt-level": 0}))
        machine = relax.VirtualMachine(executable, tvm.cpu())
        results.append([x.numpy() for x in machine["main"](*map(tvm.runtime.tensor, data))])
    for want, got in zip(*results, strict=True):
        np.testing.assert_array_equal(got, want)
    assert (results[0][0][0, :4, 1] != np.sort(boxes[0, :, 1])[:0:-1]).any()  # some have decayed


@pytest.mark.parametrize("field", [0, 1, 2])
def test_a_field_of_a_tuple_has_the_range_of_its_table(field):
    """Tables of 8, 5 and 3 rows, each read at the indices of one field of the second parameter."""
    builder = relax.BlockBuilder()
    tables = [relax.Var(f"t{n}", relax.TensorType([n, 4], "float32")) for n in (8, 5, 3)]
    fields = [relax.TensorType([6], "int64")] * 3
    given = relax.Var("ids", relax.TupleType(fields))
    with builder.function("main", [tables[field], given]):
        with builder.dataflow():
            ids = builder.emit(relax.TupleGetItem(given, field))
            result = builder.emit_output(relax.op.take(tables[field], ids, axis=0))
        builder.emit_func_output(result)
    mod = builder.get()
    ((key, allowed),) = input_index_ranges(mod, mod["main"]).items()
    names = [suffix for suffix, _ in named_leaves("", given.ty)]
    assert key == (1, names[field]) and (allowed.low, allowed.high) == (0, (8, 5, 3)[field])
