// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Letters from rank to rank.

#include <algorithm>
#include <cstring>

#include "control.h"
#include "fabric.h"
#include "refuse.h"

namespace tvm_distir {
namespace {

// Followed by the label and then the data.
struct Letter {
  Offset next;
  uint64_t label_bytes, data_bytes;

  static uint64_t Total(uint64_t label_bytes, uint64_t data_bytes) {
    return sizeof(Letter) + label_bytes + data_bytes;
  }
  uint64_t total() const { return Total(label_bytes, data_bytes); }
  char* label() { return reinterpret_cast<char*>(this + 1); }
  char* data() { return label() + label_bytes; }
};

uint64_t ListOf(const Route& route) {
  uint64_t mixed = 0;
  for (int64_t part : {route.tag, route.source, route.destination}) {
    mixed = (mixed ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15u;
    mixed ^= mixed >> 29;
  }
  return mixed % kBoxLists;
}

void Copy(char* target, const char* source, uint64_t bytes) {
  if (bytes > 0) std::memcpy(target, source, bytes);
}

}  // namespace

// The letters of one route, in order.
struct MailBox {
  Offset next;
  Route route;
  Word posted;
  uint32_t taken;
  Offset first, last;
};

MailBox* Fabric::BoxOf(const Route& route) {
  Offset& list = arena_->at<Offset>(control_->boxes)[ListOf(route)];
  for (Offset at = list; at;) {
    MailBox* box = arena_->at<MailBox>(at);
    const Route& other = box->route;
    if (other.tag == route.tag && other.source == route.source &&
        other.destination == route.destination) {
      return box;
    }
    at = box->next;
  }
  const Offset made = arena_->Reserve(sizeof(MailBox));
  MailBox* box = new (arena_->at<MailBox>(made)) MailBox();
  box->next = list;
  box->route = route;
  list = made;
  return box;
}

void Fabric::Post(const Route& route, const std::string& label, const char* data,
                  uint64_t bytes) {
  StateOf(route.destination);
  Offset at;
  {
    const ArenaLock lock(*arena_);
    at = arena_->Take(Letter::Total(label.size(), bytes));
  }
  Letter* letter = arena_->at<Letter>(at);
  letter->next = 0;
  letter->label_bytes = label.size();
  letter->data_bytes = bytes;
  Copy(letter->label(), label.data(), label.size());
  Copy(letter->data(), data, bytes);
  const ArenaLock lock(*arena_);
  MailBox* box = BoxOf(route);
  (box->first ? arena_->at<Letter>(box->last)->next : box->first) = at;
  box->last = at;
  ++control_->letters;
  box->posted.fetch_add(1, std::memory_order_release);
  WakeAll(&box->posted);
}

std::pair<std::string, uint64_t> Fabric::Await(const Route& route, const std::string& what) {
  StateOf(route.source);
  MailBox* box;
  {
    const ArenaLock lock(*arena_);
    box = BoxOf(route);
  }
  const Text words = [&] { return what; };
  const Wait wait{&box->posted, ~0u, box->taken, words, nullptr, 0, route.source};
  WaitFor(route.destination, wait, [] { return true; });
  const ArenaLock lock(*arena_);
  Letter* letter = arena_->at<Letter>(box->first);
  return {std::string(letter->label(), letter->label_bytes), letter->data_bytes};
}

void Fabric::Take(const Route& route, char* data, uint64_t bytes) {
  MailBox* box;
  Letter* letter;
  {
    const ArenaLock lock(*arena_);
    box = BoxOf(route);
    if (!box->first || arena_->at<Letter>(box->first)->data_bytes != bytes) {
      Refuse("DIST0611", "recv", "no letter of " + std::to_string(bytes) + " bytes was awaited",
             "This is a bug of the plugin.");
    }
    letter = arena_->at<Letter>(box->first);
  }
  Copy(data, letter->data(), bytes);
  const ArenaLock lock(*arena_);
  ++box->taken;
  box->first = letter->next;
  arena_->Give(arena_->offset(letter), letter->total());
}

}  // namespace tvm_distir
