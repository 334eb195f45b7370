// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Units of work on ranks, and messages between them.
//
// A rank runs templates in order, each for a micro-batch; a template is a list of steps. What units
// hand to each other lies in cells: of a slot of a stage there is one per micro-batch, and one more
// for what is there once. A rank goes on until the message it needs next has not been sent yet.

#ifndef TVM_DISTIR_PASSES_SIMULATE_UNITS_H_
#define TVM_DISTIR_PASSES_SIMULATE_UNITS_H_

#include <cstdint>
#include <vector>

#include "simulate/functions.h"

namespace tvm_distir {
namespace simulate {

// What a step does. A place is a cell and a stride: the cell of micro-batch i is cell + stride * i.
enum StepKind : int64_t {
  kRun = 0,   // kind, first cell of the stage
  kCopy = 1,  // from cell, stride, to cell, stride
  kSend = 2,  // edge, cell, stride, stream that it occupies
  kRecv = 3,  // edge, cell, stride
  kMark = 4,  // stream, cell, stride: the cell is when the stream is free
  kWait = 5,  // stream, cell, stride: the stream is free no earlier than the cell
};

constexpr int64_t kStepColumns = 5;

struct Units {
  // Per kind its function, and the places of its parameters and results behind the stage's first
  // cell; a result with the cell -1 is not kept.
  Ints kind_function, kind_places;
  // Steps; per template where its steps begin, and end.
  Ints steps, template_begin;
  // Per rank where its programs begin, and end; rows of template and micro-batch.
  Ints program_begin, programs;
  // Rows of receiving rank and duration.
  Ints edges;
  int64_t cells, micros;  // micros: cells of a slot
};

constexpr int64_t kRankStreams = 6;

template <class Time>
struct RanOf {
  std::vector<Time> times;   // of the ports of each run, ranks in turn
  std::vector<Time> finish;  // per rank, when its streams are free: compute, communication, host,
                             // sends, stores, fetches
  std::vector<Time> sent;    // per edge and micro-batch the start of its message, or -1
  Ints position;             // per rank, how many of its programs it ended

  // Whether all ranks ended all of theirs.
  bool Done(const Units& units) const {
    for (size_t r = 0; r < position.size(); ++r) {
      if (position[r] < units.program_begin[r + 1] - units.program_begin[r]) return false;
    }
    return true;
  }
};

using Ran = RanOf<int64_t>;

// Runs all ranks as early as possible.
Ran RunUnits(Functions* functions, const Units& units);

}  // namespace simulate
}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_SIMULATE_UNITS_H_
