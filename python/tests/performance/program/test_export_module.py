# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Level-5 modules exported: kinds, work and bytes against arithmetic written out here."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import ir, relax, tirx

import tvm_distir
from tvm_distir.core.ir.mesh import mesh_shape
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.placement import local_shape, parse_placement
from tvm_distir.performance.program.exporter import export
from tvm_distir.performance.program.program import Program
from tvm_distir.support.errors.tree import SimulationError


class Module:
    """Builds a level-5 module: private functions, then entries."""

    def __init__(self, *axes):
        start, self.meshes = 0, []
        for each in axes:
            self.meshes.append(tvm_distir.device_mesh(each, start=start))
            start += int(np.prod(list(each.values())))
        self.axes = [list(each) for each in axes]
        self.bb = relax.BlockBuilder()

    def private(self, name, params, body):
        args = [relax.Var(n, relax.TensorType(list(s), d)) for n, s, d in params]
        with self.bb.function(name, args, private=True):
            with self.bb.dataflow():
                out = self.bb.emit_output(body(self.bb, *args))
            self.bb.emit_func_output(out)
        return self.bb.get().get_global_var(name)

    def entry(self, inputs, body, mesh=0, pure=True, attrs=None, roles=None):
        """``inputs``: (name, whole shape, dtype, placement)."""
        name = "main" if len(self.meshes) == 1 else f"main_mesh{mesh}"
        shape = mesh_shape(self.meshes[mesh])
        params = [
            relax.Var(n, relax.TensorType(local_shape(s, parse_placement(p), shape), d))
            for n, s, d, p in inputs
        ]
        items = [
            {"index": i, "name": n, "shape": list(s), "dtype": d, "placement": p}
            for i, (n, s, d, p) in enumerate(inputs)
        ]
        for item, role in zip(items, roles or ()):
            item["role"] = role
        io = {"mesh": mesh, "inputs": items, "outputs": []}
        with self.bb.function(name, params, {"dist.io": io, **(attrs or {})}, pure=pure):
            if pure:
                with self.bb.dataflow():
                    out = self.bb.emit_output(body(self.bb, *params))
            else:
                out = body(self.bb, *params)
            self.bb.emit_func_output(out)
        return self

    def done(self):
        mod = self.bb.finalize()
        mod.update_global_info("mesh", list(self.meshes))
        return mod.with_attr("mesh_axes", self.axes)

    def export(self):
        program = export(self.done())
        assert Program.from_json(program.to_json()) == program
        return program


def ops_of(program, name="main"):
    return {op.name: op for op in program.functions[name].ops}


def values_of(program, indices, name="main"):
    return [program.functions[name].values[i] for i in indices]


def test_tensor_parallel_mlp():
    """x (8, 16) by A (16, 64) by columns and B (64, 16) by rows over tp=4, then an all-reduce."""
    created = Module({"dp": 2, "tp": 4})

    def body(bb, x, a, b):
        h = bb.emit(relax.op.matmul(x, a), "h")
        g = bb.emit(relax.op.nn.relu(h), "g")
        y = bb.emit(relax.op.matmul(g, b), "y")
        return bb.emit(ops.all_reduce(y, created.meshes[0], [1], "sum"), "r")

    created.entry(
        [
            ("x", (8, 16), "float32", "S[0], R"),
            ("a", (16, 64), "float32", "R, S[1]"),
            ("b", (64, 16), "float32", "R, S[0]"),
        ],
        body,
    )
    program = created.export()
    (mesh,) = program.meshes
    assert (mesh.name, mesh.axes, mesh.shape) == ("mesh0", ("dp", "tp"), (2, 4))
    assert mesh.device_ids == tuple(range(8))
    result = ops_of(program)
    assert list(result)[:4] == ["h", "g", "y", "r"]
    # Local shapes: x (4, 16), A (16, 16), B (16, 16).
    h = result["h"]
    assert (h.kind, h.op, h.flops) == ("compute", "relax.matmul", 2 * 4 * 16 * 16)
    assert (h.bytes_read, h.bytes_written) == (4 * (4 * 16 + 16 * 16), 4 * 4 * 16)
    assert (h.kernel_class, h.dtype, h.modelled) == ("matmul", "float32", True)
    assert (result["g"].bytes_read, result["g"].bytes_written) == (256, 256)
    r = result["r"]
    assert (r.kind, r.collective, r.mesh_axes, r.group_size) == (
        "collective",
        "all_reduce",
        (1,),
        4,
    )
    assert r.payload_bytes == 4 * 16 * 4
    x, a, b = values_of(program, program.functions["main"].params)
    assert [v.role for v in (x, a, b)] == ["input", "weight", "weight"]
    assert (a.shape, a.whole_shape, a.placement, a.bytes) == ((16, 16), (16, 64), "R, S[1]", 1024)


