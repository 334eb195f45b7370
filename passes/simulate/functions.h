// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Functions whose ops take fixed times, as max-plus maps.
//
// A device has three streams: compute, communication, and the host that issues both in program
// order. An op starts when it is issued, its stream is free and its operands are there. So each
// start, and each end, is the maximum over a few *ports* (the streams, and operands) of the
// port's time plus a constant: a row. A call multiplies its callee's rows with its own; nothing is
// unrolled, however often a function is called.

#ifndef TVM_DISTIR_PASSES_SIMULATE_FUNCTIONS_H_
#define TVM_DISTIR_PASSES_SIMULATE_FUNCTIONS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tvm_distir {
namespace simulate {

using Ints = std::vector<int64_t>;

// Time of what is there all along; an entry of a row that does not depend on its port.
constexpr int64_t kNever = -(int64_t{1} << 61);
// Later times are refused; sums of two of them, or with kNever, fit in 64 bits.
constexpr int64_t kLatest = int64_t{1} << 60;

enum Stream : int64_t { kCompute = 0, kComm = 1, kHost = 2, kStreams = 3 };

// When a value is there.
enum Class : int64_t {
  kAtHand = 0,   // all along
  kSettled = 1,  // no later than the compute stream is free
  kFree = 2,     // whenever
};

struct Op {
  int64_t number;    // among all of the table
  int64_t stream;    // kCompute or kComm
  bool after;        // a communication that waits for the compute ops issued before it
  bool holds;        // ... and stops those issued behind it until it ends
  bool sync;         // the host issues nothing until it ends
  bool apart;        // a communication on a separate channel: it leaves its stream alone
  int64_t duration;
  int64_t issue;     // time of the host to issue it
  int64_t callee;    // a function, or -1
  const int64_t* ins;
  int64_t in_count;  // values; -1 is at hand
  const int64_t* outs;
  int64_t out_count;

  // Whether it starts no earlier than the compute stream is free.
  bool waits() const { return stream == kCompute || after; }
  // Whether the compute stream is free no earlier than it ends.
  bool busies() const { return stream == kCompute || holds; }
};

// The map of a function, whose entries are times: numbers, or what stands for many of them.
template <class Time>
struct Summary {
  std::vector<Time> map;     // (streams + results) x ports
  std::vector<Time> starts;  // rows of starts, of a call those of its callee's ports
  Ints row_at;               // per op: where its rows begin
};

struct Function {
  int64_t params, values;
  std::vector<Op> ops;
  const int64_t* results;
  int64_t result_count;
  int64_t tasks = 0;  // ops of it and of all that it calls
  int64_t first = -1, last = -1;  // ops that compute, or call what does

  // What is known of parameters and results, whatever the durations.
  std::vector<char> apart;    // per parameter: its time matters even if it is settled
  std::vector<char> settles;  // per parameter: settled when the call ends
  Ints origin;                // per result: the parameter that it is, or kIsSettled, kIsFree
  Ints classes;               // per parameter: the latest class over all calls

  // Ports of the map: the streams, then those of the parameters that have one. Known when all
  // functions are classified.
  int64_t ports = kStreams;
  Ints port_of;  // per parameter, -1: none

  bool summarised = false;
  Summary<int64_t> summary;
};

constexpr int64_t kIsSettled = -1;
constexpr int64_t kIsFree = -2;

class Functions {
 public:
  // Rows: per function parameters, values, ops and results; per op stream (-1: a call), flags
  // (1 after, 2 holds, 4 sync, 8 apart), duration, issue, callee, number of operands, of results.
  // Functions stand behind those that they call.
  Functions(const Ints& functions, const Ints& ops, Ints ins, Ints outs, Ints results);

  Functions(Functions&&) = default;  // ops point into the arrays
  Functions(const Functions&) = delete;

  int64_t size() const { return static_cast<int64_t>(functions_.size()); }
  const Function& at(int64_t id) const { return functions_[id]; }

  // What parameters of a function that is run from outside are.
  void Open(int64_t id, const Ints& classes);

  // Settles which parameters are ports.
  void Classify();

  // The function with its map.
  const Function& Summarised(int64_t id);

  // Starts of all tasks in order of issue, from the times of the ports.
  template <class Visit>
  void Expand(int64_t id, const int64_t* times, const Visit& visit) const {
    const Function& f = functions_[id];
    for (size_t o = 0; o < f.ops.size(); ++o) {
      const Op& op = f.ops[o];
      const int64_t* row = &f.summary.starts[f.summary.row_at[o]];
      if (op.callee < 0) {
        visit(op, Dot(row, times, f.ports));
        continue;
      }
      const int64_t ports = functions_[op.callee].ports;
      if (ports <= kFew) {
        int64_t inner[kFew];
        for (int64_t k = 0; k < ports; ++k) inner[k] = Dot(row + k * f.ports, times, f.ports);
        Expand(op.callee, inner, visit);
      } else {
        Ints inner(ports);
        for (int64_t k = 0; k < ports; ++k) inner[k] = Dot(row + k * f.ports, times, f.ports);
        Expand(op.callee, inner.data(), visit);
      }
    }
  }

  // Start of the first compute op of a call, or end of the last one; kNever if there is none.
  int64_t Edge(int64_t id, const int64_t* times, bool last) const;

  // Maximum over the ports of an entry plus a time.
  static int64_t Dot(const int64_t* row, const int64_t* times, int64_t ports) {
    int64_t found = kNever;
    for (int64_t p = 0; p < ports; ++p) found = std::max(found, row[p] + times[p]);
    return found <= -kLatest ? kNever : found;  // kNever plus something
  }

 private:
  static constexpr int64_t kFew = 32;

  void Trace(Function* f);

  Ints ins_, outs_, results_;
  std::vector<Function> functions_;
  bool classified_ = false;
};

}  // namespace simulate
}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_SIMULATE_FUNCTIONS_H_
