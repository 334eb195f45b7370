// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "ccl/frame.h"

#include <functional>

namespace tvm_distir {

int64_t Call::result_bytes() const {
  const int64_t* shape = request_.out_shape.data();
  return Product(shape, shape + request_.ndim) * ElementBytes(request_.dtype);
}

bool Call::Overlaps() const {
  const std::less<> before;
  return before(request_.source, request_.target + result_bytes()) &&
         before(request_.target, request_.source + request_.bytes);
}

void Call::Count() const {
  const CountKey key{request_.kind, Ranks(groups_.begin(), groups_.end()), place_.group.size(),
                     result_bytes()};
  ++worker_->counts[key];
}

}  // namespace tvm_distir