@pytest.mark.parametrize(
    ("make", "kind", "result_bytes"),
    [
        (lambda x, m: ops.all_gather(x, m, 0, 0), "all_gather", 4 * 8 * 8 * 4),
        (lambda x, m: ops.reduce_scatter(x, m, 0, 1, "sum"), "reduce_scatter", 8 * 8),
        (lambda x, m: ops.all_to_all(x, m, 0, 0, 1), "all_to_all", 8 * 8 * 4),
        (lambda x, m: ops.collective_permute(x, m, 0, 1), "collective_permute", 8 * 8 * 4),
    ],
)
def test_collectives(make, kind, result_bytes):
    created = Module({"x": 4})
    created.entry(
        [("x", (32, 8), "float32", "S[0]")],
        lambda bb, x: bb.emit(make(x, created.meshes[0]), "c"),
    )
    op = ops_of(created.export())["c"]
    assert (op.kind, op.collective, op.group_size) == ("collective", kind, 4)
    assert op.payload_bytes == result_bytes


def test_local_ops_of_the_plugin_are_copies():
    created = Module({"x": 4})

    def body(bb, x):
        a = bb.emit(ops.local_slice(x, created.meshes[0], 0, 0), "a")
        b = bb.emit(ops.partial(a, created.meshes[0], [0], "sum"), "b")
        i = bb.emit(ops.axis_index(created.meshes[0], 0), "i")
        return bb.emit(relax.op.add(b, relax.op.astype(i, "float32")), "c")

    created.entry([("x", (8, 2), "float32", "R")], body)
    result = ops_of(created.export())
    for name in ("a", "b"):
        op = result[name]
        assert (op.kind, op.bytes_read, op.bytes_written) == ("compute", 16, 16)
    assert (result["i"].kind, result["i"].bytes_written) == ("compute", 8)


def test_views_and_transposes():
    created = Module({"x": 1})

    def body(bb, x, w):
        v = bb.emit(relax.op.reshape(x, (2, 4, 6)), "v")
        e = bb.emit(relax.op.expand_dims(v, 0), "e")
        s = bb.emit(relax.op.squeeze(e, [0]), "s")
        t = bb.emit(relax.op.permute_dims(w), "t")  # read by a product alone
        u = bb.emit(relax.op.permute_dims(w), "u")  # and by an addition as well
        y = bb.emit(relax.op.matmul(s, t), "y")
        z = bb.emit(relax.op.matmul(s, u), "z")
        q = bb.emit(relax.op.add(u, u), "q")
        p = bb.emit(relax.op.permute_dims(v, [1, 0, 2]), "p")  # not the last two
        return bb.emit(relax.Tuple([y, z, q, p]))

    created.entry([("x", (8, 6), "float32", "R"), ("w", (5, 6), "float32", "R")], body)
    result = ops_of(created.export())
    kinds = {name: op.kind for name, op in result.items()}
    assert {n for n, kind in kinds.items() if kind == "view"} == {"v", "e", "s", "t"}
    assert kinds["u"] == kinds["p"] == "compute"
    assert (result["u"].bytes_read, result["u"].bytes_written) == (120, 120)


