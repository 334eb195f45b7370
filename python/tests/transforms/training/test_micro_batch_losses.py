# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Losses in micro-batches against the loss and the gradients of the whole batch in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import ir, relax
from tvm.relax import op

import tvm_distir as td
from tests.nightly import nightly_but
from tvm_distir.core.ir.attributes.readers import param_names
from tvm_distir.core.plan.plan import Plan
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support import update_type
from tvm_distir.support.errors.tree import ModelError
from tvm_distir.transforms.training.pipeline.expand_passes import SerializePipeline

BATCH, TOKENS, WIDTH, CLASSES = 8, 3, 4, 5
IGNORED = -100
NAMES = ["x", "targets", "w", "v"]

Write = Callable[..., Any]


def _flat_loss(b: relax.BlockBuilder, out: Any, targets: Any, *weights: Any, **more: Any) -> Any:
    rows = int(out.ty.shape[0]) * TOKENS
    log_probs = b.emit(op.nn.log_softmax(b.emit(op.reshape(out, (rows, CLASSES)))))
    return b.emit(op.nn.nll_loss(log_probs, b.emit(op.reshape(targets, (rows,))), *weights, **more))


def _masked(b: relax.BlockBuilder, out: Any, goal: Any, mask: Any) -> Any:
    squares = b.emit(op.square(b.emit(op.subtract(out, goal))))
    rows = b.emit(op.mean(squares, axis=[-1]))
    total = b.emit(op.sum(b.emit(op.multiply(rows, mask))))
    return b.emit(op.divide(total, b.emit(op.sum(mask))))


def _normalized(b: relax.BlockBuilder, out: Any, goal: Any, mask: Any) -> Any:
    """Weights of the samples that add up to one, and a divisor that depends on them."""
    each = b.emit(op.divide(mask, b.emit(op.mean(mask))))
    squares = b.emit(op.sum(b.emit(op.square(b.emit(op.subtract(out, goal)))), axis=[2]))
    total = b.emit(op.sum(b.emit(op.multiply(squares, each))))
    count = b.emit(op.maximum(b.emit(op.sum(b.emit(op.square(each)))), relax.const(1.0)))
    return b.emit(op.divide(total, count))


def _smoothed(b: relax.BlockBuilder, out: Any, targets: Any) -> Any:
    """Cross-entropy with a tenth of each target spread over all classes."""
    log_probs = b.emit(op.nn.log_softmax(out))
    counts = b.emit(op.astype(b.emit(op.not_equal(targets, relax.const(IGNORED))), "float32"))
    spread = b.emit(op.multiply(b.emit(op.mean(log_probs, axis=[-1])), counts))
    spread = b.emit(op.divide(b.emit(op.sum(spread)), b.emit(op.sum(counts))))
    sharp = _flat_loss(b, out, targets)
    spread = b.emit(op.multiply(spread, relax.const(-0.1)))
    return b.emit(op.add(b.emit(op.multiply(sharp, relax.const(0.9))), spread))


def _mixed(b: relax.BlockBuilder, out: Any, targets: Any) -> Any:
    """A mean beside a weighted mean and a constant."""
    squares = b.emit(op.mean(b.emit(op.square(out))))
    both = b.emit(op.add(_flat_loss(b, out, targets), squares))
    return b.emit(op.add(both, relax.const(1.0)))


FUNCTIONS: dict[str, tuple[Write, tuple[tuple[str, str], ...]]] = {
    "masked": (_masked, (("goal", "float32"), ("mask", "float32"))),
    "normalized": (_normalized, (("goal", "float32"), ("mask", "float32"))),
    "weighted": (_flat_loss, (("targets", "int32"), ("classes", "float32"))),
    "summed": (
        lambda b, out, targets: _flat_loss(b, out, targets, reduction="sum"),
        (("targets", "int32"),),
    ),
    "smoothed": (_smoothed, (("targets", "int32"),)),
    "mixed": (_mixed, (("targets", "int32"),)),
}
SHAPES = {"goal": (TOKENS, CLASSES), "mask": (TOKENS,), "targets": (TOKENS,)}


