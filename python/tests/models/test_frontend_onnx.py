# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""ONNX models: the import without weights, other batches, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.models import gpt2_onnx
from tests.quick_compilation import quick_machine, run_main
from tvm_distir.execution.verification.input_specs import input_specs
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.models.frontends import from_onnx, load_weights
from tvm_distir.models.onnx.input_shapes import static_shapes
from tvm_distir.models.onnx.resolve import resolve
from tvm_distir.models.onnx.skeleton import strip_weights
from tvm_distir.models.tvmscript import from_tvmscript
from tvm_distir.support.errors.tree import ModelError

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIGHT_NAMES = sorted(path.name for path in LIGHT.glob("light_*.onnx"))
SMALL = dict(layers=2, hidden=24, heads=3, vocab=41, positions=12, seq=8)


def names_of(mod):
    return [spec.name for spec in input_specs(mod)]


def model_of(nodes, inputs, outputs, initializers=(), opset=17):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs],
        initializer=[numpy_helper.from_array(a, n) for n, a in initializers],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def simple(nodes, shape=(1, 6), initializers=(), out=(1, 6)):
    """Model with one float input x and one output y."""
    inputs = [("x", TensorProto.FLOAT, list(shape))]
    return model_of(nodes, inputs, [("y", list(out))], initializers)


def rows_agree(model, batch, data):
    """Import at ``batch`` and compare each sample with ONNX's reference of the untouched model."""
    mod = from_onnx(model, batch=batch)
    weights = load_weights(model)
    got = run_main(mod, [data, *[weights[n] for n in names_of(mod)[1:]]])
    session = ReferenceEvaluator(model)
    name = model.graph.input[0].name
    old = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value or 1
    parts = [data[i : i + old] for i in range(0, batch, old)]
    want = np.concatenate([session.run(None, {name: part})[0] for part in parts])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert np.ptp(want, axis=0).max() > 1e-3  # samples differ, else nothing is shown


@pytest.mark.parametrize(("batch", "fused"), [(1, False), (1, True), (2, True), ("batch", True)])
def test_gpt2_at_another_batch_equals_the_reference(batch, fused):
    model = gpt2_onnx.build(**SMALL, batch=batch, fused_qkv=fused)
    onnx.checker.check_model(model, full_check=True)
    rng = np.random.default_rng(0)
    for tensor in model.graph.initializer:  # larger than GPT-2's own, so that errors show
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2:
            array = rng.standard_normal(tuple(tensor.dims), dtype="float32") / 4
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    rows_agree(model, 4, rng.integers(0, 41, (4, 8)))


def test_gpt2_has_the_published_vocabulary_and_weights_as_parameters():
    model = gpt2_onnx.build(layers=1, hidden=8, heads=2)
    mod = from_onnx(model, batch=2)
    specs = {spec.name: spec for spec in input_specs(mod)}
    assert specs["wte.weight"].shape == (50257, 8)
    assert specs["input_ids"].high == 50257
    assert mod["main"].attrs["num_input"] == 1
    weights = load_weights(model)
    assert list(weights) == list(specs)[1:]
    assert "params" not in mod["main"].attrs
    text = mod.script(show_meta=True)
    assert tvm_ffi.structural_equal(from_tvmscript(text), mod)


@pytest.mark.parametrize("name", LIGHT_NAMES)
def test_light_models_import_at_batch_8(name):
    mod = from_onnx(LIGHT / name, batch=8)
    main = mod["main"]
    assert int(main.ret_ty.shape[0]) == 8
    specs = input_specs(mod)
    assert specs[0].shape == (8, 3, 224, 224)
    assert {spec.usage for spec in specs[1:]} <= {"weight", "bias", "scale", "mean", "variance"}
    raw = onnx.load(LIGHT / name)
    described = [n.output[0] for n in raw.graph.node if n.op_type == "ConstantOfShape"]
    read = {operand for node in raw.graph.node for operand in node.input}
    floats = [
        t.name for t in raw.graph.initializer if t.data_type == TensorProto.FLOAT and t.name in read
    ]
    assert sorted(names_of(mod)[1:]) == sorted([*described, *floats])


def test_there_are_nine_light_models():
    assert len(LIGHT_NAMES) == 9