def test_tuples_are_flattened_and_aliases_vanish():
    created = Module({"x": 1})

    def body(bb, x):
        parts = bb.emit(relax.op.split(x, 2, 0), "parts")
        a = bb.emit(relax.TupleGetItem(parts, 1), "a")
        pair = bb.emit(relax.Tuple([a, relax.TupleGetItem(parts, 0)]), "pair")
        b = bb.emit(relax.TupleGetItem(pair, 0), "b")
        return bb.emit(relax.op.concat([b, x], 0), "c")

    created.entry([("x", (4, 2), "float32", "R")], body)
    program = created.export()
    result = ops_of(program)
    assert [n for n in result if not n.startswith("lv")] == ["parts", "c"]
    assert len(result["parts"].outputs) == 2
    assert result["c"].inputs == (result["parts"].outputs[1], program.functions["main"].params[0])


def test_calls_stay_calls():
    """Forty calls of a layer are two functions; a tuple parameter counts its leaves."""
    created = Module({"x": 2})
    kind = relax.TupleType([relax.TensorType([4], "float32"), relax.TensorType([], "float32")])
    pair = relax.Var("pair", kind)
    with created.bb.function("layer", [pair], private=True):
        with created.bb.dataflow():
            out = created.bb.emit_output(relax.op.add(relax.TupleGetItem(pair, 0),
                                                   relax.TupleGetItem(pair, 1)))  # fmt: skip
        created.bb.emit_func_output(out)
    layer = created.bb.get().get_global_var("layer")

    def body(bb, x):
        scale = relax.const(np.float32(2))
        for i in range(40):
            x = bb.emit(ir.Call(layer, [relax.Tuple([x, scale])]), f"y{i}")
        return x

    created.entry([("x", (8,), "float32", "S[0]")], body)
    program = created.export()
    assert list(program.functions) == ["main", "layer"]
    matches = [op for op in program.functions["main"].ops if op.kind == "call"]
    assert len(matches) == 40
    assert all(op.callee == "layer" and len(op.inputs) == 2 for op in matches)
    constants = [v for v in program.functions["main"].values if v.role == "constant"]
    assert [(v.shape, v.bytes) for v in constants] == [((), 4)]
    assert len(program.functions["layer"].params) == 2


def test_results_of_equal_tuple_types_are_declared_by_their_names():
    """Calls that return tuples of the same types, flat and nested: names, shapes and sizes."""
    created = Module({"x": 1})
    x = relax.Var("x", relax.TensorType((8,), "float32"))
    with created.bb.function("layer", [x], private=True):
        with created.bb.dataflow():
            codes = created.bb.emit(relax.op.astype(x, "int8"))
            inner = relax.Tuple([codes])
            out = created.bb.emit_output(relax.Tuple([x, codes, relax.Tuple([x, inner])]))
        created.bb.emit_func_output(out)
    with created.bb.function("pair", [x], private=True):
        with created.bb.dataflow():
            codes = created.bb.emit(relax.op.astype(x, "int8"))
            out = created.bb.emit_output(relax.Tuple([x, codes]))
        created.bb.emit_func_output(out)
    layer, pair = map(created.bb.get().get_global_var, ("layer", "pair"))

    def body(bb, x):
        for i in range(3):
            full = bb.emit(ir.Call(layer, [x]), f"full{i}")
            both = bb.emit(ir.Call(pair, [bb.emit(relax.TupleGetItem(full, 0))]), f"both{i}")
            x = bb.emit(relax.TupleGetItem(both, 0))
        return x

    created.entry([("x", (8,), "float32", "R")], body)
    function = created.export().functions["main"]
    rows = [(v.name, v.shape, v.dtype, v.bytes) for v in function.values]
    floats, codes = ((8,), "float32", 32), ((8,), "int8", 8)
    expected = [("x", *floats)]
    for i in range(3):
        fields = {"0": floats, "1": codes, "2.0": floats, "2.1.0": codes}
        expected += [(f"full{i}.{name}", *what) for name, what in fields.items()]
        expected += [(f"both{i}.0", *floats), (f"both{i}.1", *codes)]
    assert rows == expected
    calls = [op for op in function.ops if op.kind == "call"]
    read = [op.inputs[0] for op in calls]
    assert [rows[k][0] for k in read] == [
        "x", "full0.0", "both0.0", "full1.0", "both1.0", "full2.0"
    ]  # fmt: skip
    assert rows[function.results[0]][0] == "both2.0"