def _function(name: str, batch: int, write: Write, inputs: Any) -> relax.Function:
    params = [relax.Var("out", relax.TensorType([batch, TOKENS, CLASSES], "float32"))]
    for title, dtype in inputs:
        shape = [CLASSES] if title == "classes" else [batch, *SHAPES[title]]
        params.append(relax.Var(title, relax.TensorType(shape, dtype)))
    builder = relax.BlockBuilder()
    with builder.function(name, params):
        with builder.dataflow():
            out = builder.emit_output(write(builder, *params))
        builder.emit_func_output(out)
    return builder.get()[name].without_attr("global_symbol")


def _identity(name: str) -> relax.Function:
    value = relax.Var("value", relax.TensorType([], "float32"))
    builder = relax.BlockBuilder()
    with builder.function(name, [value]):
        with builder.dataflow():
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.get()[name].without_attr("global_symbol")


def model(batch: int, loss: str = "") -> ir.IRModule:
    """Two products with a hyperbolic tangent between, and the function of a loss."""
    functions = {}
    if loss:
        fn = _function(loss, batch, *FUNCTIONS[loss]) if loss in FUNCTIONS else _identity(loss)
        gv = ir.GlobalVar(loss)
        update_type(gv, fn.ty)
        functions[gv] = fn
    x = relax.Var("x", relax.TensorType([batch, TOKENS, WIDTH], "float32"))
    w = relax.Var("w", relax.TensorType([WIDTH, WIDTH], "float32"))
    v = relax.Var("v", relax.TensorType([WIDTH, CLASSES], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, v]):
        with builder.dataflow():
            h = builder.emit(op.tanh(builder.emit(op.matmul(x, w))), "h")
            out = builder.emit_output(op.matmul(h, v), "logits")
        builder.emit_func_output(out)
    main = builder.get()["main"].with_attr("num_input", 1)
    return ir.IRModule({**functions, ir.GlobalVar("main"): main})


