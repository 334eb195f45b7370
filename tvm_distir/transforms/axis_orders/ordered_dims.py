# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The dims of a module's tensors that several mesh axes shard, and which are tied to each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tvm import ir
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir import handle, labels_of, static_shape, value_types
from tvm_distir.core.ir.attributes import VALUE_MARK
from tvm_distir.core.ir.views import Axes, Tiling, View, family, tiling
from tvm_distir.core.plan import plain_name
from tvm_distir.support import PropagationError

NONE = -1


@dataclass(frozen=True, eq=False)
class PlacedTensor:
    """A tensor of the module.

    Attributes
    ----------
    ty : DTensorType
    view : View
        The view on which its type places it.
    tiles : Tiling
        The tiles in the order of the view.
    dims : tuple of int
        The number of the order of each dim, :data:`NONE` for a dim that has none.
    has_order : bool
        Whether a dim has one.
    """

    ty: DTensorType
    view: View
    tiles: Tiling
    dims: tuple[int, ...]
    has_order: bool


Leaves = list[PlacedTensor | None]
"""The tensors of a value; None for a leaf without a placement."""


class OrderedDims:
    """The dims that have an order of axes, by number.

    Attributes
    ----------
    axes : list of tuple of int
        The axes of the family that shard each dim, as the module orders them, without those of a
        single device, which have no order.
    """

    def __init__(self) -> None:
        self.axes: list[Axes] = []
        self._parents: list[int] = []
        self._fixed: list[int] = []
        self._stated: dict[int, tuple[Axes, str]] = {}
        self._unordered: dict[int, Leaves] = {}
        self._types: dict[int, tuple[PlacedTensor, dict[int, Axes], bool]] = {}

    def root(self, number: int) -> int:
        """Return the number that stands for a dim and all that is tied to it."""
        parents = self._parents
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    def state(
        self, end: str, ends: Mapping[str, Leaves], orders: Sequence[Axes], name: str
    ) -> None:
        """State the orders of the axes that shard dims of a value of a function, among all ends."""
        key, location = end if end in ends else plain_name(end), f"{name}/{end}"
        if key not in ends and not end.startswith(VALUE_MARK):  # a value may be read by nothing
            problem = "the order of mesh axes is stated of what the function does not have"
            remedy = "State orders of parameters of this function, and of its results."
            raise PropagationError("DIST0405", problem, location=location, remedy=remedy)
        for tensor in filter(None, ends.get(key, ())):
            for order in orders:
                self._state(tensor, order, location)

    def _state(self, tensor: PlacedTensor, order: Axes, location: str) -> None:
        axes = [tensor.view.axes[a] for a in order]
        for number in tensor.dims:
            if number != NONE and set(self.axes[number]) <= set(axes):
                self._stated[number] = tuple(a for a in axes if a in self.axes[number]), location

    def stated(self) -> dict[int, Axes]:
        """Return the stated orders by root.

        Raises
        ------
        PropagationError
            DIST0405 where tied dims have other orders.
        """
        result: dict[int, Axes] = {}
        fixed = {self.root(number) for number in self._fixed}
        for number, (axes, location) in self._stated.items():
            root = self.root(number)
            required = self.axes[root] if root in fixed else axes
            if result.setdefault(root, axes) != axes or required != axes:
                raise PropagationError(
                    "DIST0405",
                    "the order of the mesh axes that shard a dim is stated, and a value that is "
                    "computed with it, or passed with it, has another",
                    location=location,
                    remedy="State the same order for both, or none.",
                )
        return result

    def free(self) -> list[int]:
        """Return the roots whose order may be chosen."""
        fixed = {self.root(number) for number in self._fixed}
        orders: dict[int, set[Axes]] = {}
        for number, axes in enumerate(self.axes):
            orders.setdefault(self.root(number), set()).add(axes)
        return [root for root, axes_of in orders.items() if root not in fixed and len(axes_of) == 1]

    def tensor(self, ty: ir.Type) -> PlacedTensor | None:
        """Return the tensor of a type; None for types without a placement."""
        if type(ty) is not DTensorType:
            return None
        key = handle(ty)
        if key not in self._types:
            self._types[key] = _facts(ty)
        plain, ordered, is_known = self._types[key]
        if not ordered:
            return plain
        first, dims = len(self.axes), list(plain.dims)
        for number, d in enumerate(ordered, first):
            dims[d] = number
        self.axes += ordered.values()
        numbers = range(first, len(self.axes))
        self._parents += numbers
        self._fixed += () if is_known else numbers
        return PlacedTensor(plain.ty, plain.view, plain.tiles, tuple(dims), True)

    def tensors(self, ty: ir.Type) -> Leaves:
        """Return the tensors of a type, always the same where none has an order."""
        key = handle(ty)
        if key not in self._unordered:
            leaves = [self.tensor(leaf) for leaf in value_types(ty)]
            if any(leaf is not None and leaf.has_order for leaf in leaves):
                return leaves
            self._unordered[key] = leaves
        return self._unordered[key]

    def tie(self, some: Leaves, others: Leaves) -> None:
        """Tie the dims of pairs of tensors; of a pair with another value the orders stay."""
        for leaf, other in zip(some, others, strict=True):
            if leaf is None or other is None:
                self.fix([leaf, other])
                continue
            if not (leaf.has_order or other.has_order):
                continue
            for pair in zip(leaf.dims, other.dims, strict=True):
                if NONE in pair:
                    self.keep(pair)
                else:
                    self.join(pair)

    def join(self, numbers: Sequence[int]) -> None:
        """Tie some dims."""
        for number in numbers[1:]:
            self._parents[self.root(number)] = self.root(numbers[0])

    def fix(self, leaves: Iterable[PlacedTensor | None]) -> None:
        """Keep the orders of all dims of some tensors."""
        self.keep(n for leaf in leaves if leaf is not None for n in leaf.dims)

    def keep(self, numbers: Iterable[int]) -> None:
        """Keep the orders of some dims."""
        self._fixed += [number for number in numbers if number != NONE]


def _facts(ty: DTensorType) -> tuple[PlacedTensor, dict[int, Axes], bool]:
    """Return a tensor without orders, those by dim, and whether its shape is known."""
    view, ndim = family(ty.device_mesh), int(ty.tensor_ty.ndim)
    tiles = tiling(view, labels_of(ty.placement), ndim)
    sizes = view.family[0]
    several = [tuple(a for a in axes if sizes[a] > 1) for axes in tiles.dims]
    ordered = {d: axes for d, axes in enumerate(several) if len(axes) > 1}
    plain = PlacedTensor(ty, view, tiles, (NONE,) * ndim, False)
    return plain, ordered, static_shape(ty) is not None
