// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// How the data of a collective moves once its ranks have met. Three ways give the same bits:
//
// - few bytes: each rank left them in its slot, and each works for itself, waiting for nobody;
// - many bytes among threads: ranks read and write each other's tensors. Nothing can fail any more;
//   the work is cut into tasks, which the ranks that are awake take one by one, and no rank goes on
//   before all tasks are done;
// - many bytes among processes: chunk by chunk through shared memory, which stays in the caches,
//   with a rendezvous per chunk. No rank touches another's tensors, so any may fail at any time.

#ifndef TVM_DISTIR_PASSES_CCL_EXCHANGE_H_
#define TVM_DISTIR_PASSES_CCL_EXCHANGE_H_

#include <algorithm>
#include <functional>
#include <vector>

#include "ccl/box.h"
#include "ccl/request.h"

namespace tvm_distir {

// A collective on which all ranks of a group have agreed.
class Gathering {
 public:
  // Meets the others and compares.
  Gathering(Worker* worker, const Membership& place, const Request& request);

  int64_t size() const { return static_cast<int64_t>(requests_.size()); }
  int64_t position() const { return position_; }
  // What a member asked for; among processes its addresses mean nothing here.
  const Request& of(int64_t member) const { return requests_[member]; }
  // What this rank asked for.
  const Request& mine() const { return requests_[position_]; }
  int64_t rank(int64_t member) const { return group_.rank(member); }

  // Whether the data of all lie in the slots, at `sources`.
  bool staged() const { return staged_; }
  // Else whether ranks may touch each other's tensors, which `sources` names.
  bool direct() const { return worker_->fabric->direct(); }
  const std::vector<const char*>& sources() const { return sources_; }

  // Among threads: does `work(task)` for all tasks, together with the other ranks.
  void Share(int64_t tasks, const std::function<void(int64_t)>& work) const;

  // Among processes: this rank's memory for what others read next. After `MeetAgain` it is what
  // `stage(member)` and `results(member)` name, until the rendezvous after.
  char* next_stage() const { return StageOf(round_ + 1, position_); }
  char* next_results() const { return ResultsOf(round_ + 1, position_); }
  void MeetAgain();
  const char* stage(int64_t member) const { return StageOf(round_, member); }
  const char* results(int64_t member) const { return ResultsOf(round_, member); }

  // A stage holds so much; results hold a member's part of it. Few large chunks need few rendezvous,
  // small ones stay in the caches nearest to the cores: the stages of all have one size together.
  int64_t chunk_bytes() const {
    const int64_t even = kStagesBytes / size() / kLine * kLine;
    return std::clamp(even, kStagesBytes / 8, kStagesBytes / 2);
  }

 private:
  static constexpr int64_t kStagesBytes = 2 << 20, kLine = 64;

  void Compare() const;
  int64_t results_bytes() const;
  char* Stages() const;
  char* StageOf(uint32_t round, int64_t member) const;
  char* ResultsOf(uint32_t round, int64_t member) const;

  Worker* const worker_;
  const Group group_;
  const int64_t position_;
  uint32_t round_;
  const uint32_t first_round_;
  bool staged_ = true;
  std::vector<Request> requests_;
  std::vector<const char*> sources_;
};

// What one rank hands to another: as many elements on either side.
struct Piece {
  Box source, target;
};

// A collective in which ranks hand each other pieces of their tensors.
struct Handover {
  // Whether `from` hands something to `to`, and what.
  std::function<bool(const Gathering&, int64_t from, int64_t to, Piece*)> piece;
  // Whether a rank hands other things to different ranks.
  bool differs = false;
};

void Exchange(Gathering* gathering, const Handover& handover);
// Reduces the pieces for each rank in group order. The targets are whole tensors.
void ExchangeReduced(Gathering* gathering, const Handover& handover, const Reducer& reducer,
                     ReduceOp op);
void ReduceForAll(Gathering* gathering, const Reducer& reducer, ReduceOp op);

// All of a tensor of that shape.
Box WholeBox(const Request& request, const Dims& shape);

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_CCL_EXCHANGE_H_
