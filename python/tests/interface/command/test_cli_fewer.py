# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``analyze`` warns where a single device is as fast as all."""

from __future__ import annotations

import pytest

from tests.plain_systems import PLAIN_A100
from tvm_distir.interface.command import main

TINY = "zoo:gpt?size=tiny"
ALL = ["--strategy", "tensor_parallel", "--system", PLAIN_A100]


@pytest.mark.parametrize(
    ("model", "mesh", "more", "told"),
    [
        (TINY, "tp=8", [], True),
        (TINY, "tp=1", [], False),
        ("zoo:gpt?size=gpt2", "tp=2", [], False),
        (TINY, "tp=8", ["--train"], False),
    ],
)
def test_fewer_devices_that_are_as_fast_are_told(model, mesh, more, told, capsys):
    assert main(["analyze", model, "--mesh", mesh, *ALL, *more]) == 0
    message = capsys.readouterr().err
    assert ("warning: a single device is as fast as these 8: 0.157 ms" in message) is told
