# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read profiles, which describe the kernels of a backend as data (``data/*.json``)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from tvm_distir.core.ops import KERNEL_CLASSES
from tvm_distir.hardware import PROFILES, no_json, offered, offered_names, wrong
from tvm_distir.support import (
    Count,
    HardwareError,
    PositiveCount,
    Text,
    check_version,
    nearest,
    one_of,
    read_json,
    read_model,
)

from .weight_kinds import WEIGHTS, Quantization, weight_quantization

SCHEMA_VERSION = 1
DATA = Path(__file__).parent / "data"


_FORMER = re.compile(r"(serving|fused)-(fp8|fp8-block|nvfp4|int4|int8)(?:-weights)?")
"""Earlier names of profiles with weights of a kind."""


@dataclass(frozen=True)
class FusionRule:
    """Rule of a kernel: an anchor, and all members connected to it.

    Attributes
    ----------
    name : str
        The name of the kernel.
    anchors, members : tuple of str
        Names of ops, or patterns of them (``dropout_kernel*``). ``relax.add:scalar`` is an add in
        which an operand has a single element, ``relax.add:vector`` one with an operand of fewer
        dims, and ``relax.matmul:batched`` a product of two batches of matrices.
    issue : str
        The issuer of the anchor: ``python``, then of the members too; ``autograd``; ``any``.
    batch_multiple : int
        The product of all dims but the last two of the anchor's first operand must be a multiple
        of it; otherwise each of the ops is a kernel, casts included.
    launches_else : int
        The number of additional launches by the host in that case.
    extra_bytes : int
        The bytes per element that other kernels beside this kernel read and write.
    kernel_class : str
        Class of the kernel; empty: by its ops.
    needs : tuple of str
        Ops of which the kernel has at least one; otherwise its ops are left to other rules.
    siblings : tuple of str
        Names of ops that are taken too where they read a value that the kernel reads, of the size
        of their result.
    recomputed : tuple of str
        Names of ops of the kernel whose results it does not write: kernels that read them compute
        them again from the operands of the op, and training steps save these operands.
    """

    name: Text
    anchors: tuple[Text, ...]
    members: tuple[Text, ...] = ()
    issue: Literal["any", "python", "autograd"] = "any"
    batch_multiple: PositiveCount = 1
    launches_else: Count = 0
    extra_bytes: Count = 0
    kernel_class: Annotated[str, one_of(KERNEL_CLASSES)] = field(
        default="", metadata={"alias": "class"}
    )
    needs: tuple[Text, ...] = ()
    siblings: tuple[Text, ...] = ()
    recomputed: tuple[Text, ...] = ()

    @cached_property
    def _qualified(self) -> tuple[tuple[str, str], ...]:
        """Return the members as pairs of a pattern of names and a qualifier."""
        parts = (member.partition(":") for member in self.members)
        return tuple((name, qualifier) for name, _, qualifier in parts)

    def begins(self, op: str) -> bool:
        """Return whether an op is an anchor."""
        return any(fnmatchcase(op, pattern) for pattern in self.anchors)

    def takes(self, op: str, qualifiers: Callable[[], Collection[str]]) -> bool:
        """Return whether an op is a member; ``qualifiers`` returns what its operands are."""
        for name, qualifier in self._qualified:
            if fnmatchcase(op, name) and (not qualifier or qualifier in qualifiers()):
                return True
        return False


