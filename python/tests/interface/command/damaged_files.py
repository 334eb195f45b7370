# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Files that no command takes: cut short, cyclic, of wrong types, out of their folder, bombs."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MIB = 1 << 20
T = "tensor<4x8xf32>"
DIGITS = "9" * 5000


def graph(nodes, weights=(), outputs=("y",), inputs=("x",), opset=17):
    """An ONNX file of nodes ``(op, inputs, outputs)``."""
    created = [helper.make_node(op, list(ins), list(outs), **kw) for op, ins, outs, *rest in nodes
            for kw in [rest[0] if rest else {}]]  # fmt: skip
    value = helper.make_tensor_value_info
    proto = helper.make_graph(
        created,
        "g",
        [value(name, TensorProto.FLOAT, [4, 8]) for name in inputs],
        [value(name, TensorProto.FLOAT, None) for name in outputs],
        list(weights),
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model.SerializeToString()


def tensor(name, dims, raw, kind=TensorProto.FLOAT):
    """A weight with such bytes."""
    return TensorProto(name=name, dims=dims, raw_data=raw, data_type=kind)


def external(location):
    """The shape of a reshape, kept in another file."""
    stored = numpy_helper.from_array(np.array([8, 4]), "s")
    onnx.external_data_helper.set_external_data(stored, location)
    stored.ClearField("raw_data")
    stored.data_location = TensorProto.EXTERNAL
    return graph([("Reshape", "xs", "y")], [stored])


def nested(depth):
    """Branches in branches."""
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])
    for _ in range(depth):
        node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
        inner = helper.make_graph([node], "g", [], [])
        inner.node[0].attribute[1].g.ClearField("node")
    return helper.make_model(inner).SerializeToString()


WHOLE = graph([("Relu", "x", "h"), ("Add", "hw", "y")], [tensor("w", [4, 8], b"\0" * 128)])

ONNX = {
    "cut": WHOLE[:-40],
    "noise": bytes(range(256)) * 8,
    "empty": b"",
    "cyclic": graph([("Add", "xb", "a"), ("Relu", "a", "b"), ("Relu", "b", "y")]),
    "of itself": graph([("Add", "xy", "y")]),
    "undefined": graph([("Add", "xz", "y")]),
    "no such output": graph([("Relu", "x", "h")]),
    "unknown op": graph([("Frobnicate", "x", "y")]),
    "operator set": graph([("Relu", "x", "y")], opset=999),
    "wrong shapes": graph([("MatMul", "xx", "y")]),
    "wrong types": graph([("Add", "xw", "y")], [tensor("w", [8], b"\0" * 64, TensorProto.INT64)]),
    "short weight": graph([("Reshape", "xs", "y")],
                          [tensor("s", [2], b"\0" * 3, TensorProto.INT64)]),
    "negative dims": graph([("Add", "xw", "y")], [tensor("w", [-4, 8], b"\0" * 128)]),
    "unknown type": graph([("Add", "xw", "y")], [tensor("w", [4, 8], b"\0" * 128, 99)]),
    "outside": external("../outside.bin"),
    "outside by name": external("/etc/hostname"),
    "no such data": external("none.bin"),
    "too few inputs": graph([("Add", "x", "y")]),
    "deep": nested(25),
    "a branch without result": graph([("If", "x", "y")]),
}  # fmt: skip


def function(body, head="", end=f"return %r : {T}"):
    """A module of StableHLO."""
    return f"{head}\nfunc.func @main(%a: {T}) -> {T} {{\n{body}\n{end}\n}}\n"


def chain(count, calls):
    """Functions that call the next one so many times, with a number that loops count with."""
    lines = [function(f"%c = stablehlo.constant dense<1> : tensor<i32>\n%r = call @f0(%a, %c) : "
                      f"({T}, tensor<i32>) -> {T}")]  # fmt: skip
    for i in range(count):
        steps, name = [], "%a"
        for k in range(calls):
            steps.append(f"%v{k} = call @f{i + 1}({name}, %i) : ({T}, tensor<i32>) -> {T}")
            name = f"%v{k}"
        head = f"func.func private @f{i}(%a: {T}, %i: tensor<i32>) -> {T} {{"
        lines.append("\n".join([head, *steps, f"return {name} : {T}", "}"]))
    lines.append(f"func.func private @f{count}(%a: {T}, %i: tensor<i32>) -> {T} {{\n"
                 f"%r = stablehlo.add %a, %a : {T}\nreturn %r : {T}\n}}")  # fmt: skip
    return "\n".join(lines)


