// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// The frame of every collective with traffic.

#ifndef TVM_DISTIR_PASSES_CCL_FRAME_H_
#define TVM_DISTIR_PASSES_CCL_FRAME_H_

#include <vector>

#include "ccl/exchange.h"

namespace tvm_distir {

// One call of a collective on the calling thread.
class Call {
 public:
  Call(Worker* worker, const Request& request, const tvm::ffi::Shape& groups, int64_t group_size)
      : worker_(worker),
        place_(FindMembership(worker, request, groups, group_size)),
        groups_(groups),
        request_(request) {}

  int64_t position() const { return static_cast<int64_t>(place_.position); }
  Request& request() { return request_; }

  // Meets the group, does `exchange(gathering)` and counts it. An operand that shares memory with
  // the result is copied first.
  template <typename Exchange>
  void Run(const Exchange& exchange) {
    std::vector<char> copy;
    if (request_.bytes > kStagedBytes && Overlaps()) {
      copy.assign(request_.source, request_.source + request_.bytes);
      request_.source = copy.data();
    }
    Gathering gathering(worker_, place_, request_);
    exchange(&gathering);
    Count();
  }

 private:
  int64_t result_bytes() const;
  bool Overlaps() const;
  void Count() const;

  Worker* const worker_;
  const Membership& place_;
  const tvm::ffi::Shape groups_;
  Request request_;
};

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_CCL_FRAME_H_
