# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random numbers of JAX: bits as they are, and a Flax training step with the same dropout masks."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the extra jax is not installed")

import jax.numpy as jnp  # noqa: E402

import tvm_distir as td  # noqa: E402
from tvm_distir.execution.runtime.engines.reference import Reference  # noqa: E402
from tvm_distir.models.stablehlo.translated_values import cleaned  # noqa: E402
from tvm_distir.support import ModelError  # noqa: E402


class _Seeded(NamedTuple):
    """An argument of a class that only its writer registers."""

    x: Any
    seed: Any


def run_jitted(function: Any, *args: Any) -> tuple[Any, list[Any]]:
    """The module of a jitted function, and what it computes."""
    mod = td.from_stablehlo(jax.jit(function).lower(*args))
    leaves, _ = jax.tree_util.tree_flatten_with_path(args)
    paths = [cleaned(jax.tree_util.keystr(path)).partition(".") for path, _ in leaves]
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    values = {
        ".".join(filter(None, (names[int(first)], rest))): np.asarray(leaf)
        for (first, _, rest), (_, leaf) in zip(paths, leaves, strict=True)
    }
    expected = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    return mod, Reference(mod).run([values[name] for name in expected])


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.array([1.5, -0.0, np.inf, 1e-45], "float32"), "uint32"),
        (np.array([[0x3F800001, 0xFFC00000]], "uint32"), "float32"),
        (np.array([[1, 2], [0xFFFFFFFF, 7]], "uint32"), "float32"),
        (np.array([[0x3F80, 0x4000], [1, 0xBF80]], "uint16"), "float32"),
        (np.array([0x3F800001, 0x80FF00AA], "uint32"), "uint8"),
        (np.array([1.5, -3.25], "float32"), "int16"),
        (np.array([0x3F80, 0x4000], "uint16"), "bfloat16"),
    ],
)
def test_bits_are_those_of_jax(value: Any, dtype: str) -> None:
    def bits(value: Any) -> Any:
        return jax.lax.bitcast_convert_type(value, jnp.dtype(dtype))

    _, (result,) = run_jitted(bits, value)
    expected = np.asarray(bits(value))
    assert result.dtype == expected.dtype and result.shape == expected.shape
    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", ["bits", "uniform", "normal", "bernoulli", "permutation"])
def test_random_numbers_are_those_of_jax(kind: str) -> None:
    def draw(seed: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(seed), 7)
        first, second = jax.random.split(key)
        if kind == "permutation":
            return jax.random.permutation(first, 12), jax.random.randint(second, (3,), 0, 9)
        make = getattr(jax.random, kind)
        shapes = {"bernoulli": {"p": 0.3, "shape": (5, 3)}}.get(kind, {"shape": (5, 3)})
        return make(first, **shapes), make(second, **shapes)

    for seed in (np.uint32(0), np.uint32(123456789)):
        _, result = run_jitted(draw, seed)
        for a, b in zip(result, draw(seed), strict=True):
            if kind == "normal":  # the inverse error function differs in its last bits
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
            else:
                assert np.array_equal(a, np.asarray(b))


@pytest.mark.parametrize("algorithm", ["RNG_DEFAULT", "RNG_THREE_FRY", "RNG_PHILOX"])
def test_generated_bits_are_those_of_jax(algorithm: str) -> None:
    kinds = jax.lax.RandomAlgorithm

    def draw(key: Any) -> Any:
        out = []
        for shape, dtype in (
            ((7,), "uint32"),
            ((3, 5), "uint8"),
            ((3, 4), "uint16"),
            ((), "uint32"),
        ):
            key, bits = jax.lax.rng_bit_generator(
                key, shape, dtype=jnp.dtype(dtype), algorithm=getattr(kinds, algorithm)
            )
            out.append(bits)
        return key, *out

    for key in ([1, 2, 3, 4], [7, 8, 2**32 - 1, 2**32 - 1]):
        state = np.array(key, "uint32")
        _, results = run_jitted(draw, state)
        for a, b in zip(results, draw(state), strict=True):
            assert np.array_equal(a, np.asarray(b)), (a, b)


def test_keys_of_the_generator_are_those_of_jax() -> None:
    def dropped(x: Any, seed: Any) -> Any:
        first, second = jax.random.split(jax.random.key(seed, impl="rbg"))
        noise = jax.random.uniform(first, x.shape)
        return jnp.where(jax.random.bernoulli(second, 0.5, x.shape), x, noise)

    x, seed = np.full((4, 6), 2.0, "float32"), np.uint32(3)
    mod, (result,) = run_jitted(dropped, x, seed)
    assert np.array_equal(result, np.asarray(dropped(x, seed)))
    plan = td.planning.make_plan(mod, "data_parallel", {"dp": 2})
    assert td.verify(mod, plan).equal


