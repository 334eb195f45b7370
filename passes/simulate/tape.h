// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Sums and maxima of times, written down once and then played for many sets of times: which of
// them there are does not depend on what they are.

#ifndef TVM_DISTIR_PASSES_SIMULATE_TAPE_H_
#define TVM_DISTIR_PASSES_SIMULATE_TAPE_H_

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tvm_distir {
namespace simulate {

// Takes down what is done with times, each of which is a number in the order of their making. None
// is below 0, so the later of one and a sum with it is the sum.
class Tape {
 public:
  using Time = int32_t;
  static constexpr Time kNone = -1;   // of what is there all along
  static constexpr Time kBegin = 0;

  // Times 1 to `inputs` are given when it is played.
  explicit Tape(int64_t inputs);

  Time Constant(int64_t time);
  Time Latest(Time a, Time b);
  Time After(Time time, Time by);

  // Leaves out what `end` does not depend on; times that are no longer needed give up their place.
  // Nothing may be taken down behind that.
  void Finish(Time end);

  // `end` for columns of inputs, (inputs, rows); -1 where a time is too late.
  void Play(const std::vector<const int64_t*>& inputs, int64_t rows, int64_t* out) const;

 private:
  enum Kind : int32_t { kInput, kConstant, kSum, kMax };
  struct Step {
    Kind kind;
    Time a, b;  // of an input and a constant its number
  };
  struct Move {
    int32_t to, a, b;  // places
    bool sum;
  };

  static void PlayAll(const std::vector<Move>& moves, int64_t* times);
  Time Add(Kind kind, Time a, Time b);
  // Whether a time is found to be no earlier than an earlier one.
  bool Reaches(Time later, Time earlier) const;

  std::vector<Step> steps_;
  std::vector<int64_t> constants_;
  std::unordered_map<int64_t, Time> constant_at_;
  int64_t inputs_;

  // What is played.
  std::vector<Move> moves_;
  std::vector<std::pair<int32_t, int64_t>> loads_, sets_;  // a place, and an input or a constant
  int32_t places_ = 0, end_ = 0;
};

}  // namespace simulate
}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_SIMULATE_TAPE_H_
