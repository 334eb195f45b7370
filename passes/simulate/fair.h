// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Max-min fair speeds of activities that share links.

#ifndef TVM_DISTIR_PASSES_SIMULATE_FAIR_H_
#define TVM_DISTIR_PASSES_SIMULATE_FAIR_H_

#include <cstdint>
#include <vector>

namespace tvm_distir {
namespace simulate {

// What an activity puts on links at full speed, in order.
struct Demand {
  double most;  // its speed where it meets nothing
  const int64_t* link;
  const double* load;
  int64_t count;
  double speed;  // found
};

class Fair {
 public:
  explicit Fair(const std::vector<double>& capacity)
      : capacity_(capacity), left_(capacity.size()), weight_(capacity.size()) {}

  // None can grow but by slowing one that is no faster, where faster is who puts more on the link
  // that it loads most.
  void Share(std::vector<Demand>* demands);

 private:
  const std::vector<double>& capacity_;
  std::vector<double> left_, weight_, peak_;
  std::vector<int64_t> used_, waiting_, chosen_, rest_;
};

}  // namespace simulate
}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_SIMULATE_FAIR_H_
