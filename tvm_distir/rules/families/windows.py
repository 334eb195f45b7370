# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules of ops that slide a window over spatial dims: convolutions and pools."""

from __future__ import annotations

from typing import Any

from ..dims import elements, nominal
from ..draft import CallShape, Draft
from ..halo import Window, blocks_with_borders, tie_halo, windows
from ..halo_back import tie_contracted
from ..registry import register_sharding_rule


def letters(layout: str) -> str | None:
    """Dim names of a layout without split dims (NCHW4c has one)."""
    return layout if layout.isalpha() and layout.isupper() else None


def convolution_layouts(call: CallShape) -> tuple[str, str, str] | None:
    """Dim names of the data, the weight and the result; None where one has split dims."""
    data = letters(str(call.attrs.data_layout))
    weight = letters(str(call.attrs.kernel_layout))
    out = letters(str(call.attrs.out_layout) or str(call.attrs.data_layout))
    return None if data is None or weight is None or out is None else (data, weight, out)


def no_blocks(extent: Any, result: Any) -> str | None:
    """Why a spatial dim has no blocks: its extent is not known, or it is too short."""
    if not isinstance(extent, int) or not isinstance(result, int):
        return "spatial dim of unknown extent: how many neighbour rows it needs is not known"
    if extent < 2 or result < 2:
        return f"{extent} rows give {result}: there are no blocks"
    return None


def _obstacle(call: CallShape, window: Window, extent: Any, result: Any) -> str | None:
    """Why blocks of a spatial dim cannot be had with rows of the neighbours."""
    if (why := no_blocks(extent, result)) is not None:
        return why
    if _counts_apart(call, window, extent, result):
        if bool(call.attrs.ceil_mode):
            return "with ceil_mode, windows at the border average fewer rows"
        if blocks_with_borders(window, extent, result) == 1:
            return "windows at the border average fewer rows, and even blocks are too small"
    return None


def _counts_apart(call: CallShape, window: Window, extent: int, result: int) -> bool:
    """Whether an average divides by fewer elements at the border than elsewhere."""
    if "avg_pool" not in call.op:
        return False
    over = window.overhang(extent, result)
    if bool(call.attrs.count_include_pad):
        return over > window.after
    return bool(window.before) or over > 0


def suits_map(window: Window, result: Any) -> bool:
    """Whether blocks of separate windows are best cut evenly: nothing is ever exchanged.

    Where few devices divide the rows, uneven blocks (which exchange rows) are offered instead.
    """
    if window.stride == 1 or not isinstance(result, int):
        return True
    return result <= 2 or result % 4 == 0


def _tie_spatial(draft: Draft, data: str, out: str, sliding: list[Window], what: str) -> None:
    names = [c for c in data if c not in "NC"]
    for name, window in zip(names, sliding):
        d, o = data.index(name), out.index(name)
        extent, result = draft.call.ins[0][d], draft.call.outs[0][o]
        if window.separate(extent, result) and suits_map(window, result):
            draft.tie({0: d}, {0: o}, size=result, uneven=window.stride == 1)
            continue
        why = _obstacle(draft.call, window, extent, result)
        if why is not None:
            draft.whole("in", 0, d, f"spatial dim of a {what}: {why}")
            draft.whole("out", 0, o, f"spatial dim of a {what}: {why}")
        elif _counts_apart(draft.call, window, extent, result):
            blocks = blocks_with_borders(window, extent, result)
            tie_halo(draft, d, o, window, extent, result, blocks)
        else:
            tie_halo(draft, d, o, window, extent, result)


def _tie_contracted(draft: Draft, data: str, weight: str, out: str, sliding: list[Window]) -> None:
    """Spatial dims of the convolution that is a weight's gradient, in which all rows are summed.

    Such a convolution has the samples as its input channels: its data layout names them first.
    """
    names = [c for c in data if c not in "NC"]
    for name, window in zip(names, sliding):
        d, k, o = data.index(name), weight.index(name), out.index(name)
        why = no_blocks(draft.call.ins[0][d], draft.call.ins[1][k])
        if why is None and isinstance(draft.call.outs[0][o], int):
            tie_contracted(draft, d, k, window, draft.call.outs[0][o])
        draft.whole("out", 0, o, "positions of the kernel whose gradient it is")
        for number, dim in ((0, d), (1, k)):
            draft.whole("in", number, dim, f"spatial dim of a weight's gradient: {why}")


def unsupported(draft: Draft) -> Draft:
    """Nothing may be cut."""
    draft.default_why = "the layout has split dims"
    return draft