@dataclass(frozen=True)
class Profile:
    """Profile of how a backend groups ops into kernels.

    In a file, ``"base": NAME`` takes what it does not state from a profile of the package.

    Attributes
    ----------
    name, description : str
    casts : bool
        Casts between floats run inside the kernels that read or write the value, which lies in
        memory in the narrowest of its types.
    absorb : tuple of str
        Ops all of whose results are of these dtypes run inside the kernels that read them.
    once : bool
        Sums of gradients over devices are made behind all micro-batches, with the others.
    bucket : bool
        Whether sums over the same devices with nothing between them are merged into a single
        collective.
    split_sends : bool
        Whether a value that several devices hold alike is sent in parts, and gathered at its
        destination.
    blocking : bool
        Collectives that are not split into start and done stop the kernels behind them.
    accumulates : bool
        Gradients are added to their sums as they come, in backward passes.
    graphs : bool
        Kernels are replayed from CUDA graphs, so that the host issues none by itself.
    sums : str
        Type of the sums of gradients over micro-batches: ``float32``, or that of the ``weight``.
    rules : tuple of FusionRule
        The rules, in the order in which they are tried.
    joined : tuple of str
        Names of kernels of which those that do not depend on each other run as a single one:
        products of the same operand, and others of the same name.
    attention : str
        Whether softmax attention is a kernel (``fused``) or products and a softmax (``written``).
    experts : str
        Whether experts are kernels that read tokens by their index (``fused``), or products of
        slots into which tokens are moved (``written``).
    attention_class : str
        Kernel class of softmax attention that is a kernel, forward and backward; empty: those of
        the ops.
    quantization : Quantization, optional
        How operands of products are quantized; None: they are not.
    alternatives : tuple of str
        Profiles of the same use that advice tries instead; a file does not take those of its base.
    """

    name: Text
    description: str = ""
    casts: bool = False
    absorb: tuple[Text, ...] = ()
    once: bool = False
    bucket: bool = False
    split_sends: bool = False
    blocking: bool = False
    accumulates: bool = False
    graphs: bool = False
    sums: Literal["float32", "weight"] = "float32"
    rules: tuple[FusionRule, ...] = field(default=(), metadata={"alias": "kernels"})
    joined: tuple[Text, ...] = ()
    attention: Literal["written", "fused"] = "written"
    experts: Literal["written", "fused"] = "written"
    attention_class: Annotated[str, one_of(KERNEL_CLASSES)] = ""
    quantization: Quantization | None = None
    alternatives: tuple[Text, ...] = ()

    @property
    def recomputed_ops(self) -> tuple[str, ...]:
        """Return the ops that kernels compute again, for :func:`tvm_distir.train_step`."""
        return tuple(sorted({op for rule in self.rules for op in rule.recomputed}))

    @property
    def stores_copies(self) -> bool:
        """Return whether training steps store quantized copies of operands."""
        chosen = self.quantization
        return chosen is not None and chosen.operands == "all" and chosen.copies

    @property
    def changes_nothing(self) -> bool:
        """Return whether each op is a kernel."""
        return self == Profile(self.name, self.description, alternatives=self.alternatives)

    def with_weights(self, text: str) -> Profile:
        """Return the profile whose products read weights of a kind (HardwareError DIST0701)."""
        name = f"{self.name}{WEIGHTS}{text}"
        others = tuple(f"{other}{WEIGHTS}{text}" for other in self.alternatives)
        quantization = weight_quantization(text, name)
        return replace(self, name=name, alternatives=others, quantization=quantization)

    @staticmethod
    def load(name_or_path: str | Path) -> Profile:
        """Read a profile by its name, or from a JSON file.

        Names are those of the package, and those that other packages offer by the entry point
        group ``tvm_distir.kernels``. ``NAME:weights=KIND`` is a profile whose products read
        weights of a kind of :mod:`.weight_kinds`.

        Raises
        ------
        HardwareError
            DIST0701 for a name that is none, DIST0702 for a file that is no JSON, DIST0703 for an
            unknown, missing or wrong value.
        DependencyError
            DIST0114 where another package offers the name and has no such profile.
        """
        base, mark, text = str(name_or_path).partition(WEIGHTS)
        if mark:
            return Profile.load(base).with_weights(text)
        path = Path(name_or_path)
        if str(name_or_path) in _own_names():
            path = DATA / f"{name_or_path}.json"
        elif str(name_or_path) in offered_names(PROFILES):
            source = offered(str(name_or_path), PROFILES)
            if not isinstance(source, Path):
                return Profile.from_dict(*source)
            path = source
        elif not os.path.exists(path):
            known = profile_names()
            former = _FORMER.fullmatch(str(name_or_path))
            hint = nearest(str(name_or_path), known)
            if former is not None:
                hint = f'It is written "{former[1]}{WEIGHTS}{former[2]}".'
            problem = f"there is no kernel profile {str(name_or_path)!r}, nor a file of that name"
            remedy = f"{hint} Available: {', '.join(known)}."
            raise HardwareError("DIST0701", problem, location="kernels", remedy=remedy)
        return Profile.from_dict(read_json(path, no_json, repeated=wrong), str(path))

    @staticmethod
    def resolve(profile: Profile | str) -> Profile:
        """Read a profile that is given by its name or path; others are returned as they are."""
        return Profile.load(profile) if isinstance(profile, str) else profile

    @staticmethod
    def from_dict(data: Any, location: str = "kernels") -> Profile:
        """Make a profile of the content of its JSON file. Errors as in :meth:`load`."""
        content = check_version(data, location, wrong, SCHEMA_VERSION, assumed=SCHEMA_VERSION)
        base = content.pop("base", None)
        if base is None:
            return read_model(Profile, content, location, wrong)
        if base not in _own_names():
            raise wrong(
                f"{location}/base", f"there is no profile {base!r}", "Name one, or omit it."
            )
        rest = read_json(DATA / f"{base}.json", no_json, repeated=wrong)
        return Profile.from_dict({**rest, "alternatives": [], **content}, location)


def profile_names() -> tuple[str, ...]:
    """Return the names of the profiles of the package, then of those of other packages."""
    own_names = _own_names()
    return (*own_names, *(name for name in offered_names(PROFILES) if name not in own_names))


def _own_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in DATA.glob("*.json")))
