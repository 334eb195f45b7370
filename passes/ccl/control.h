// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// What a fabric keeps in its arena besides groups.

#ifndef TVM_DISTIR_PASSES_CONTROL_H_
#define TVM_DISTIR_PASSES_CONTROL_H_

#include "ccl/arena.h"
#include "ccl/wait_word.h"

namespace tvm_distir {

constexpr int64_t kNobody = -1;
constexpr uint64_t kQueueLists = 1024;

// The fields of a Fault, ended by a zero, cut where they are longer.
struct FaultRecord {
  char error_class[64];
  char code[16];
  char location[512];
  char what[3072];
  char remedy[1024];
};

struct Control {
  double timeout_s;
  int64_t rank_count;
  Offset ranks;   // RankState[rank_count]
  Offset groups;  // the first Group
  Offset queues;  // the first MessageQueue of each of kQueueLists lists
  int64_t messages;  // posted so far
  Word failed;
  int64_t failed_rank;
  FaultRecord fault;
};

// Written and read under the lock, except `waits` by its own rank.
struct RankState {
  int64_t rank;
  uint32_t done;
  uint32_t waits;  // whether what follows describes a wait
  Offset word, group;
  uint32_t mask, seen, round;
  int64_t peer;
  char what[256];
};

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_CONTROL_H_