def test_call_tir():
    """Stock LegalizeOps turns the ops into call_tir: work from TIR, a reshape is still a view."""
    created = Module({"x": 1})

    def body(bb, x):
        y = bb.emit(relax.op.multiply(x, relax.const(np.float32(2))), "y")
        return bb.emit(relax.op.reshape(y, (24,)), "z")

    created.entry([("x", (6, 4), "float32", "R")], body)
    mod = relax.transform.LegalizeOps()(created.done())
    prim_funcs = [g.name_hint for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]
    assert len(prim_funcs) == 2
    result = ops_of(export(mod))
    y, z = result["y"], result["z"]
    assert (y.op, y.kind, y.modelled) == ("multiply", "compute", True)
    assert (y.flops, y.bytes_read, y.bytes_written) == (24, 96, 96)
    assert (z.op, z.kind) == ("reshape", "view")


def test_two_meshes():
    """(8, 4) float32 by rows on 2 devices becomes whole on each of 4: 128 bytes per arrival."""
    created = Module({"a": 2}, {"b": 4})
    first, second = created.meshes
    sides = {"shape": [8, 4], "tag": 5}

    def sender(bb, x):
        y = bb.emit(relax.op.nn.relu(x), "y")
        return bb.emit(
            ops.send(y, device_mesh=first, peer_mesh=second, placement="S[0]",
                     peer_placement="R", **sides), "s")  # fmt: skip

    def receiver(bb, w):
        r = bb.emit(
            ops.recv(device_mesh=second, peer_mesh=first, placement="R", peer_placement="S[0]",
                     dtype="float32", **sides), "r")  # fmt: skip
        return bb.emit(relax.op.add(r, w), "z")

    created.entry([("x", (8, 4), "float32", "S[0]")], sender, 0, pure=False)
    created.entry([("w", (8, 4), "float32", "R")], receiver, 1, pure=False)
    program = created.export()
    assert [(e.mesh, e.function) for e in program.entries] == [(0, "main_mesh0"), (1, "main_mesh1")]
    send = ops_of(program, "main_mesh0")["s"]
    recv = ops_of(program, "main_mesh1")["r"]
    assert (send.kind, send.collective, send.tag) == ("transfer", "send", 5)
    assert (send.mesh, send.peer_mesh, recv.mesh, recv.peer_mesh) == (0, 1, 1, 0)
    assert (send.payload_bytes, recv.payload_bytes) == (64, 128)
    # Each sender gives its half to four receivers, each receiver gets both halves.
    assert (send.wire_bytes, recv.wire_bytes) == (4 * 64, 128)


def test_what_has_no_rule_is_named():
    created = Module({"x": 1})

    def body(bb, x):
        out = relax.TensorType([4], "float32")
        return bb.emit(relax.call_pure_packed("my.kernel", x, ty_args=out), "y")

    created.entry([("x", (4,), "float32", "R")], body)
    op = next(o for o in created.export().functions["main"].ops if o.kind == "compute")
    assert not op.modelled
    assert op.reason
    assert (op.bytes_read, op.bytes_written, op.flops) == (16, 16, 0)


ROLES = [("ids", (4,), "int64", "R"), ("b", (4,), "float32", "R"), ("k", (4,), "int64", "R")]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, ["input", "weight", "input"]),
        ({"attrs": {"num_input": 2}}, ["input", "input", "weight"]),
        ({"attrs": {"num_input": 0}}, ["weight", "weight", "weight"]),
        ({"roles": ["weight", "input", "weight"]}, ["weight", "input", "weight"]),
    ],
)
def test_roles_of_the_inputs(more, expected):
    created = Module({"x": 1})
    created.entry(ROLES, lambda bb, ids, b, k: bb.emit(relax.op.add(b, b), "c"), **more)
    program = created.export()
    result = values_of(program, program.functions["main"].params)
    assert [v.role for v in result] == expected


