# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs of torch.export: names, weights, archives, open dims, regions, writes, refusals."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import tvm_distir as td  # noqa: E402
from tvm_distir.execution.runtime.engines.reference import Reference  # noqa: E402
from tvm_distir.execution.verification.input_specs import input_specs  # noqa: E402
from tvm_distir.execution.verification.random_inputs import draw_inputs  # noqa: E402
from tvm_distir.interface.command import main  # noqa: E402
from tvm_distir.models.frontends import load_weights  # noqa: E402
from tvm_distir.models.model import load_model  # noqa: E402
from tvm_distir.models.torch.signature import as_array  # noqa: E402
from tvm_distir.support.errors.tree import ModelError  # noqa: E402


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Layers, a buffer that a checkpoint holds, one that it does not, and a table of numbers."""

    def __init__(self, layers=3):
        super().__init__()
        self.embed = nn.Embedding(19, 8)
        self.layers = nn.ModuleList([Block(8) for _ in range(layers)])
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("shift", torch.arange(8) / 8, persistent=False)
        self.register_buffer("order", torch.arange(7, -1, -1))

    def forward(self, ids, scale):
        x = self.embed(ids) * scale + self.shift
        for layer in self.layers:
            x = layer(x)
        return self.norm(x[..., self.order].transpose(1, 2)).transpose(1, 2)


def net(layers=3):
    torch.manual_seed(0)
    result = Net(layers)
    result.norm.running_mean.normal_()
    return result.eval()


ARGS = torch.arange(12).reshape(2, 6), torch.tensor(1.5)


def export(module, args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module, args, **options)


def check(module, args, mod=None, weights=None, **options):
    """The module gives what torch gives; returns it."""
    with torch.no_grad():
        program = export(module, args)
        expected = module(*args)
    mod = mod or td.from_exported_program(program, **options)
    main = mod["main"]
    stored = {**load_weights(program), **(weights or {})}
    names = list(main.attrs["dist.param_names"])[int(main.attrs["num_input"]) :]
    values = [as_array(arg) for arg in args] + [stored[str(name)] for name in names]
    result = Reference(mod).run(values)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    for a, b in zip(result, expected, strict=True):
        np.testing.assert_allclose(a, as_array(b), rtol=1e-4, atol=1e-5)
    return mod


def test_parameters_have_the_names_of_the_checkpoint():
    module = net()
    mod = check(module, ARGS)
    specs = input_specs(mod)
    state = {name for name in module.state_dict() if not name.endswith("batches_tracked")}
    assert [spec.name for spec in specs[:2]] == ["ids", "scale"]
    assert {spec.name for spec in specs[2:]} == state - {"order"}  # a table stands in the module
    roles = {spec.name: spec.usage for spec in specs}
    assert (roles["ids"], roles["embed.weight"], roles["norm.running_var"]) == (
        "data",
        "weight",
        "variance",
    )
    values = {str(b.var.name) for block in mod["main"].body.blocks for b in block.bindings}
    assert {"embed_embedding", "layers_0_up_linear", "layers_2_norm_layer_norm"} <= values


def test_layers_become_a_function():
    mod = td.transforms.OutlineRepeatedLayers()(td.from_exported_program(export(net(), ARGS)))
    assert {str(gv.name_hint) for gv in mod.get_global_vars()} == {"main", "layer"}


def test_meta_programs_are_those_of_real_models(tmp_path):
    with torch.device("meta"):
        meta = Net().eval()
    torch.export.save(export(meta, tuple(a.to("meta") for a in ARGS)), tmp_path / "net.pt2")
    mod = td.from_exported_program(tmp_path / "net.pt2")
    real = td.from_exported_program(export(net(), ARGS))
    assert {s.name: (s.shape, s.dtype) for s in input_specs(mod)} == {
        **{s.name: (s.shape, s.dtype) for s in input_specs(real)},
        "order": ((8,), "int64"),
        "shift": ((8,), "float32"),
    }
    assert load_weights(mod) == {}
    module = net()
    weights = {name: as_array(value) for name, value in module.named_buffers()}
    check(module, ARGS, mod, weights)


class Tied(nn.Module):
    """An embedding whose weight is that of the head, and a part of that storage."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(19, 8), nn.Linear(8, 19, bias=False)
        self.head.weight = self.embed.weight
        self.part = nn.Parameter(self.embed.weight.detach()[1])

    def forward(self, ids):
        return self.head(self.embed(ids) * self.part)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("strict", [False, True])
def test_tied_weights_are_one(tmp_path, device, strict):
    with torch.device(device):
        program = export(Tied(), (ARGS[0].to(device),), strict=strict)
    torch.export.save(program, tmp_path / "tied.pt2")
    for source in (program, tmp_path / "tied.pt2"):
        if source is not program and device == "meta" and not strict:
            continue  # such an archive does not say which weights share their storage
        mod = td.from_exported_program(source)
        assert sorted(spec.name for spec in input_specs(mod)) == ["embed.weight", "ids", "part"]
        weights = {name: as_array(value) for name, value in Tied().named_parameters()}
        assert set(load_weights(source)) == (set() if device == "meta" else set(weights))
        check(Tied(), ARGS[:1], mod, weights)


