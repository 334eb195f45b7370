// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "ccl/exchange.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tvm_distir {
namespace {

constexpr int64_t kTileBytes = 32768;
constexpr int64_t kMostTasks = 1 << 20;
constexpr int64_t kStreamedBytes = 4 << 20;

void Copy(char* target, const char* source, int64_t bytes) {
  if (bytes > 0) std::memcpy(target, source, bytes);
}

// Copies a part of a result. With `large` the whole result fits into no cache: it is written past
// them, which spares reading what is overwritten.
void CopyResult(char* target, const char* source, int64_t bytes, bool large) {
#if defined(__SSE2__)
  const int64_t lead = std::min<int64_t>(-reinterpret_cast<intptr_t>(target) & 15, bytes);
  if (large) {
    Copy(target, source, lead);
    int64_t done = lead;
    for (; done + 16 <= bytes; done += 16) {
      const __m128i lane = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + done));
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + done), lane);
    }
    _mm_sfence();
    Copy(target + done, source + done, bytes - done);
    return;
  }
#else
  static_cast<void>(large);
#endif
  Copy(target, source, bytes);
}

// Chunks of the pieces that travel through shared memory.
struct Chunks {
  int64_t elements, count;  // of one piece per chunk; chunks of the largest piece

  int64_t begin(int64_t chunk, int64_t total) const { return std::min(total, chunk * elements); }
};

// All ranks come to the same chunks.
Chunks CutPieces(const Gathering& gathering, const Handover& handover) {
  const int64_t size = gathering.size(), element = ElementBytes(gathering.mine().dtype);
  const int64_t lanes = handover.differs ? size : 1;
  Chunks chunks{std::max<int64_t>(gathering.chunk_bytes() / lanes / element, 1), 0};
  Piece piece;
  for (int64_t from = 0; from < size; ++from) {
    for (int64_t to = 0; to < size; ++to) {
      if (!handover.piece(gathering, from, to, &piece)) continue;
      const int64_t count = (piece.source.elements() + chunks.elements - 1) / chunks.elements;
      chunks.count = std::max(chunks.count, count);
    }
  }
  return chunks;
}

// Puts one chunk of what this rank hands out into its stage, and meets the others.
void StageChunk(Gathering* gathering, const Handover& handover, const Chunks& chunks,
                int64_t chunk) {
  const Request& mine = gathering->mine();
  const int64_t lane_bytes = chunks.elements * ElementBytes(mine.dtype);
  char* stage = gathering->next_stage();
  Piece piece;
  for (int64_t to = 0; to < gathering->size(); ++to) {
    if (!handover.piece(*gathering, gathering->position(), to, &piece)) continue;
    const int64_t total = piece.source.elements();
    Pack(stage + (handover.differs ? to * lane_bytes : 0), mine.source, piece.source,
         chunks.begin(chunk, total), chunks.begin(chunk + 1, total));
    if (!handover.differs) break;
  }
  gathering->MeetAgain();
}

// Where a member's stage holds what it hands to this rank.
const char* StagedFor(const Gathering& gathering, const Handover& handover, const Chunks& chunks,
                      int64_t from) {
  const int64_t lane_bytes = chunks.elements * ElementBytes(gathering.mine().dtype);
  return gathering.stage(from) + (handover.differs ? gathering.position() * lane_bytes : 0);
}

void ExchangeInChunks(Gathering* gathering, const Handover& handover) {
  const Chunks chunks = CutPieces(*gathering, handover);
  const int64_t me = gathering->position();
  char* target = gathering->mine().target;
  Piece piece;
  for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
    StageChunk(gathering, handover, chunks, chunk);
    for (int64_t from = 0; from < gathering->size(); ++from) {
      if (!handover.piece(*gathering, from, me, &piece)) continue;
      const int64_t total = piece.target.elements();
      Unpack(target, piece.target, StagedFor(*gathering, handover, chunks, from),
             chunks.begin(chunk, total), chunks.begin(chunk + 1, total));
    }
  }
}

// Reduces one rank's pieces where they lie. All have the source box of the first, in tensors of
// one shape.
void ReducePieces(const std::vector<const char*>& sources, const Box& box, const Reducer& reducer,
                  ReduceOp op, char* target) {
  int64_t inner = 1, outer = 1, axis = box.ndim - 1;
  for (; axis > 0 && box.extent[axis] == box.shape[axis]; --axis) inner *= box.shape[axis];
  for (int64_t i = 0; i < axis; ++i) outer *= box.shape[i];
  const int64_t row = box.ndim ? box.shape[axis] * inner : 1;
  const int64_t count = box.ndim ? box.extent[axis] * inner : 1;
  const int64_t at = box.ndim ? box.at[axis] * inner : 0;
  for (int64_t i = 0; i < outer; ++i) {
    reducer.reduce(op, sources, i * row + at, i * row + at + count, target);
    target += count * box.element_bytes;
  }
}

void ReduceChunks(Gathering* gathering, const Handover& handover, const Reducer& reducer,
                  ReduceOp op) {
  const Chunks chunks = CutPieces(*gathering, handover);
  const int64_t me = gathering->position(), element = ElementBytes(gathering->mine().dtype);
  std::vector<const char*> terms(gathering->size());
  Piece piece;
  handover.piece(*gathering, 0, me, &piece);
  const int64_t total = piece.target.elements();
  for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
    StageChunk(gathering, handover, chunks, chunk);
    for (int64_t from = 0; from < gathering->size(); ++from) {
      terms[from] = StagedFor(*gathering, handover, chunks, from);
    }
    const int64_t begin = chunks.begin(chunk, total), end = chunks.begin(chunk + 1, total);
    reducer.reduce(op, terms, 0, end - begin, gathering->mine().target + begin * element);
  }
}