def row_by_row(name, batch, seed, rows):
    big, reference = from_onnx(LIGHT / name, batch=batch), from_onnx(LIGHT / name)
    arrays = draw_inputs(big, seed)
    vm = quick_machine(reference)
    weights = [tvm.runtime.tensor(a) for a in arrays[1:]]
    whole = run_main(big, arrays)
    samples = [arrays[0][i : i + 1] for i in rows]
    single = [vm["main"](tvm.runtime.tensor(x), *weights).numpy() for x in samples]
    np.testing.assert_allclose(whole[list(rows)], np.concatenate(single), rtol=1e-4, atol=1e-7)
    assert whole.max() < 0.9  # no saturated softmax
    flat = whole.reshape(batch, -1)
    assert np.ptp(flat, axis=0).max() > 0.01 * flat.max()


@pytest.mark.nightly
def test_light_squeezenet_batch_of_3_equals_three_samples():
    row_by_row("light_squeezenet.onnx", 3, 0, range(3))


def test_light_shufflenet_batch_of_2_equals_single_samples():
    row_by_row("light_shufflenet.onnx", 2, 0, [1])


def with_weights(skeleton, model):
    """Put the weights of a skeleton back into a (resolved) copy of its model."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    data = [value for value in graph.input if value.name not in skeleton.weights]
    del graph.input[:]
    graph.input.extend(data)
    nodes = list(graph.node)
    filled = []
    for weight in skeleton.weights.values():
        if weight.tensor is not None:
            graph.initializer.append(weight.tensor)
            continue
        sizes = numpy_helper.from_array(np.asarray(weight.shape, "int64"), f"{weight.name}__shape")
        value = helper.make_tensor("value", weight.elem_type, [1], [weight.fill])
        graph.initializer.append(sizes)
        filled.append(helper.make_node("ConstantOfShape", [sizes.name], [weight.name], value=value))
    del graph.node[:]
    graph.node.extend([*filled, *nodes])
    return result


def with_batch(model, batch):
    """The model at another batch, with its weights."""
    skeleton = strip_weights(model)
    old, new = static_shapes(skeleton.model, skeleton.data, {}, batch, model.graph.name)
    return with_weights(skeleton, resolve(skeleton.model, old, new))


def test_another_batch_keeps_a_valid_model_with_weights():
    model = gpt2_onnx.build(**SMALL, batch=1)
    wide = with_batch(model, 4)
    onnx.checker.check_model(wide, full_check=True)
    ids = np.random.default_rng(1).integers(0, 41, (4, 8))
    got = ReferenceEvaluator(wide).run(None, {"input_ids": ids})[0]
    single = ReferenceEvaluator(model)
    want = np.concatenate([single.run(None, {"input_ids": row[None]})[0] for row in ids])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    light = with_batch(onnx.load(LIGHT / "light_zfnet512.onnx"), 8)
    onnx.checker.check_model(light, full_check=True)
    assert light.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 8


def image_tokens(batch):
    """The head of a vision transformer: a class token expanded to the batch, joined, flattened."""
    rng = np.random.default_rng(3)
    initializers = [
        ("cls", rng.standard_normal((1, 1, 20), dtype="float32")),
        ("w", rng.standard_normal((20, 20), dtype="float32")),
        ("sizes", np.asarray([batch, 1, 20])),
        ("sixty", np.asarray([batch, 60])),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Expand", ["cls", "sizes"], ["token"]),
        helper.make_node("Concat", ["token", "m"], ["joined"], axis=1),
        helper.make_node("Reshape", ["joined", "sixty"], ["y"]),
    ]
    return simple(nodes, (batch, 2, 20), initializers, (batch, 60))


def merged_minor(batch):
    """Sequence first: the batch is the minor part of a merged dim, then taken apart again."""
    initializers = [
        ("rows", np.asarray([3 * batch, 4])),
        ("apart", np.asarray([3, batch, 4])),
        ("w", np.random.default_rng(4).standard_normal((4, 4), dtype="float32")),
    ]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["t", "rows"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["m"]),
        helper.make_node("Reshape", ["m", "apart"], ["a"]),
        helper.make_node("Transpose", ["a"], ["y"], perm=[1, 0, 2]),
    ]
    return simple(nodes, (batch, 3, 4), initializers, (batch, 3, 4))


def shape_arithmetic(batch):
    """Reshape to sizes computed from the operand's shape, as exporters write it."""
    initializers = [
        ("zero", np.asarray(0)),
        ("axis", np.asarray([0])),
        ("minus", np.asarray([-1])),
        ("w", np.random.default_rng(5).standard_normal((12, 5), dtype="float32")),
    ]
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axis"], ["n1"]),
        helper.make_node("Concat", ["n1", "minus"], ["sizes"], axis=0),
        helper.make_node("Reshape", ["x", "sizes"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["y"]),
    ]
    return simple(nodes, (batch, 3, 4), initializers, (batch, 5))


