// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "simulate/retimed.h"

#include <algorithm>
#include <vector>

#include "simulate/run.h"
#include "simulate/summarise.h"
#include "simulate/tape.h"

namespace tvm_distir {
namespace simulate {
namespace {

// Takes down times of runs instead of working them out.
class Recorder {
 public:
  using Time = Tape::Time;
  static constexpr Time kNone = Tape::kNone;
  static constexpr Time kUnsent = -2;
  static constexpr Time kBegin = Tape::kBegin;
  static constexpr bool kKeepsTimes = false;
  static bool IsNone(Time time) { return time == kNone; }
  static bool IsUnsent(Time time) { return time == kUnsent; }

  Recorder(const Ints& column, int64_t columns, int64_t edges)
      : column_(column), columns_(columns), tape_(columns + edges) {}

  Time Duration(const Op& op) {
    const int64_t column = column_.at(op.number);
    return column < 0 ? tape_.Constant(op.duration) : static_cast<Time>(1 + column);
  }
  Time Issue(const Op& op) { return tape_.Constant(op.issue); }
  Time Spent(const Units&, int64_t edge) { return static_cast<Time>(1 + columns_ + edge); }
  Time Latest(Time a, Time b) { return tape_.Latest(a, b); }
  Time After(Time time, Time by) { return tape_.After(time, by); }
  Time Dot(const Time* row, const Time* times, int64_t ports) {
    Time found = kNone;
    for (int64_t p = 0; p < ports; ++p) {
      if (!IsNone(times[p])) found = tape_.Latest(found, tape_.After(row[p], times[p]));
    }
    return found;
  }
  Tape* tape() { return &tape_; }

 private:
  const Ints& column_;
  int64_t columns_;
  Tape tape_;
};

// When the last rank is done; kUnsent if some never are.
Tape::Time EndOf(Functions* functions, const Units& units, Recorder* recorder) {
  functions->Classify();
  std::vector<Summary<Tape::Time>> known;
  const auto summary = [&known](int64_t id) -> const Summary<Tape::Time>& { return known.at(id); };
  for (int64_t id = 0; id < functions->size(); ++id) {  // callees stand in front
    known.push_back(Summarise(recorder, *functions, functions->at(id), summary));
  }
  const auto ran = Run<Recorder>(recorder, *functions, summary, units).Go();
  if (!ran.Done(units)) return Recorder::kUnsent;
  Tape::Time end = Recorder::kBegin;
  for (const Tape::Time one : ran.finish) end = recorder->Latest(end, one);
  return end;
}

}  // namespace

void EndsOf(Functions* functions, const Units& units, const Durations& durations, int64_t* out) {
  std::fill_n(out, durations.rows, -1);
  const int64_t edges = static_cast<int64_t>(units.edges.size()) / 2;
  int64_t columns = 0;
  for (const int64_t one : durations.column) columns = std::max(columns, one + 1);
  Recorder recorder(durations.column, columns, edges);
  const Tape::Time end = EndOf(functions, units, &recorder);
  if (end == Recorder::kUnsent) return;
  recorder.tape()->Finish(end);
  std::vector<const int64_t*> inputs;
  for (int64_t k = 0; k < columns; ++k) inputs.push_back(durations.spent + k * durations.rows);
  for (int64_t k = 0; k < edges; ++k) inputs.push_back(durations.sent + k * durations.rows);
  recorder.tape()->Play(inputs, durations.rows, out);
}

}  // namespace simulate
}  // namespace tvm_distir
