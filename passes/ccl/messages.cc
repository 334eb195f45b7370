// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Messages from rank to rank.

#include <algorithm>
#include <cstring>

#include "ccl/control.h"
#include "ccl/fabric.h"
#include "ffi/refuse.h"

namespace tvm_distir {
namespace {

// Followed by the label and then the data.
struct Message {
  Offset next;
  uint64_t label_bytes, data_bytes;

  static uint64_t Total(uint64_t label_bytes, uint64_t data_bytes) {
    return sizeof(Message) + label_bytes + data_bytes;
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
  return mixed % kQueueLists;
}

void Copy(char* target, const char* source, uint64_t bytes) {
  if (bytes > 0) std::memcpy(target, source, bytes);
}

}  // namespace

// The messages of one route, in order.
struct MessageQueue {
  Offset next;
  Route route;
  Word posted;
  uint32_t taken;
  Offset first, last;
};

MessageQueue* Fabric::QueueOf(const Route& route) {
  Offset& list = arena_->at<Offset>(control_->queues)[ListOf(route)];
  for (Offset at = list; at;) {
    MessageQueue* queue = arena_->at<MessageQueue>(at);
    const Route& other = queue->route;
    if (other.tag == route.tag && other.source == route.source &&
        other.destination == route.destination) {
      return queue;
    }
    at = queue->next;
  }
  const Offset made = arena_->Reserve(sizeof(MessageQueue));
  MessageQueue* queue = new (arena_->at<MessageQueue>(made)) MessageQueue();
  queue->next = list;
  queue->route = route;
  list = made;
  return queue;
}

void Fabric::Post(const Route& route, const std::string& label, const char* data,
                  uint64_t bytes) {
  StateOf(route.destination);
  Offset at;
  {
    const ArenaLock lock(*arena_);
    at = arena_->Take(Message::Total(label.size(), bytes));
  }
  Message* message = arena_->at<Message>(at);
  message->next = 0;
  message->label_bytes = label.size();
  message->data_bytes = bytes;
  Copy(message->label(), label.data(), label.size());
  Copy(message->data(), data, bytes);
  const ArenaLock lock(*arena_);
  MessageQueue* queue = QueueOf(route);
  (queue->first ? arena_->at<Message>(queue->last)->next : queue->first) = at;
  queue->last = at;
  ++control_->messages;
  queue->posted.fetch_add(1, std::memory_order_release);
  WakeAll(&queue->posted);
}

std::pair<std::string, uint64_t> Fabric::Await(const Route& route, const std::string& what) {
  StateOf(route.source);
  MessageQueue* queue;
  {
    const ArenaLock lock(*arena_);
    queue = QueueOf(route);
  }
  const Text words = [&] { return what; };
  const Wait wait{&queue->posted, ~0u, queue->taken, words, nullptr, 0, route.source};
  WaitFor(route.destination, wait, [] { return true; });
  const ArenaLock lock(*arena_);
  Message* message = arena_->at<Message>(queue->first);
  return {std::string(message->label(), message->label_bytes), message->data_bytes};
}

void Fabric::Take(const Route& route, char* data, uint64_t bytes) {
  MessageQueue* queue;
  Message* message;
  {
    const ArenaLock lock(*arena_);
    queue = QueueOf(route);
    if (!queue->first || arena_->at<Message>(queue->first)->data_bytes != bytes) {
      Refuse("DIST0611", "recv", "no message of " + std::to_string(bytes) + " bytes was expected",
             "Report it: this is a bug of the plugin.");
    }
    message = arena_->at<Message>(queue->first);
  }
  Copy(data, message->data(), bytes);
  const ArenaLock lock(*arena_);
  ++queue->taken;
  queue->first = message->next;
  arena_->Give(arena_->offset(message), message->total());
}

}  // namespace tvm_distir
