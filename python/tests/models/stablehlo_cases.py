# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs that JAX wrote, and texts that are refused."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np

from tvm_distir.models.mlir.parser import parse_module
from tvm_distir.models.stablehlo.argument_names import ArgumentNames

DATA = Path(__file__).with_name("stablehlo_data")
NAMES = sorted(path.stem for path in DATA.glob("*.mlir"))


def stored(name, mod):
    """Inputs in the order of the module's parameters, and the results of JAX."""
    tree = parse_module((DATA / f"{name}.mlir").read_text(encoding="utf-8"))
    main = next(op for op in tree.operations if op.attributes.get("sym_name") == "main")
    titles = ArgumentNames(tree.locations, None, name).of(main).titles
    params = mod["main"].params
    order = [titles.index(str(title)) for title in mod["main"].attrs["dist.param_names"]]
    with np.load(DATA / f"{name}.npz") as contents:
        arrays = dict(contents)
    inputs = [typed(arrays[f"in:{i}"], param) for i, param in zip(order, params, strict=True)]
    return inputs, [arrays[f"out:{i}"] for i in range(len(arrays) - len(inputs))]


def typed(array, param):
    word = str(getattr(param.ty.dtype, "dtype", param.ty.dtype))
    return array.astype(getattr(ml_dtypes, word, word))


def function(body, arguments="%x: tensor<4xf32>", result="tensor<4xf32>", more=""):
    return (
        f"module {{\n  func.func public @main({arguments}) -> {result} {{\n{body}\n  }}\n{more}}}\n"
    )


_RETURN = "    return %x : tensor<4xf32>"
_T = "tensor<4xf32>"

