// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Reductions over the terms of a group, bit-equal to tvm_distir/core/collectives/meaning.py.

#ifndef TVM_DISTIR_PASSES_CCL_REDUCE_H_
#define TVM_DISTIR_PASSES_CCL_REDUCE_H_

#include <dlpack/dlpack.h>

#include <cstdint>
#include <vector>

namespace tvm_distir {

// In the order of REDUCE_OPS in tvm_distir/core/collectives/meaning.py.
enum ReduceOp : int64_t { kSum, kProd, kMin, kMax, kReduceOpCount };

// What one element type needs. Terms are reduced in the order of the vector, one after the other;
// float16 and bfloat16 are widened to float32 and rounded once; integers wrap; on bool, sum and
// max are "or", prod and min are "and".
struct Reducer {
  // out[0, end - begin) = the reduction of term[begin, end), counted in elements.
  void (*reduce)(ReduceOp op, const std::vector<const char*>& terms, int64_t begin, int64_t end,
                 char* out);
  // out[0, count) = the neutral element.
  void (*fill_neutral)(ReduceOp op, int64_t count, char* out);
};

// nullptr for a type that cannot be reduced.
const Reducer* FindReducer(DLDataType dtype);

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_CCL_REDUCE_H_
