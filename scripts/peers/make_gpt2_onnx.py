#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write a GPT-2 with random weights as an ONNX file, without PyTorch.

    .venv/bin/python scripts/peers/make_gpt2_onnx.py gpt2.onnx --layers 2 --batch 4

The defaults are GPT-2 small's sizes, two layers, 16 tokens.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from tests.models import gpt2_onnx

from tvm_distir.support.errors.tree import DistIRError


def main() -> int:
    """Parse the options and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("output", type=Path, help="where to write the model")
    for name, default in (
        ("layers", 2),
        ("hidden", 768),
        ("heads", 12),
        ("vocab", 50257),
        ("positions", 1024),
        ("batch", 1),
        ("seq", 16),
        ("seed", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--fused-qkv", action="store_true", help="one projection to q, k and v")
    options = vars(parser.parse_args())
    output: Path = options.pop("output")
    try:
        model = gpt2_onnx.build(**options)
        output.write_bytes(model.SerializeToString())
    except DistIRError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"{output}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
