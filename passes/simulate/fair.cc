// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "simulate/fair.h"

#include <algorithm>

namespace tvm_distir {
namespace simulate {
namespace {

constexpr double kSlowest = 1e-6;   // what rounding leaves of a link that is full
constexpr double kRounding = 1e-9;  // a link is full beyond this much more than its capacity

}  // namespace

void Fair::Share(std::vector<Demand>* demands) {
  std::fill(weight_.begin(), weight_.end(), 0.0);
  used_.clear();
  for (Demand& one : *demands) {
    one.speed = one.most;
    for (int64_t k = 0; k < one.count; ++k) {
      double& total = weight_[one.link[k]];
      if (total == 0.0) used_.push_back(one.link[k]);
      total += one.load[k] * one.most;
    }
  }
  const auto full = [&](int64_t link) {
    return weight_[link] > capacity_[link] * (1.0 + kRounding);
  };
  if (std::none_of(used_.begin(), used_.end(), full)) return;
  peak_.clear();
  waiting_.clear();
  for (const int64_t link : used_) left_[link] = capacity_[link];
  for (const Demand& one : *demands) {
    waiting_.push_back(static_cast<int64_t>(waiting_.size()));
    peak_.push_back(*std::max_element(one.load, one.load + one.count));
  }
  while (!waiting_.empty()) {
    for (const int64_t link : used_) weight_[link] = 0.0;
    for (const int64_t number : waiting_) {
      const Demand& one = (*demands)[number];
      for (int64_t k = 0; k < one.count; ++k) weight_[one.link[k]] += one.load[k] / peak_[number];
    }
    double level = -1.0;
    for (const int64_t link : used_) {
      if (weight_[link] == 0.0) continue;
      const double own = left_[link] / weight_[link];
      if (level < 0.0 || own < level) level = own;
    }
    chosen_.clear();
    rest_.clear();
    for (const int64_t number : waiting_) {
      const bool small = (*demands)[number].most * peak_[number] <= level;
      (small ? chosen_ : rest_).push_back(number);
    }
    if (chosen_.empty()) {
      rest_.clear();
      for (const int64_t number : waiting_) {
        Demand& one = (*demands)[number];
        const bool held = std::any_of(one.link, one.link + one.count, [&](int64_t link) {
          return left_[link] / weight_[link] == level;
        });
        (held ? chosen_ : rest_).push_back(number);
        if (held) one.speed = std::max(level / peak_[number], kSlowest);
      }
    }
    for (const int64_t number : chosen_) {
      const Demand& one = (*demands)[number];
      for (int64_t k = 0; k < one.count; ++k) {
        double& left = left_[one.link[k]];
        left = std::max(left - one.load[k] * one.speed, 0.0);
      }
    }
    waiting_.swap(rest_);
  }
}

}  // namespace simulate
}  // namespace tvm_distir