def loops(depth):
    """Loops in loops, of 4000 rounds each."""
    body = f"%s{depth} = stablehlo.add %x{depth - 1}, %x{depth - 1} : {T}"
    inner, result = body, f"%s{depth}"
    for i in reversed(range(depth)):
        before = "%a" if i == 0 else f"%x{i - 1}"
        inner = f"""%z{i} = stablehlo.constant dense<0> : tensor<i32>
%w{i}:2 = stablehlo.while(%i{i} = %z{i}, %x{i} = {before}) : tensor<i32>, {T}
cond {{
%n{i} = stablehlo.constant dense<4000> : tensor<i32>
%p{i} = stablehlo.compare LT, %i{i}, %n{i} : (tensor<i32>, tensor<i32>) -> tensor<i1>
stablehlo.return %p{i} : tensor<i1>
}} do {{
%o{i} = stablehlo.constant dense<1> : tensor<i32>
{inner}
%j{i} = stablehlo.add %i{i}, %o{i} : tensor<i32>
stablehlo.return %j{i}, {result} : tensor<i32>, {T}
}}"""
        result = f"%w{i}#1"
    return function(inner, end=f"return {result} : {T}")


ADD = f"%r = stablehlo.add %a, %a : {T}"
SDY = f'%r = sdy.sharding_constraint %a <@m, [{{"x"}}, {{}}]> : {T}'

MLIR = {
    "cut": function(ADD)[:-30],
    "no text": b"\xff\xfe\x00func",
    "empty": "",
    "no function": "module {\n}\n",
    "unknown op": function(f"%r = stablehlo.frobnicate %a : {T}"),
    "unknown dialect": function(f"%r = linalg.copy %a : {T}"),
    "undefined": function(f"%r = stablehlo.add %a, %b : {T}"),
    "before it is there": function(f"%r = stablehlo.add %b, %a : {T}\n"
                                   f"%b = stablehlo.add %a, %a : {T}"),
    "twice": function(f"{ADD}\n{ADD}"),
    "a ring": function(f"%r = call @main(%a) : ({T}) -> {T}"),
    "no callee": function(f"%r = call @none(%a) : ({T}) -> {T}"),
    "wrong types": function("%r = stablehlo.add %a, %a : tensor<4x8xi32>"),
    "wrong result": function("%r = stablehlo.transpose %a, dims = [1, 0] : "
                             f"({T}) -> tensor<4x8xf32>"),
    "open sizes": function(ADD).replace("4x8", "?x8"),
    "digits": function(ADD).replace("4x8", f"{DIGITS}x8"),
    "digits of a number": function(f"%r = stablehlo.constant dense<{DIGITS}> : tensor<4x8xi32>"),
    "digits of an attribute": function(f"%r = stablehlo.transpose %a, dims = [{DIGITS}, 0] : "
                                       f"({T}) -> {T}"),
    "too few elements": function(f"%r = stablehlo.constant dense<[1.0, 2.0]> : {T}"),
    "bytes": function(f'%r = stablehlo.constant dense<"0x00112"> : {T}'),
    "complex": function(ADD).replace("f32", "complex<f32>"),
    "brackets": function("%r = stablehlo.constant dense<" + "[" * 5000 + f"> : {T}"),
    "regions": "module {\n" * 3000,
    "a string": function(f'%r = "stablehlo.add(%a, %a) : {T}'),
    "location": function(f"{ADD} loc(#none"),
    "many calls": chain(40, 2),
    "a long chain": chain(3000, 1),
    "many rounds": loops(3),
    "rounds of data": function(f"""%w = stablehlo.while(%x = %a) : {T}
cond {{
%p = "stablehlo.custom_call"(%x) <{{call_target_name = "f"}}> : ({T}) -> tensor<i1>
stablehlo.return %p : tensor<i1>
}} do {{
stablehlo.return %x : {T}
}}""", end=f"return %w : {T}"),
    "no mesh": function(SDY),
    "mesh of a billion": function(SDY, 'sdy.mesh @m = <["x"=1000000000]>'),
    "mesh of nothing": function(SDY, 'sdy.mesh @m = <["x"=0]>'),
    "digits of a mesh": function(SDY, f'sdy.mesh @m = <["x"={DIGITS}]>'),
}  # fmt: skip

BYTECODE = {
    "cut": b"ML\xefR\x0dStableHLO_v1.0.0\x00",
    "magic only": b"ML\xefR",
    "noise": b"ML\xefR" + bytes(range(256)) * 40,
}


def zipped(files, method=zipfile.ZIP_STORED):
    """A zip archive."""
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w", method, compresslevel=1) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stored.getvalue()


