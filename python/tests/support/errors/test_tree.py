# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Exit codes, and the name that is offered for a slip."""

from __future__ import annotations

from tvm_distir.support import errors

CLASSES = [
    v
    for n in errors.__all__
    if isinstance(v := getattr(errors, n), type) and issubclass(v, errors.DistIRError)
]


def test_exit_codes():
    """As documented for the command line."""
    codes = {cls.__name__: cls.exit_code for cls in CLASSES}
    special = {"UsageError": 2, "InfeasibleError": 3, "MismatchError": 70, "InternalError": 70}
    assert codes == {**dict.fromkeys(codes, 1), **special}


def test_the_nearest_name_is_offered():
    """A typing slip gets a hint, nonsense the list."""
    assert errors.nearest("megatorn", ["megatron", "data_parallel"]) == 'Did you mean "megatron"?'
    assert errors.nearest("zzz", ["b", "a"]) == "Known: a, b."