def resized(batch):
    """Resize by sizes that name the batch, and by float scales, then a per-channel shift."""
    initializers = [
        ("roi", np.zeros(0, "float32")),
        ("scales", np.asarray([1, 1, 2, 2], "float32")),
        ("sizes", np.asarray([batch, 2, 8, 8])),
        ("shift", np.random.default_rng(6).standard_normal((2, 1, 1), dtype="float32")),
    ]
    options = dict(mode="nearest", coordinate_transformation_mode="asymmetric")
    nodes = [
        helper.make_node("Resize", ["x", "roi", "scales"], ["a"], **options),
        helper.make_node("Resize", ["a", "roi", "", "sizes"], ["b"], **options),
        helper.make_node("Add", ["b", "shift"], ["y"]),
    ]
    return simple(nodes, (batch, 2, 2, 2), initializers, (batch, 2, 8, 8))


def summed(batch):
    """A Sum of three, one of them broadcast."""
    initializers = [("w", np.random.default_rng(7).standard_normal((6, 6), dtype="float32"))]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Sum", ["x", "m", "x"], ["y"]),
    ]
    return simple(nodes, (batch, 6), initializers, (batch, 6))


PINNING = [merged_minor, shape_arithmetic, resized, summed]


# With a batch of 2 the two class tokens of image_tokens could differ: refused, see below.
@pytest.mark.parametrize(
    ("make", "batch"), [(image_tokens, 1), *[(make, batch) for make in PINNING for batch in (1, 2)]]
)
def test_pinned_constants_are_rewritten(make, batch):
    model = make(batch)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    data = np.random.default_rng(8).standard_normal((4, *shape[1:]), dtype="float32")
    rows_agree(model, 4, data)


def test_small_float_operands_stay_constants_and_weights_do_not():
    mod = from_onnx(resized(1))
    assert names_of(mod) == ["x"]
    conv = simple(
        [helper.make_node("Conv", ["x", "w", "b"], ["y"])],
        (1, 2, 3, 3),
        [("w", np.ones((2, 2, 1, 1), "float32")), ("b", np.ones(2, "float32"))],
        (1, 2, 3, 3),
    )
    assert names_of(from_onnx(conv)) == ["x", "w", "b"]


def test_initializers_listed_as_inputs_are_not_duplicated():
    model = summed(1)
    info = helper.make_tensor_value_info("w", TensorProto.FLOAT, [6, 6])
    model.graph.input.append(info)
    assert names_of(from_onnx(model)) == ["x", "w"]


def test_external_weights_are_not_opened_by_the_import(tmp_path):
    model = summed(1)
    w = numpy_helper.to_array(model.graph.initializer[0])
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    np.testing.assert_array_equal(load_weights(from_onnx(path))["w"], w)
    (tmp_path / "m.bin").unlink()
    mod = from_onnx(path)
    assert names_of(mod) == ["x", "w"]
    with pytest.raises(ModelError, match="DIST0315"):
        load_weights(mod)
    (tmp_path / "m.bin").write_bytes(b"\0" * 7)
    with pytest.raises(ModelError, match="DIST0315"):
        load_weights(mod)


def test_symbolic_dims_need_a_size():
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model = simple(nodes, ("n", "seq"), out=("n", "seq"))
    with pytest.raises(ModelError, match=r'DIST0313 .*dim 0 \("n"\) of the input "x"'):
        from_onnx(model)
    with pytest.raises(ModelError, match=r'DIST0313 .*dim 1 \("seq"\)'):
        from_onnx(model, batch=2)
    shape = from_onnx(model, batch=2, dims={"seq": 5})["main"].ret_ty.shape
    assert [int(n) for n in shape] == [2, 5]
    shape = from_onnx(model, dims={"seq": 5, "n": 3})["main"].ret_ty.shape
    assert [int(n) for n in shape] == [3, 5]


def flattened_away():
    return simple([helper.make_node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=0)], out=(6,))