REFUSED = {
    "nothing": ("\n", "DIST0370", "public function"),
    "half a function": ("module {\n  func.func public @main(", "DIST0370", "text:2"),
    "half a body": (function(_RETURN)[:-5], "DIST0370", "ends inside"),
    "no module": ("this is\nno module", "DIST0371", "this"),
    "another dialect": (function(f'    %0 = "linalg.abs"(%x) : ({_T}) -> {_T}\n' + _RETURN),
                        "DIST0371", "text:3 (linalg.abs)"),
    "another dialect's form": (function("    %0 = arith.addf %x, %x : f32\n" + _RETURN),
                               "DIST0371", "arith.addf"),
    "an unknown operation": (function(f"    %0 = stablehlo.cholesky %x : {_T}\n" + _RETURN),
                             "DIST0371", "stablehlo.cholesky"),
    "a custom call": (
        function(f"    %0 = stablehlo.custom_call @lapack_sgeqrf(%x) : ({_T}) -> {_T}\n" + _RETURN),
        "DIST0371", "@lapack_sgeqrf",
    ),
    "layouts before the name of a custom call": (
        function(
            '    %0 = "stablehlo.custom_call"(%x) <{called_computations = [@f], operand_layouts = '
            '[dense<[1, 0]> : tensor<2xindex>], call_target_name = "lapack_sgeqrf"}> : '
            f"({_T}) -> {_T}\n" + _RETURN
        ),
        "DIST0371", "(stablehlo.custom_call @lapack_sgeqrf)",
    ),
    "layouts of a custom call": (
        function(
            "    %0 = stablehlo.custom_call @lapack_sgeqrf(%x) {operand_layouts = "
            f"[dense<[1, 0]> : tensor<2xindex>]}} : ({_T}) -> {_T}\n" + _RETURN
        ),
        "DIST0371", "(stablehlo.custom_call @lapack_sgeqrf)",
    ),
    "open sizes": (function("    return %x : tensor<?xf32>", "%x: tensor<?xf32>", "tensor<?xf32>"),
                   "DIST0372", "sizes are dynamic"),
    "complex numbers": (
        function("    return %x : tensor<4xcomplex<f32>>", "%x: tensor<4xcomplex<f32>>",
                 "tensor<4xcomplex<f32>>"),
        "DIST0372", "complex<f32>",
    ),
    "a value of nothing": (function(f"    return %y : {_T}"), "DIST0372", "%y is not defined"),
    "a value of two operations": (
        function(2 * f"    %0 = stablehlo.tanh %x : {_T}\n" + _RETURN),
        "DIST0372", "%0 is defined twice",
    ),
    "a wrong type of an operand": (
        function("    %0 = stablehlo.add %x, %x : tensor<5xf32>\n    return %0 : tensor<5xf32>"),
        "DIST0372", "float32[4], tensor<5xf32> is written",
    ),
    "a wrong type of a result": (
        function(f"    %0 = stablehlo.convert %x : ({_T}) -> tensor<8xf16>\n"
                 "    return %0 : tensor<8xf16>"),
        "DIST0372", "text:3 (stablehlo.convert)",
    ),
    "a shape that does not fit": (
        function(f"    %0 = stablehlo.reshape %x : ({_T}) -> tensor<3xf32>\n"
                 "    return %0 : tensor<3xf32>"),
        "DIST0372", "stablehlo.reshape",
    ),
    "too few elements": (
        function(f"    %c = stablehlo.constant dense<[1.0, 2.0]> : {_T}\n" + _RETURN),
        "DIST0370", "2 elements, the type requires 4",
    ),
    "elements that are not numbers": (
        function(f"    %c = stablehlo.constant dense<[a, b]> : {_T}\n" + _RETURN),
        "DIST0370", "not numbers",
    ),
    "a bracket left open": (function("    %c = stablehlo.constant dense<[1.0\n" + _RETURN),
                            "DIST0370", "text:3"),
    "no such function": (function(f"    %0 = call @f(%x) : ({_T}) -> {_T}\n" + _RETURN),
                         "DIST0372", 'no function "f"'),
    "a ring of calls": (
        function(f"    %0 = call @f(%x) : ({_T}) -> {_T}\n" + _RETURN,
                 more=f"  func.func private @f(%x: {_T}) -> {_T} {{\n"
                      f"    %0 = call @f(%x) : ({_T}) -> {_T}\n    return %0 : {_T}\n  }}\n"),
        "DIST0372", "recursively",
    ),
    "a loop by data": (
        function(
            f"    %0 = stablehlo.while(%i = %x) : {_T}\n    cond {{\n"
            "      %1 = stablehlo.constant dense<1.0> : tensor<f32>\n"
            "      %2 = stablehlo.slice %i [0:1] : (tensor<4xf32>) -> tensor<1xf32>\n"
            "      %3 = stablehlo.reshape %2 : (tensor<1xf32>) -> tensor<f32>\n"
            "      %4 = stablehlo.compare LT, %3, %1 : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
            "      stablehlo.return %4 : tensor<i1>\n    } do {\n"
            f"      stablehlo.return %i : {_T}\n    }}\n" + _RETURN),
        "DIST0372", "iterations depends on data",
    ),
    "a loop without end": (
        function(
            "    %c = stablehlo.constant dense<0> : tensor<i32>\n"
            "    %0 = stablehlo.while(%i = %c) : tensor<i32>\n    cond {\n"
            "      %1 = stablehlo.compare EQ, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>\n"
            "      stablehlo.return %1 : tensor<i1>\n    } do {\n"
            "      stablehlo.return %i : tensor<i32>\n    }\n" + _RETURN),
        "DIST0372", "more than 4096 iterations",
    ),
    "brackets without end": ("module attributes {a = " + "[" * 200 + "\n", "DIST0370", "nested"),
    "an axis that is none": (
        'module {\n  sdy.mesh @m = <["a"=2]>\n  func.func public @main(%x: tensor<4xf32> '
        '{sdy.sharding = #sdy.sharding<@m, [{"b"}]>}) -> tensor<4xf32> {\n'
        + _RETURN + "\n  }\n}\n",
        "DIST0372", '"b"',
    ),
    "a part that does not divide its axis": (
        'module {\n  sdy.mesh @m = <["a"=4]>\n  func.func public @main(%x: tensor<4xf32> '
        '{sdy.sharding = #sdy.sharding<@m, [{"a":(1)3}]>}) -> tensor<4xf32> {\n'
        + _RETURN + "\n  }\n}\n",
        "DIST0372", "share no finer mesh",
    ),
    "a mesh that is not there": (
        "module {\n  func.func public @main(%x: tensor<4xf32> "
        '{sdy.sharding = #sdy.sharding<@m, [{"a"}]>}) -> tensor<4xf32> {\n'
        + _RETURN + "\n  }\n}\n",
        "DIST0372", "does not have",
    ),
}  # fmt: skip
"""What is wrong: a text, the code, and words of the message."""
