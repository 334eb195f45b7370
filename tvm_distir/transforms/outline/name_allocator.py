# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose readable names for outlined functions and parameters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from tvm_distir.core.plan import plain_name

SHORTEST_NAME = 3
"""A shorter word before a layer's number, as in ``h.0.attn``, names no function."""

_SEPARATORS = "._/: "


class NameAllocator:
    """Allocator of unique names."""

    def __init__(self, used_names: Iterable[str] = ()) -> None:
        self.used_names = {plain_name(name) for name in used_names}
        self.numbers: dict[str, int] = {}

    def fresh(self, wish: str) -> str:
        """Return the name, or with the first free number, unique as TVMScript prints it."""
        if not wish or wish[0].isdigit():
            wish = f"p{wish}"
        plain = plain_name(wish)
        number = self.numbers.get(plain, 0)
        name = wish if not number else f"{wish}_{number}"
        while plain_name(name) in self.used_names:
            number += 1
            name = f"{wish}_{number}"
        self.numbers[plain] = number
        self.used_names.add(plain_name(name))
        return name


def common_name(names: Sequence[str]) -> tuple[str, str] | None:
    """Split the names of a tensor in each layer at the layer's number.

    Parameters
    ----------
    names : sequence of str
        Say ``h.0.attn.weight`` and ``h.1.attn.weight``.

    Returns
    -------
    parts : (str, str) or None
        The text before and after the first number that differs, ``("h.", ".attn.weight")``; the
        name and an empty text where all are equal; None where more than numbers differ.
    """
    split = [re.split(r"(\d+)", name) for name in names]
    if any(len(parts) != len(split[0]) or parts[::2] != split[0][::2] for parts in split):
        return None
    for i in range(1, len(split[0]), 2):
        if any(parts[i] != split[0][i] for parts in split):
            rest = ["" if len({p[j] for p in split}) > 1 else split[0][j] for j in _after(split, i)]
            return "".join(split[0][:i]), "".join(rest)
    return names[0], ""


def _after(split: list[list[str]], i: int) -> range:
    return range(i + 1, len(split[0]))


def weight_name(names: Sequence[str]) -> str:
    """Name a parameter whose arguments are parameters, as the model names them in a layer."""
    common = common_name(names)
    if common is not None:
        return common[1].strip(_SEPARATORS) or common[0].strip(_SEPARATORS) or "w"
    words = [re.split(r"[._/:]+", name) for name in names]
    shared: list[str] = []
    for column in zip(*(reversed(parts) for parts in words)):
        if len(set(column)) > 1 or column[0].isdigit():
            break
        shared.insert(0, column[0])
    return ".".join(shared) or "w"


def value_name(names: Sequence[str]) -> str:
    """Name a parameter whose arguments are computed: ``softmax`` for ``softmax7`` and 9."""
    before, after = common_name(names) or ("", "")
    name = after.strip(_SEPARATORS) or before.strip(_SEPARATORS)
    return "x" if re.fullmatch(r"((lv|gv)_?\d*)?", name) else name


def function_name(weights: Iterable[Sequence[str]], bound: Sequence[str], convolves: bool) -> str:
    """Name a function by the common text of its weights before the layer's number.

    Parameters
    ----------
    weights : iterable of sequence of str
        The names in all layers of each parameter that is a weight.
    bound : sequence of str
        Names of the variables inside; TVM's Gradient says ``adjoint`` in them.
    convolves : bool
        Whether the name is ``block`` rather than ``layer`` where weights do not decide.
    """
    votes: Counter[str] = Counter()
    for names in weights:
        common = common_name(names)
        words = re.findall(r"[A-Za-z]\w*", common[0].replace("_", " ")) if common else []
        if words and common is not None and common[1]:
            votes[words[-1]] += 1
    name = "block" if convolves else "layer"
    if votes:
        word = max(votes, key=lambda w: votes[w])
        if len(word) >= SHORTEST_NAME:
            name = word[:-1] if word.endswith("s") and not word.endswith("ss") else word
    backward = sum("adjoint" in title for title in bound)
    return f"{name}_backward" if 4 * backward > len(bound) else name
