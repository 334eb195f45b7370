# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Static shapes of a graph's inputs: as the file pins them, and as they are wanted."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from ...errors import ModelError

Shape = tuple[int, ...]


def static_shapes(
    model: onnx.ModelProto,
    data: list[str],
    dims: Mapping[str, int],
    batch: int | None,
    place: str,
) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Shapes of all graph inputs as the file pins them, and as they are wanted.

    Parameters
    ----------
    model : ModelProto
        Weightless.
    data : list of str
        Names of the data inputs.
    dims : mapping of str to int
        Sizes for named symbolic dims.
    batch : int, optional
        New size of dim 0 of the data inputs.
    place : str
        The model, for messages.

    Raises
    ------
    ModelError
        DIST0313 a dim is not known, DIST0314 no common batch dim.
    """
    old: dict[str, Shape] = {}
    for value in model.graph.input:
        if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
            raise _unknown_dim(value.name, "its shape", place, "Export it with a shape.")
        sizes = []
        for index, dim in enumerate(value.type.tensor_type.shape.dim):
            symbol = dim.dim_param
            if dim.HasField("dim_value") and dim.dim_value > 0:
                sizes.append(int(dim.dim_value))
            elif symbol in dims:
                sizes.append(dims[symbol])
            elif index == 0 and batch is not None and value.name in data:
                sizes.append(batch)
            else:
                word = f'dim {index} ("{symbol}")' if symbol else f"dim {index}"
                named = f" or {symbol}=N" if symbol else ""
                remedy = f"Give its size: {'--batch N' if index == 0 else 'dims'}{named}."
                raise _unknown_dim(value.name, word, place, remedy)
        old[value.name] = tuple(sizes)
    if batch is None:
        return old, old
    ranked = [name for name in data if old[name]]
    sizes_seen = sorted({old[name][0] for name in ranked} - {batch})
    if not ranked or len(sizes_seen) > 1:
        shown = ", ".join(f"{name} {list(old[name])}" for name in data)
        raise ModelError(
            "DIST0314",
            f"the data inputs have no common dim 0: {shown}",
            place=place,
            remedy="Leave --batch out, or export the model at the batch you want.",
        )
    new = {name: (batch, *shape[1:]) if name in ranked else shape for name, shape in old.items()}
    return old, new


def _unknown_dim(name: str, what: str, place: str, remedy: str) -> ModelError:
    return ModelError(
        "DIST0313", f'of the input "{name}", {what} is not known', place=place, remedy=remedy
    )