def test_archives_are_models_with_weights(tmp_path):
    path = tmp_path / "net.pt2"
    module = net()
    torch.export.save(export(module, ARGS), path)
    model = load_model(str(path))
    assert (model.name, model.kind) == ("net", "torch")
    weights = load_weights(model.mod)
    for name, value in module.named_parameters():
        np.testing.assert_array_equal(weights[name], value.detach())
    assert model.read_weights().keys() == weights.keys()
    report = td.verify(model.mod, td.planning.make_plan(model.mod, "tensor_parallel", {"tp": 2}))
    assert report.equal


def test_the_command_takes_archives(tmp_path, capsys):
    path = str(tmp_path / "net.pt2")
    torch.export.save(export(net(4), ARGS), path)
    plan = ["--strategy", "data_parallel+tensor_parallel", "--mesh", "dp=2,tp=2"]
    assert main(["analyze", path, *plan, "--system", "dgx-a100"]) == 0
    assert "  layers.*  " in capsys.readouterr().out
    folder, inputs, results = (str(tmp_path / name) for name in ("folder", "in.npz", "out.npz"))
    assert main(["deploy", path, *plan, "-o", folder]) == 0
    np.savez(inputs, ids=ARGS[0].numpy(), scale=ARGS[1].numpy())
    assert main(["run", folder, "--inputs", inputs, "-o", results]) == 0
    with torch.no_grad():
        expected = net(4)(*ARGS)
    np.testing.assert_allclose(np.load(results)["output0"], expected, rtol=1e-4, atol=1e-5)


def test_archives_without_weights_take_those_of_a_checkpoint(tmp_path):
    numpy_files = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    with torch.device("meta"):
        meta = nn.Sequential(Block(8), nn.Linear(8, 4)).eval()
    path, folder, data, results = (str(tmp_path / n) for n in ("m.pt2", "f", "in.npz", "out.npz"))
    torch.export.save(export(meta, (torch.zeros(2, 8, device="meta"),)), path)
    real = nn.Sequential(Block(8), nn.Linear(8, 4)).eval()
    (tmp_path / "weights").mkdir()
    state = {name: value.numpy() for name, value in real.state_dict().items()}
    for file, prefix in (("a", "0."), ("b", "1.")):
        stored = {name: value for name, value in state.items() if name.startswith(prefix)}
        numpy_files.save_file(stored, tmp_path / "weights" / f"{file}.safetensors")
    plan = ["--strategy", "tensor_parallel", "--mesh", "tp=2"]
    weights = ["--weights", str(tmp_path / "weights")]
    assert main(["deploy", path, *plan, *weights, "-o", folder]) == 0
    x = torch.rand(2, 8)
    np.savez(data, input=x.numpy())
    assert main(["run", folder, "--inputs", data, "-o", results]) == 0
    with torch.no_grad():
        np.testing.assert_allclose(np.load(results)["output0"], real(x), rtol=1e-4, atol=1e-5)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x * self.scale.exp()


def test_scalar_weights_of_archives_are_verified(tmp_path):
    torch.export.save(export(Scaled(), (torch.rand(4, 3),)), tmp_path / "scaled.pt2")
    mod = td.from_exported_program(tmp_path / "scaled.pt2")
    (spec,) = [spec for spec in input_specs(mod) if spec.name == "scale"]
    assert [a.shape for a in draw_inputs(mod, weights=load_weights(mod))] == [(4, 3), spec.shape]
    assert td.verify(mod, td.planning.make_plan(mod, "data_parallel", {"dp": 2})).equal


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays(dtype):
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)
    mod = td.from_exported_program(export(module, (torch.ones(4, 8, dtype=dtype),)))
    kinds = {str(b.var.ty.dtype) for block in mod["main"].body.blocks for b in block.bindings}
    assert len(kinds) == 1 and str(dtype).removeprefix("torch.") in kinds.pop()


class Batched(nn.Module):
    def forward(self, x):
        return (x.reshape(x.shape[0], -1) * x.shape[1]).softmax(-1)


def test_open_dims_get_sizes():
    batch = torch.export.Dim("batch", max=64)
    shapes = ({0: batch, 1: torch.export.Dim.DYNAMIC},)
    program = export(Batched(), (torch.rand(4, 3, 2),), dynamic_shapes=shapes)
    mod = td.from_exported_program(program, batch=6, dims={"x.1": 5})
    assert [int(n) for n in mod["main"].params[0].ty.shape] == [6, 5, 2]
    args = (torch.rand(6, 5, 2),)
    result = Reference(mod).run([args[0].numpy()])[0]
    np.testing.assert_allclose(result, Batched()(*args), rtol=1e-5)
    for options, code, word in (
        ({}, "DIST0313", "--batch"),
        ({"batch": 6}, "DIST0313", "--dim"),
        ({"batch": 65, "dims": {"x.1": 5}}, "DIST0313", "outside"),
        ({"batch": 6, "dims": {"x.2": 5}}, "DIST0313", "x.1"),
        ({"batch": 0}, "DIST0314", "positive"),
    ):
        with pytest.raises(ModelError, match=word) as caught:
            td.from_exported_program(program, **options)
        assert caught.value.code == code
    mod = td.from_exported_program(export(Batched(), args), batch=7)
    wider = torch.rand(7, 5, 2)
    np.testing.assert_allclose(Reference(mod).run([wider.numpy()])[0], Batched()(wider), rtol=1e-5)