BOMB = b"\0" * (256 * MIB)
PT2 = {
    "no zip": b"no zip at all",
    "empty": b"",
    "empty zip": zipped({}),
    "cut": zipped({"m/version": b"5", "m/models/model.json": b"{}" * 400})[:300],
    "other files": zipped({"m/version": b"5", "readme.txt": b"hello"}),
    "out of its folder": zipped({"m/archive_format": b"pt2", "../../evil": b"x"}),
    "bomb": zipped({"m/archive_format": b"pt2", "m/data/w": BOMB}, zipfile.ZIP_DEFLATED),
}


def safetensors(header, data=b"\0" * 64, length=None):
    """A safetensors file of such a header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(dtype="F32", shape=(4, 4), offsets=(0, 64)):
    """The header of one array."""
    return {"w": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


def npy(version=1, header=None):
    """An npy file whose header is another one."""
    text = header or "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 4), }"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + b"\0" * 64


def long_header():
    """An npz file whose array claims a header of a gibibyte."""
    return zipped({"w.npy": b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 30) + BOMB},
                  zipfile.ZIP_DEFLATED)  # fmt: skip


WEIGHTS = {
    "cut.safetensors": safetensors(one())[:20],
    "empty.safetensors": b"",
    "short.safetensors": safetensors(one(), b"\0" * 8),
    "long.safetensors": safetensors(one(), length=1 << 62),
    "nojson.safetensors": safetensors(b"not json"),
    "list.safetensors": safetensors([1, 2]),
    "number.safetensors": safetensors({"w": 3}),
    "type.safetensors": safetensors(one("F99")),
    "negative.safetensors": safetensors(one(shape=(-4, -4))),
    "before.safetensors": safetensors(one(offsets=(-64, 0))),
    "after.safetensors": safetensors(one(offsets=(64, 128))),
    "deep.safetensors": safetensors(b"[" * 100_000),
    "outside.safetensors.index.json": b'{"weight_map": {"w": "../outside.safetensors"}}',
    "root.safetensors.index.json": b'{"weight_map": {"w": "/etc/hostname"}}',
    "list.safetensors.index.json": b'{"weight_map": ["w"]}',
    "nothing.safetensors.index.json": b'{"weight_map": {"w": "none.safetensors"}}',
    "nozip.npz": b"no zip",
    "cut.npz": zipped({"w.npy": npy()})[:80],
    "noarray.npz": zipped({"w.npy": b"hello"}),
    "objects.npz": zipped({"w.npy": npy(header="{'descr': '|O', 'fortran_order': False, "
                                               "'shape': (4, 4), }")}),
    "damaged.npz": zipped({"w.npy": npy() * 50}, zipfile.ZIP_DEFLATED).replace(b"NUMPY", b"NUMPX"),
    "header.npz": long_header(),
    "version.npy": npy(version=9),
    "code.npy": npy(header="__import__('os').abort()"),
    "brackets.npy": npy(header="(" * 9000),
}  # fmt: skip

RELAX = {
    "cut": '{"root_index": 0, "nodes": [',
    "list": "[]",
    "number": "3",
    "no such node": '{"root_index": 7, "nodes": []}',
    "cyclic": '{"root_index": 0, "nodes": [{"type": "ffi.Array", "data": [0]}], "metadata": {}}',
    "no such type": '{"root_index": 0, "nodes": [{"type": "x.Y", "data": {}}], "metadata": {}}',
    "wrong data": '{"root_index": 0, "nodes": [{"type": "ir.IRModule", "data": 3}]}',
    "in itself": '{"root_index": 0, "nodes": [{"type": "ir.Tuple", "data": {"fields": 0}}]}',
    "deep": "[" * 100_000,
}
SCRIPT = {
    "nothing": "",
    "zeros": "\0" * 100,
    "brackets": "x = " + "(" * 5000,
    "runs": "import os\nos.abort()\n",
    "no module": "x = 1\n",
}
PLAN = {
    "deep": "[" * 100_000,
    "digits": f'{{"schema_version": {DIGITS}}}',
    "not a number": '{"schema_version": NaN}',
    "types": '{"schema_version": 1, "meshes": 3, "rules": "x"}',
    "a billion": '{"schema_version": 1, "meshes": {"m": {"axes": {"a": 1000000000}}}, "rules": []}',
}
MODELS = {"onnx": ONNX, "mlir": MLIR, "mlirbc": BYTECODE, "pt2": PT2, "json": RELAX, "py": SCRIPT}


def content(data: str | bytes) -> bytes:
    """As bytes."""
    return data.encode() if isinstance(data, str) else data