def picked_sample():
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], axis=0)]
    return simple(nodes, initializers=[("i", np.asarray(0))], out=(6,))


def split_batch():
    nodes = [helper.make_node("Split", ["x", "s"], ["y", "z"], axis=0)]
    return simple(nodes, (2, 6), [("s", np.asarray([1, 1]))])


def fixed_table():
    table = np.arange(12, dtype="float32").reshape(2, 6)
    return simple([helper.make_node("Add", ["x", "t"], ["y"])], (2, 6), [("t", table)], (2, 6))


def squeezed():
    nodes = [helper.make_node("Squeeze", ["x", "a"], ["y"])]
    return simple(nodes, initializers=[("a", np.asarray([0]))], out=(6,))


def no_sample_of_its_own():
    nodes = [
        helper.make_node("Relu", ["x"], ["z"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    return simple(nodes, initializers=[("c", np.ones((1, 6), "float32"))])


def two_batches():
    nodes = [helper.make_node("MatMul", ["x", "z"], ["y"])]
    inputs = [("x", TensorProto.FLOAT, [2, 3]), ("z", TensorProto.FLOAT, [3, 4])]
    return model_of(nodes, inputs, [("y", [2, 4])])


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (flattened_away, "y (ReduceMean)"),
        (picked_sample, "y (Gather)"),
        (split_batch, "y (Split)"),
        (fixed_table, "y (Add)"),
        (squeezed, "y (Squeeze)"),
        (lambda: image_tokens(2), "joined (Concat)"),
        (no_sample_of_its_own, "does not scale"),
        (two_batches, "no common dim 0"),
    ],
)
def test_what_pins_the_batch_is_named(make, word):
    with pytest.raises(ModelError) as caught:
        from_onnx(make(), batch=8)
    assert caught.value.code == "DIST0314"
    assert word in str(caught.value)


def relu_of_nothing():
    return simple([helper.make_node("Relu", ["missing"], ["y"])])


def bad_matmul():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return simple(nodes, initializers=[("w", np.ones((5, 6), "float32"))])


def bad_reshape():
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    return simple(nodes, initializers=[("s", np.asarray([4, 2]))])


def invented():
    return simple([helper.make_node("Relux", ["x"], ["y"])])


def other_domain():
    model = simple([helper.make_node("FusedThing", ["x"], ["y"], domain="com.acme")])
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    return model


def not_imported():
    nodes = [helper.make_node("STFT", ["x", "n"], ["y"])]
    model = simple(nodes, (1, 16, 1), [("n", np.asarray(4))], (1, 4, 3, 2))
    return model


def no_opset():
    model = summed(1)
    del model.opset_import[:]
    return model


def old_ir():
    model = summed(1)
    model.ir_version = 2
    return model


@pytest.mark.parametrize(
    ("make", "code", "word"),
    [
        (relu_of_nothing, "DIST0310", "missing"),
        (bad_matmul, "DIST0310", "y (MatMul)"),
        (bad_reshape, "DIST0312", "y (Reshape)"),
        (invented, "DIST0311", "Relux"),
        (other_domain, "DIST0311", "com.acme"),
        (not_imported, "DIST0311", "STFT"),
        (no_opset, "DIST0310", "operator set"),
        (old_ir, "DIST0310", "IR version"),
        (onnx.ModelProto, "DIST0303", "no graph"),
    ],
)
def test_malformed_models_are_refused(make, code, word, capfd):
    with pytest.raises(ModelError) as caught:
        from_onnx(make())
    assert caught.value.code == code
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_files_cut_short_or_of_another_kind(tmp_path):
    whole = summed(1).SerializeToString()
    path = tmp_path / "m.onnx"
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        with pytest.raises(ModelError) as caught:
            from_onnx(path)
        assert caught.value.code in ("DIST0303", "DIST0310", "DIST0315")
    path.write_text("this is no model\n")
    with pytest.raises(ModelError, match="DIST0303"):
        from_onnx(path)
    with pytest.raises(ModelError, match="DIST0301"):
        from_onnx(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="DIST0301"):
        from_onnx(tmp_path)


@pytest.mark.parametrize("batch", [0, -1, True, 2.0])
def test_a_batch_is_a_positive_integer(batch):
    with pytest.raises(ModelError, match="DIST0314"):
        from_onnx(summed(1), batch=batch)