class Regions(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3))

    def forward(self, x):
        with torch.no_grad():
            angle = torch.outer(torch.arange(4.0), self.weight)
            pair = angle.cos(), angle.sin()
        return x * pair[0] + pair[1]


def test_regions_without_gradients_are_opened():
    program = export(Regions(), (torch.rand(2, 4, 3),))
    assert any("set_grad" in str(node.target) for node in program.graph.nodes)
    check(Regions(), (torch.rand(2, 4, 3),))


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2, 3))

    def forward(self, x):
        self.seen.add_(x)
        y = x.clone()
        y[:, 1] = 0.0
        y.relu_()
        return y + self.seen


def test_writes_become_new_values():
    module, x = Writing(), torch.rand(2, 3)
    program = export(module, (x,))
    result = Reference(td.from_exported_program(program)).run([x.numpy(), np.ones((2, 3), "f4")])
    expected = x.clone()
    expected[:, 1] = 0
    np.testing.assert_allclose(result[0], expected + 1 + x, rtol=1e-6)
    every = td.from_exported_program(program, outputs="all")
    results = Reference(every).run([x.numpy(), np.ones((2, 3), "f4")])
    np.testing.assert_allclose(results[0], 1 + x, rtol=1e-6)
    np.testing.assert_allclose(results[1], result[0])


class Sampled(nn.Module):
    def __init__(self, mode, padding):
        super().__init__()
        self.mode, self.padding = mode, padding

    def forward(self, image, grid):
        options = {"padding_mode": self.padding, "align_corners": False}
        return F.grid_sample(image, grid, mode=self.mode, **options)


@pytest.mark.parametrize(
    ("mode", "padding"), [("bilinear", "zeros"), ("bilinear", "border"), ("nearest", "zeros")]
)
def test_images_are_sampled_at_points(mode, padding):
    """Points beyond the image too; the core operator is decomposed by torch."""
    image, grid = torch.rand(2, 3, 5, 6), torch.rand(2, 4, 7, 2) * 3 - 1.5
    mod = check(Sampled(mode, padding), (image, grid))
    assert td.verify(mod, td.planning.make_plan(mod, "data_parallel", {"dp": 2})).equal


class Flagged(nn.Module):
    def forward(self, x, negative, power=2):
        return -(x**power) if negative else x


def test_numbers_that_were_exported_stay():
    program = export(Flagged(), (torch.rand(3), True), kwargs={"power": 3})
    mod = td.from_exported_program(program)
    assert len(mod["main"].params) == 1
    x = np.asarray([1.0, 2.0, 3.0], "float32")
    np.testing.assert_allclose(Reference(mod).run([x])[0], -(x**3), rtol=1e-6)


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "code", "word"),
    [
        (lambda x: torch.linalg.inv(x), "DIST0360", "linalg_inv"),
        (lambda x: F.dropout(x, 0.5, True), "DIST0361", "training"),
        (lambda x: F.max_pool2d(x[None], 2, return_indices=True)[1], "DIST0361", "result"),
        (lambda x: x.to(torch.complex64).abs(), "DIST036", "complex"),
    ],
)
def test_what_is_refused(function, code, word, capfd):
    program = export(Call(function), (torch.rand(4, 4),))
    with pytest.raises(ModelError, match=word) as caught:
        td.from_exported_program(program)
    assert caught.value.code.startswith(code)
    assert capfd.readouterr().err == ""


def test_the_module_path_is_told():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Call(torch.linalg.inv)])

        def forward(self, x):
            return self.blocks[0](x)

    with pytest.raises(ModelError) as caught:
        td.from_exported_program(export(Outer(), (torch.eye(3),)))
    assert "blocks.0" in caught.value.location


def test_broken_archives_are_refused(tmp_path):
    path = tmp_path / "net.pt2"
    torch.export.save(export(net(1), ARGS), path)
    whole = path.read_bytes()
    for remaining in (0, 100, len(whole) // 2, len(whole) - 40):
        path.write_bytes(whole[:remaining])
        with pytest.raises(ModelError, match="DIST0303"):
            td.from_exported_program(path)
    path.write_bytes(b"not a zip" * 50)
    with pytest.raises(ModelError, match="DIST0303"):
        load_model(str(path))
    with pytest.raises(ModelError, match="DIST0301"):
        load_model(str(tmp_path / "none.pt2"))