// Every rank reduces its part of a chunk; all read all parts. One rendezvous hands over the results of
// a chunk and the operands of the next. Nobody else reads a rank's own part of its operand, so that
// is not handed over.
void ReduceChunksForAll(Gathering* gathering, const Reducer& reducer, ReduceOp op) {
  const Request& mine = gathering->mine();
  const int64_t size = gathering->size(), me = gathering->position();
  const int64_t element = ElementBytes(mine.dtype), total = Elements(mine);
  const int64_t step = gathering->chunk_bytes() / element;
  const bool large = mine.bytes >= kStreamedBytes;
  // Where a member's part of the chunk at `begin` starts, from there.
  const auto edge = [&](int64_t begin, int64_t member) {
    const int64_t count = std::max<int64_t>(std::min(step, total - begin), 0);
    return std::min(count, member * ((count + size - 1) / size));
  };
  const auto stage = [&](int64_t begin) {
    char* target = gathering->next_stage();
    const char* source = mine.source + begin * element;
    const int64_t mine_begin = edge(begin, me) * element, mine_end = edge(begin, me + 1) * element;
    Copy(target, source, mine_begin);
    Copy(target + mine_end, source + mine_end, edge(begin, size) * element - mine_end);
  };
  std::vector<const char*> terms(size);
  stage(0);
  gathering->MeetAgain();
  for (int64_t begin = 0; begin < total; begin += step) {
    for (int64_t i = 0; i < size; ++i) terms[i] = gathering->stage(i);
    terms[me] = mine.source + begin * element;
    reducer.reduce(op, terms, edge(begin, me), edge(begin, me + 1), gathering->next_results());
    stage(begin + step);
    gathering->MeetAgain();
    for (int64_t i = 0; i < size; ++i) {
      const int64_t from = edge(begin, i), to = edge(begin, i + 1);
      CopyResult(mine.target + (begin + from) * element, gathering->results(i),
                 (to - from) * element, large);
    }
  }
}

// A task reduces one tile, piece by piece, for all members.
void ReduceTilesForAll(Gathering* gathering, const Reducer& reducer, ReduceOp op) {
  const int64_t element = ElementBytes(gathering->mine().dtype);
  const int64_t count = Elements(gathering->mine());
  const int64_t tile = std::max(kTileBytes / element, count / kMostTasks + 1);
  const bool large = gathering->mine().bytes >= kStreamedBytes;
  gathering->Share((count + tile - 1) / tile, [&](int64_t task) {
    alignas(64) char total[kTileBytes];
    const int64_t piece = kTileBytes / element, stop = std::min(count, (task + 1) * tile);
    for (int64_t begin = task * tile; begin < stop; begin += piece) {
      const int64_t end = std::min(stop, begin + piece);
      reducer.reduce(op, gathering->sources(), begin, end, total);
      for (int64_t member = 0; member < gathering->size(); ++member) {
        CopyResult(gathering->of(member).target + begin * element, total, (end - begin) * element,
                   large);
      }
    }
  });
}

}  // namespace

Box WholeBox(const Request& request, const Dims& shape) {
  return {request.ndim, ElementBytes(request.dtype), shape, Dims{}, shape};
}

void Exchange(Gathering* gathering, const Handover& handover) {
  const int64_t size = gathering->size(), me = gathering->position();
  const auto copy = [&](int64_t from, int64_t to, char* target) {
    Piece piece;
    if (!handover.piece(*gathering, from, to, &piece)) return;
    const char* source = gathering->sources()[from];
    if (source != target) CopyBox(target, piece.target, source, piece.source);
  };
  if (gathering->staged()) {
    for (int64_t from = 0; from < size; ++from) copy(from, me, gathering->mine().target);
  } else if (gathering->direct()) {
    gathering->Share(size * size, [&](int64_t task) {
      copy(task / size, task % size, gathering->of(task % size).target);
    });
  } else {
    ExchangeInChunks(gathering, handover);
  }
}

void ExchangeReduced(Gathering* gathering, const Handover& handover, const Reducer& reducer,
                     ReduceOp op) {
  const auto reduce = [&](int64_t to, char* target) {
    Piece piece;
    handover.piece(*gathering, 0, to, &piece);
    ReducePieces(gathering->sources(), piece.source, reducer, op, target);
  };
  if (gathering->staged()) {
    reduce(gathering->position(), gathering->mine().target);
  } else if (gathering->direct()) {
    gathering->Share(gathering->size(),
                     [&](int64_t to) { reduce(to, gathering->of(to).target); });
  } else {
    ReduceChunks(gathering, handover, reducer, op);
  }
}

void ReduceForAll(Gathering* gathering, const Reducer& reducer, ReduceOp op) {
  if (gathering->staged()) {
    reducer.reduce(op, gathering->sources(), 0, Elements(gathering->mine()),
                   gathering->mine().target);
  } else if (gathering->direct()) {
    ReduceTilesForAll(gathering, reducer, op);
  } else {
    ReduceChunksForAll(gathering, reducer, op);
  }
}

}  // namespace tvm_distir