@register_sharding_rule("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")
def convolution(call: CallShape) -> Draft:
    """Batch and output channels are kept, input channels summed; groups are cut as a whole.

    Spatial dims need neighbour rows; those of a weight's gradient are summed, too.
    FLOPs: 2 x results x (input channels per group) x kernel.
    """
    draft = Draft(call)
    found = convolution_layouts(call)
    if found is None:
        return unsupported(draft)
    data, weight, out = found
    groups = int(call.attrs.groups)
    w = call.ins[1]
    kernel = tuple(nominal(w[weight.index(c)]) for c in data if c not in "NC")
    draft.tie({0: data.index("N")}, {0: out.index("N")})
    if groups == 1:
        draft.tie({1: weight.index("O")}, {0: out.index("C")})
        draft.tie({0: data.index("C"), 1: weight.index("I")}, {}, "sum")
    else:
        draft.tie(
            {0: data.index("C"), 1: weight.index("O")},
            {0: out.index("C")},
            size=groups,
            uneven=False,
        )
        draft.whole("in", 1, weight.index("I"), "channels are cut in whole groups")
    for c in data:
        if c not in "NC":
            draft.whole("in", 1, weight.index(c), "kernel positions move together")
    sliding = windows(call.attrs, kernel)
    if data.index("C") < data.index("N"):
        _tie_contracted(draft, data, weight, out, sliding)
    else:
        _tie_spatial(draft, data, out, sliding, "convolution")
    draft.linear((0,), (1,))
    taps = nominal(w[weight.index("I")])
    for n in kernel:
        taps *= n
    draft.work(2 * elements(call.outs[0]) * taps, "conv")
    return draft


_POOLS = [f"relax.nn.{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)]


@register_sharding_rule(*_POOLS)
def pool(call: CallShape) -> Draft:
    """Batch and channels are kept; an average is linear."""
    draft = Draft(call)
    data = letters(str(call.attrs.layout))
    out = letters(str(call.attrs.out_layout) or str(call.attrs.layout))
    if data is None or out is None:
        return unsupported(draft)
    kernel = call.integers("pool_size") or (1,)
    count = len(data) - 2
    kernel = kernel * (count // len(kernel))
    for c in "NC":
        draft.tie({0: data.index(c)}, {0: out.index(c)})
    _tie_spatial(draft, data, out, windows(call.attrs, kernel), "pool")
    if "avg" in call.op and call.floats:  # an integer average rounds
        draft.linear((0,))
    taps = 1
    for n in kernel:
        taps *= n
    draft.per_element(taps)
    return draft


@register_sharding_rule(*(f"relax.nn.adaptive_avg_pool{n}d" for n in (1, 2, 3)))
def adaptive_pool(call: CallShape) -> Draft:
    """Batch and channels are kept; spatial windows depend on the whole extents."""
    draft = Draft(call)
    data = letters(str(call.attrs.layout))
    out = letters(str(call.attrs.out_layout) or str(call.attrs.layout))
    if data is None or out is None:
        return unsupported(draft)
    for c in "NC":
        draft.tie({0: data.index(c)}, {0: out.index(c)})
    draft.default_why = "the windows of an adaptive pool depend on the whole extent"
    if call.floats:
        draft.linear((0,))
    draft.work(elements(call.ins[0]))
    return draft


NEAREST = "nearest_neighbor"
"""Method of a resize that copies pixels."""


@register_sharding_rule("relax.image.resize2d", "relax.image.resize3d")
def resize(call: CallShape) -> Draft:
    """Batch and channels are kept, and spatial dims whose pixels are copied whole times."""
    draft = Draft(call)
    data = letters(str(call.attrs.layout))
    if data is None:
        return unsupported(draft)
    for d, c in enumerate(data):
        if c in "NC":
            draft.tie({0: d}, {0: d})
        elif _copies(call, call.ins[0][d], call.outs[0][d]):
            draft.tie({0: d}, {0: d}, size=call.ins[0][d])
    draft.default_why = "sampled positions depend on the whole extent"
    draft.per_element(8)
    return draft


def _copies(call: CallShape, extent: Any, result: Any) -> bool:
    """Whether a spatial dim of a resize repeats each pixel the same number of times.

    A result o of k copies comes from floor(o / k), or from the pixel whose middle is nearest to
    (o + 1/2) / k - 1/2: that is less than 1/2 away from one pixel, so rounding has no ties.
    """
    if not isinstance(extent, int) or not isinstance(result, int) or extent < 2:
        return False
    mode, rounding = (
        str(call.attrs.coordinate_transformation_mode),
        str(call.attrs.rounding_method),
    )
    kept = (mode == "asymmetric" and rounding == "floor") or (
        mode == "half_pixel" and rounding.startswith("round")
    )
    return str(call.attrs.method) == NEAREST and kept and result % extent == 0