def test_the_inverse_error_function_is_that_of_jax() -> None:
    def inverse(x: Any) -> Any:
        return jax.lax.erf_inv(x)

    x = np.array([-1.0, -0.99999, -0.5, 0.0, 1e-7, 0.3, 0.9, 0.999999, 1.0], "float32")
    _, (result,) = run_jitted(inverse, x)
    np.testing.assert_allclose(result, inverse(x), rtol=1e-5)


def test_a_flax_step_with_dropout_has_the_masks_of_jax() -> None:
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.relu(nn.Dense(32)(x))
            x = nn.Dropout(0.5, deterministic=False)(x)
            x = nn.Dropout(0.1, deterministic=False)(nn.Dense(16)(x))
            return nn.Dense(4)(x)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 16)).astype("float32")
    y = rng.integers(0, 4, 8).astype("int32")
    net = Net()
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = jax.tree.map(np.asarray, net.init(keys, x))["params"]

    def step(params: Any, x: Any, y: Any, seed: Any) -> Any:
        def loss(weights: Any) -> Any:
            rngs = {"dropout": jax.random.key(seed)}
            logits = net.apply({"params": weights}, x, rngs=rngs)
            one_hot = jax.nn.one_hot(y, 4)
            return -(one_hot * jax.nn.log_softmax(logits)).sum(-1).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    seed = np.uint32(3)
    mod, result = run_jitted(step, params, x, y, seed)
    expected = jax.tree.leaves(step(params, x, y, seed))
    for a, b in zip(result, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert not np.allclose(result[0], run_jitted(step, params, x, y, np.uint32(4))[1][0])
    for strategy, mesh in (
        ("data_parallel", {"dp": 4}),
        ("tensor_parallel", {"tp": 2}),
        ("data_parallel+tensor_parallel", {"dp": 2, "tp": 2}),
    ):
        plan = td.planning.make_plan(mod, strategy, mesh)
        assert td.verify(mod, plan).equal


def test_an_artifact_of_jax_export_is_a_model(tmp_path: Any) -> None:
    def step(x: Any, seed: Any) -> Any:
        return x * jax.random.bernoulli(jax.random.key(seed), 0.5, x.shape)

    x, seed = np.ones((4, 6), "float32"), np.uint32(5)
    path = tmp_path / "step.jax"
    artefact = jax.export.export(jax.jit(step))(x, seed).serialize()
    path.write_bytes(artefact)
    for mod in (td.load_model(str(path)).mod, td.from_stablehlo(artefact)):
        (result,) = Reference(mod).run([x, seed])
        assert np.array_equal(result, step(x, seed))
    # The class of an argument, such as the state of an optimizer, is unknown to the reader.
    jax.export.register_namedtuple_serialization(_Seeded, serialized_name="_Seeded")
    exported = jax.export.export(jax.jit(lambda pair: step(*pair)))(_Seeded(x, seed))
    path.write_bytes(exported.serialize().replace(b"_Seeded", b"Unknown"))
    (result,) = Reference(td.load_model(str(path)).mod).run([x, seed])
    assert np.array_equal(result, step(x, seed))
    path.write_bytes(b"\xff\xfe" + path.read_bytes()[:40])
    with pytest.raises(ModelError, match=r"DIST0303.*nor an artifact of jax\.export"):
        td.load_model(str(path))


def test_a_version_of_jax_without_the_readers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones(2, "float32")
    artefact = jax.export.export(jax.jit(lambda x: x + 1))(x).serialize()
    generated = "jax._src.export.serialization_generated"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, generated, None)
        _refuses(artefact, generated, r"Register the classes .*as_text\(\)")
    with monkeypatch.context() as patch:
        patch.delattr(f"{generated}.Exported.MlirModuleSerializedAsNumpy")
        _refuses(artefact, f"{generated}.Exported.Mlir", r"Register the classes .*as_text\(\)")
    exported = jax.export.deserialize(bytearray(artefact))  # what the remedy says
    assert np.array_equal(
        Reference(td.from_stablehlo(exported)).run([np.ones(2, "float32")])[0], [2, 2]
    )
    with monkeypatch.context() as patch:
        patch.delattr("jax._src.interpreters.mlir.make_ir_context")
        _refuses(artefact, r"jax._src.interpreters.mlir.make_ir_context", r"as_text\(\)")


def _refuses(artefact: bytes, part: str, remedy: str) -> None:
    with pytest.raises(ModelError, match=rf"DIST0304 bytes: jax \S+ has no {part}.*{remedy}"):
        td.from_stablehlo(artefact)
