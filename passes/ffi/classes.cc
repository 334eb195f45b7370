// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Classes of things of which groups belong together.

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "ffi/nodes.h"

namespace tvm_distir {
namespace {

using tvm::ffi::Shape;

int64_t RootOf(int64_t x, Ints* parent) {
  while ((*parent)[x] != x) x = (*parent)[x] = (*parent)[(*parent)[x]];
  return x;
}

// Of each of `count` things the smallest of its class. `groups` has, for each group, the number of
// its members, then these.
tvm::ffi::Bytes JoinedClasses(int64_t count, const Shape& groups) {
  Ints parent(std::max<int64_t>(count, 0));
  std::iota(parent.begin(), parent.end(), 0);
  const size_t end = groups.size();
  for (size_t at = 0; at < end;) {
    const int64_t members = groups[at++];
    if (members < 1 || static_cast<size_t>(members) > end - at) {
      TVM_FFI_THROW(ValueError) << "a group of " << members << " members";
    }
    int64_t low = -1;
    for (const size_t stop = at + members; at < stop; ++at) {
      const int64_t x = groups[at];
      if (x < 0 || x >= count) TVM_FFI_THROW(IndexError) << x << " is not in [0, " << count << ")";
      const int64_t root = RootOf(x, &parent);
      const int64_t high = low < 0 ? root : std::max(low, root);
      low = low < 0 ? root : std::min(low, root);
      parent[high] = low;
    }
  }
  for (int64_t& above : parent) above = parent[above];  // no parent is the larger one
  return AsBytes(parent);
}

}  // namespace
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(joined_classes, tvm_distir::JoinedClasses);
