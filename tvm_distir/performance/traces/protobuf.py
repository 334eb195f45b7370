# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Encode protocol buffer messages as bytes, as far as traces need them.

The wire format is public (https://protobuf.dev/programming-guides/encoding): a field is a varint of
its number and wire type, then a varint, eight bytes, or a length and that many bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

VARINT, FIXED64, LENGTH = 0, 1, 2
"""Wire types."""


def varint(value: int) -> bytes:
    r"""Return an integer; a negative integer as 64 bits.

    >>> varint(300)
    b'\\xac\\x02'
    """
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def tag(number: int, wire_type: int) -> bytes:
    """Return the head of a field."""
    return varint(number << 3 | wire_type)


def integer(number: int, value: int) -> bytes:
    """Return a field of an integer, enum or bool."""
    return tag(number, VARINT) + varint(value)


def block(number: int, content: bytes | str) -> bytes:
    """Return a field of a text, of bytes or of a message."""
    data = content.encode() if isinstance(content, str) else content
    return tag(number, LENGTH) + varint(len(data)) + data


def padded(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return integers from 0 to 2**56 as eight-byte varints, in a little-endian integer.

    A varint may be longer than it has to: groups of seven zero bits at its end are read as such. So
    fields of different values take equal places.
    """
    x = values.astype(np.uint64)

    def spread(x: npt.NDArray[np.uint64], low: int, high: int, by: int) -> npt.NDArray[np.uint64]:
        return (x & np.uint64(low)) | ((x & np.uint64(high)) << np.uint64(by))

    x = spread(x, 0x000000000FFFFFFF, 0x00FFFFFFF0000000, 4)
    x = spread(x, 0x00003FFF00003FFF, 0x0FFFC0000FFFC000, 2)
    more = np.uint64(0x0080808080808080)  # a byte follows
    return (spread(x, 0x007F007F007F007F, 0x3F803F803F803F80, 1) | more).astype("<u8")
