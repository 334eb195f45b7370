// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// What a fabric keeps in its arena besides groups.

#ifndef TVM_DISTIR_PASSES_CONTROL_H_
#define TVM_DISTIR_PASSES_CONTROL_H_

#include "arena.h"
#include "wait_word.h"

namespace tvm_distir {

constexpr int64_t kNobody = -1;
constexpr uint64_t kBoxLists = 1024;

struct Control {
  double timeout_s;
  int64_t rank_count;
  Offset ranks;   // RankState[rank_count]
  Offset groups;  // the first Group
  Offset boxes;   // the first MailBox of each of kBoxLists lists
  int64_t letters;  // posted so far
  Word failed;
  int64_t failed_rank;
  char message[4096];
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