def data(seed: int = 0) -> dict[str, Any]:
    """Inputs; some micro-batches and some devices have many ignored targets, some none."""
    random = np.random.default_rng(seed)
    targets = random.integers(0, CLASSES, (BATCH, TOKENS)).astype("int32")
    mask = random.uniform(0.5, 2.0, (BATCH, TOKENS)).astype("float32")
    for rows, tokens in ((slice(0, BATCH // 4), 1), (slice(1, None, 4), 0), (slice(2, None, 8), 2)):
        targets[rows, tokens:] = IGNORED
        mask[rows, tokens:] = 0
    return {
        "x": random.normal(size=(BATCH, TOKENS, WIDTH)).astype("float32"),
        "w": random.normal(size=(WIDTH, WIDTH)).astype("float32"),
        "v": random.normal(size=(WIDTH, CLASSES)).astype("float32"),
        "goal": random.normal(size=(BATCH, TOKENS, CLASSES)).astype("float32"),
        "classes": random.uniform(0.5, 2.0, CLASSES).astype("float32"),
        "mask": mask,
        "targets": targets,
    }


def whole_loss(loss: str, given: dict[str, Any], w: Any, v: Any) -> Any:
    """The loss of the whole batch, of real or complex weights."""
    out = np.tanh(given["x"].astype("float64") @ w) @ v
    if loss in ("masked", "normalized", "mse"):
        squares = (out - given["goal"]) ** 2
        mask = given["mask"].astype("float64")
        if loss == "mse":
            return squares.mean()
        if loss == "masked":
            return (squares.mean(-1) * mask).sum() / mask.sum()
        each = mask / mask.mean()
        return (squares.sum(-1) * each).sum() / max((each**2).sum(), 1.0)
    targets = given["targets"]
    counts = targets != IGNORED
    log_probs = out - np.log(np.exp(out).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log_probs, np.maximum(targets, 0)[..., None], -1)[..., 0]
    weights = given["classes"][np.maximum(targets, 0)] if loss == "weighted" else 1.0
    total, divisor = (losses * weights * counts).sum(), (weights * counts).sum()
    if loss == "summed":
        return total
    if loss == "smoothed":
        return (0.9 * total - 0.1 * (log_probs.mean(-1) * counts).sum()) / divisor
    return total / divisor + ((out**2).mean() + 1 if loss == "mixed" else 0)


def expected(loss: str, given: dict[str, Any]) -> list[Any]:
    """The loss and the weights minus their gradients, by derivatives with complex steps."""
    weights = [given[name].astype("complex128") for name in ("w", "v")]
    result: list[Any] = [whole_loss(loss, given, *weights).real]
    for number, weight in enumerate(weights):
        gradient = np.zeros(weight.shape)
        for at in np.ndindex(weight.shape):
            moved = [one.copy() for one in weights]
            moved[number][at] += 1e-30j
            gradient[at] = whole_loss(loss, given, *moved).imag / 1e-30
        result.append(weight.real - gradient)
    return result


def _step(loss: str, micros: int, stages: int = 1, **options: Any) -> ir.IRModule:
    schedule = f"1f1b:stages={stages},micro_batches={micros}"
    mod = model(BATCH // micros, loss if loss in FUNCTIONS else "")
    return td.train_step(mod, loss, rate=1.0, schedule=schedule, **options)


def _values(step: ir.IRModule, given: dict[str, Any], loss: str) -> list[Any]:
    turn = SerializePipeline()(step)
    names = param_names(turn["main"])
    named = {**given, "targets": given["goal"]} if loss == "mse" else given
    return [named[name] for name in names]


def assert_whole(got: Any, want: Any) -> None:
    """The results are those of the whole batch, up to the rounding of float32."""
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


LOSSES = ["cross_entropy", "mse", *FUNCTIONS]


@pytest.mark.parametrize(
    ("loss", "micros"),
    nightly_but(
        [("cross_entropy", 1), *((loss, n) for n in (2, 8) for loss in LOSSES)],
        range(1 + len(LOSSES)),
    ),
)
def test_micro_batches_are_the_whole_batch(loss: str, micros: int) -> None:
    given = data()
    step = _step(loss, micros)
    got = Reference(SerializePipeline()(step)).run(_values(step, given, loss))
    assert_whole(got, expected(loss, given))


@pytest.mark.parametrize(
    ("loss", "micros", "mesh", "options"),
    [
        *((loss, 4, {"pp": 2, "dp": 2}, {}) for loss in LOSSES),
        ("cross_entropy", 1, {"pp": 2, "dp": 2}, {}),
        ("cross_entropy", 2, {"dp": 4}, {"recompute": "full", "loss_scale": 1024.0}),
        ("masked", 4, {"dp": 2}, {"loss_scale": "dynamic", "clip": 1e9}),
    ],
)
def test_ranks_with_uneven_targets(
    loss: str, micros: int, mesh: dict[str, int], options: dict[str, Any]
) -> None:
    given = data(seed=1) | {"loss_scale": np.float32(64), "scale_steps": np.int64(0)}
    step = _step(loss, micros, mesh.get("pp", 1), **options)
    stages = f"pipeline:micro_batches={micros}+" if "pp" in mesh else ""
    plan = make_plan(step, f"{stages}data_parallel", mesh)
    got = td.run(td.distribute(step, plan), _values(step, given, loss), engine="virtual")
    assert_whole(got[:3], expected(loss, given))


def test_zero_and_a_bound_on_the_norm() -> None:
    given, bound = data(), 0.1
    step = _step("cross_entropy", 4, clip=bound)
    plan = make_plan(step, "zero:stage=3", {"dp": 2})
    values = _values(step, given, "cross_entropy")
    got = td.run(td.distribute(step, plan), values, engine="virtual")
    loss, *weights = expected("cross_entropy", given)
    gradients = [given[n] - w for n, w in zip(("w", "v"), weights, strict=True)]
    factor = bound / np.sqrt(sum((g**2).sum() for g in gradients))
    assert factor < 1
    bounded = [given[n] - factor * g for n, g in zip(("w", "v"), gradients, strict=True)]
    assert_whole(got, [loss, *bounded])


@pytest.mark.parametrize("loss", ["cross_entropy", "weighted"])
def test_sharded_classes(loss: str) -> None:
    """Classes are divided, unevenly, over one axis, samples over another."""
    given = data()
    step = _step(loss, 4)
    targets = [{"param": n, "placement": "S[0], R"} for n in ("x", "targets")]
    rules = [*targets, {"param": "v", "placement": "R, S[1]"}, {"param": "w", "placement": "R, R"}]
    plan = Plan.from_dict(
        {"schema_version": 1, "meshes": {"mesh0": {"axes": {"dp": 2, "tp": 2}}}, "rules": rules}
    )
    local = td.distribute(step, plan)
    got = td.run(local, _values(step, given, loss), engine="virtual")
    assert_whole(got, expected(loss, given))


def test_a_batch_without_targets_has_no_loss() -> None:
    """Its gradient is zero, as in PyTorch; micro-batches without targets add nothing to others."""
    given = data()
    given["targets"][:] = IGNORED
    step = _step("cross_entropy", 4)
    got = Reference(SerializePipeline()(step)).run(_values(step, given, "cross_entropy"))
    assert np.isnan(got[0])
    assert_whole(got[1:], [given["w"], given["v"]])
    given["targets"][::4] = 1  # all in the first micro-batch
    got = Reference(SerializePipeline()(step)).run(_values(step, given, "cross_entropy"))
    assert_whole(got, expected("cross_entropy", given))


def test_a_scalar_output_is_averaged() -> None:
    """A loss of the model itself, as that which balances experts, is one of each micro-batch."""

    def balanced(batch: int) -> ir.IRModule:
        mod = model(batch, "scalar")
        main = mod["main"]
        (block,) = main.body.blocks
        builder = relax.BlockBuilder()
        with builder.function("main", list(main.params)):
            with builder.dataflow():
                for binding in block.bindings[:-1]:
                    builder.emit_normalized(binding)
                out = builder.emit_output(block.bindings[-1].value, "logits")
                share = builder.emit(op.mean(block.bindings[-2].var, axis=[0, 1]))
                aux = builder.emit_output(op.sum(builder.emit(op.square(share))), "balance")
            builder.emit_func_output(relax.Tuple([out, aux]))
        functions = {gv: fn for gv, fn in mod.functions.items() if gv.name_hint != "main"}
        main = builder.get()["main"].with_attr("num_input", 1)
        return ir.IRModule({**functions, ir.GlobalVar("main"): main})

    given = data()
    schedule = "gpipe:stages=1,micro_batches=4"
    loss = "logits:cross_entropy,balance:scalar*0.5"
    turn = SerializePipeline()(
        td.train_step(balanced(BATCH // 4), loss, rate=1.0, schedule=schedule)
    )
    named = {**given, "logits_targets": given["targets"]}
    got = Reference(turn).run([named[name] for name in param_names(turn["main"])])
    plain = expected("cross_entropy", given)
    means = [
        np.tanh(given["x"][m::4].astype("float64") @ given["w"]).mean((0, 1)) for m in range(4)
    ]
    plain[0] += 0.5 * np.mean([(mean**2).sum() for mean in means])
    assert_whole([got[0], got[2]], [plain[0], plain[2]])


def _root(b: relax.BlockBuilder, out: Any, goal: Any) -> Any:
    squares = b.emit(op.square(b.emit(op.subtract(out, goal))))
    return b.emit(op.sqrt(b.emit(op.sum(squares))))


def _shares(b: relax.BlockBuilder, out: Any, goal: Any) -> Any:
    return b.emit(op.sum(b.emit(op.multiply(b.emit(op.nn.softmax(out, axis=0)), goal))))


def _largest(b: relax.BlockBuilder, out: Any, goal: Any) -> Any:
    return b.emit(op.max(b.emit(op.subtract(out, goal))))


def _ratio(b: relax.BlockBuilder, out: Any, goal: Any) -> Any:
    return b.emit(op.divide(b.emit(op.sum(goal)), b.emit(op.sum(b.emit(op.exp(out))))))


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(
    ("write", "words"),
    [
        (_root, "sqrt of .*: it is not linear in a sum over the samples"),
        (_shares, r"softmax of .*: it reduces over the samples \(stat\)"),
        (_largest, r"max of .*: it reduces over the samples \(max\)"),
        (_ratio, "divide of .*: it is not linear in a sum over the samples"),
    ],
)
def test_losses_that_cannot_be_split(
    monkeypatch: pytest.MonkeyPatch, write: Write, words: str, batch: int
) -> None:
    monkeypatch.setitem(FUNCTIONS, "odd", (write, (("goal", "float32"),)))
    mod = model(batch, "odd")
    td.train_step(mod, "odd", schedule="gpipe:stages=1,micro_batches=1")
    with pytest.raises(ModelError, match=f"DIST0354.*{words}"):
        td.train_step(mod, "odd", schedule="gpipe:stages=1,micro_batches=2")


def test_outputs_without_a_batch_cannot_be_split() -> None:
    mod = model(4)
    rows = mod["main"]
    (block,) = rows.body.blocks
    builder = relax.BlockBuilder()
    with builder.function("main", list(rows.params)):
        with builder.dataflow():
            for binding in block.bindings[:-1]:
                builder.emit_normalized(binding)
            out = builder.emit(block.bindings[-1].value)
            flat = builder.emit_output(op.reshape(out, (4 * TOKENS, CLASSES)), "flat")
        builder.emit_func_output(flat)
    mod = ir.IRModule({"main": builder.get()["main"].with_attr("num_input", 1)})
    td.train_step(mod)
    with pytest.raises(
        ModelError, match=r"DIST0354.*flat of .* has no leading dim of the 4 samples"
    ):
        td.train_step(mod, schedule="gpipe:stages=1,micro_batches=2")


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        ("cross_entropy", {}),
        ("weighted", {"weight": "classes"}),
        ("summed", {"reduction": "sum"}),
        ("smoothed", {"label_smoothing": 0.1}),
    ],
)
def test_gradients_of_torch(loss: str, options: dict[str, Any]) -> None:
    """The loss and the gradients that PyTorch has of the whole batch, on ranks and stages."""
    torch = pytest.importorskip("torch")
    given = data(seed=2)
    tensors = {name: torch.tensor(value) for name, value in given.items()}
    weights = [tensors[name].requires_grad_() for name in ("w", "v")]
    out = torch.tanh(tensors["x"] @ weights[0]) @ weights[1]
    options = {k: tensors[v] if k == "weight" else v for k, v in options.items()}
    whole = torch.nn.functional.cross_entropy(
        out.reshape(-1, CLASSES), tensors["targets"].reshape(-1).long(), **options
    )
    whole.backward()
    step = _step(loss, 4, stages=2)
    plan = make_plan(step, "pipeline:micro_batches=4+data_parallel", {"pp": 2, "dp": 2})
    got = td.run(td.distribute(step, plan), _values(step, given, loss), engine="virtual")
    assert_whole(got, [whole.item(), *((w - w.grad).detach().numpy() for w in weights)])