def test_sizes_of_types():
    created = Module({"x": 1})
    kinds = {"float16": 2, "bfloat16": 2, "int8": 1, "bool": 1, "float64": 8, "float8_e4m3fn": 1}
    created.entry(
        [(kind, (3, 5), kind, "R") for kind in kinds],
        lambda bb, *xs: bb.emit(relax.op.add(xs[0], xs[0]), "c"),
    )
    program = created.export()
    result = values_of(program, program.functions["main"].params)
    assert {v.dtype: v.bytes for v in result} == {kind: 15 * n for kind, n in kinds.items()}


def refused(mod, text):
    with pytest.raises(SimulationError, match="DIST0714") as caught:
        export(mod)
    assert text in str(caught.value)


def test_not_lowered():
    created = Module({"x": 1})
    created.private("f", [("x", (2,), "float32")], lambda bb, x: bb.emit(relax.op.add(x, x)))
    refused(created.done(), "dist.io")


def test_symbolic_shapes():
    created = Module({"x": 1})
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n, 2], "float32"))
    item = {"index": 0, "name": "x", "shape": [2, 2], "dtype": "float32", "placement": "R"}
    io = {"mesh": 0, "inputs": [item], "outputs": []}
    with created.bb.function("main", [x], {"dist.io": io}):
        with created.bb.dataflow():
            out = created.bb.emit_output(relax.op.add(x, x))
        created.bb.emit_func_output(out)
    refused(created.done(), "td.bind_dims")


def test_same_text_every_time():
    created = Module({"x": 2})
    created.entry(
        [("x", (4, 2), "float32", "S[0]")],
        lambda bb, x: bb.emit(ops.all_reduce(x, created.meshes[0], [0], "sum"), "r"),
    )
    mod = created.done()
    assert export(mod).to_json() == export(mod).to_json()


def branching(double):
    """``main(x, choose)``: x where choose holds, else ``double(x)``."""
    created = Module({"x": 1})
    source = relax.Var("x", relax.TensorType([4], "float32"))
    choose = relax.Var("choose", relax.TensorType([], "bool"))
    item = {"index": 0, "name": "x", "shape": [4], "dtype": "float32", "placement": "R"}
    flag = {"index": 1, "name": "choose", "shape": [], "dtype": "bool", "placement": "R"}
    io = {"mesh": 0, "inputs": [item, flag], "outputs": []}
    with created.bb.function("main", [source, choose], {"dist.io": io}):
        y = created.bb.emit(relax.If(choose, relax.SeqExpr([], source), double(source)), "y")
        created.bb.emit_func_output(y)
    return created.done()


def test_both_sides_of_a_branch_become_functions():
    def twice(x):
        bound = relax.Var("sum", x.ty)
        block = relax.BindingBlock([relax.VarBinding(bound, relax.op.add(x, x))])
        return relax.SeqExpr([block], bound)

    program = export(branching(twice))
    (op,) = program.functions["main"].ops
    assert (op.kind, op.callee, op.otherwise) == ("branch", "main/y.then", "main/y.else")
    x, choose = (program.functions["main"].values[i].name for i in program.functions["main"].params)
    named = [program.functions["main"].values[i].name for i in op.inputs]
    assert named == [choose, x, x]
    assert program.functions["main/y.then"].ops == ()
    assert [function.op for function in program.functions["main/y.else"].ops] == ["relax.add"]
    assert Program.from_json(program.to_json()) == program


def test_a_program_is_printed_by_function():
    mod = tvm_distir.zoo.gpt(size="tiny")
    plan = tvm_distir.planning.make_plan(mod, "megatron", {"tp": 2})
    program = export(tvm_distir.distribute(mod, plan))
    head, _, _, *rows = str(program).splitlines()
    assert head == "program of 2 devices on mesh0 (tp=2)"
    assert [row.split() for row in rows] == [
        [name, "mesh0", str(len(fn.ops)), str(sum(op.kind == "collective" for op in fn.ops))]
        for name, fn in program.functions.items()
    ]
    assert any(row.split()[-1] != "0" for row in rows)
