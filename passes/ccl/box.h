// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Boxes of row-major tensors, copied from one to another.

#ifndef TVM_DISTIR_PASSES_CCL_BOX_H_
#define TVM_DISTIR_PASSES_CCL_BOX_H_

#include <cstdint>

#include "ccl/fabric.h"

namespace tvm_distir {

// A box of a row-major tensor; all counted in elements.
struct Box {
  int64_t ndim, element_bytes;
  Dims shape, at, extent;

  int64_t elements() const;
};

// Copies elements [begin, end), in the box's own row-major order, to or from contiguous memory that
// holds just them.
void Pack(char* target, const char* tensor, const Box& box, int64_t begin, int64_t end);
void Unpack(char* tensor, const Box& box, const char* source, int64_t begin, int64_t end);

// Copies a box to a box of the same extent.
void CopyBox(char* target, const Box& to, const char* source, const Box& from);

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_CCL_BOX_H_
