/* Licensed under the Apache License, Version 2.0; see LICENSE.
 * SPDX-License-Identifier: Apache-2.0 */
/* Preloaded, logs what is taken with posix_memalign in lines of 64 bytes, and its end, by thread. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINES = 1 << 20, SLOTS = 1 << 18 };
struct line { void *place; size_t size; int thread; };
static struct line lines[LINES];
static void *known[SLOTS];
static long count;
static int active;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Index of a place, or of the empty slot where it would stand. */
static size_t slot_of(void *place) {
  size_t at = ((uintptr_t)place >> 6) * 2654435761u % SLOTS;
  while (known[at] && known[at] != place) at = (at + 1) % SLOTS;
  return at;
}

static void note(void *place, size_t size) {
  if (count < LINES) {
    lines[count].place = place;
    lines[count].size = size;
    lines[count].thread = (int)syscall(SYS_gettid);
    ++count;
  }
}

void log_begin(void) {
  pthread_mutex_lock(&lock);
  count = 0;
  active = 1;
  pthread_mutex_unlock(&lock);
}

/* Lines "thread place size"; size 0: freed. */
void log_end(const char *path) {
  active = 0;
  FILE *file = fopen(path, "w");
  for (long i = 0; i < count; ++i)
    fprintf(file, "%d %p %zu\n", lines[i].thread, lines[i].place, lines[i].size);
  fclose(file);
}

int posix_memalign(void **place, size_t alignment, size_t size) {
  static int (*next)(void **, size_t, size_t);
  if (!next) next = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
  int failed = next(place, alignment, size);
  if (!failed && active && alignment >= 64) {
    pthread_mutex_lock(&lock);
    known[slot_of(*place)] = *place; /* stays: a place that is freed is only looked up again */
    note(*place, size);
    pthread_mutex_unlock(&lock);
  }
  return failed;
}

void free(void *place) {
  static void (*next)(void *);
  if (!next) next = (void (*)(void *))dlsym(RTLD_NEXT, "free");
  if (place && active && ((uintptr_t)place & 63) == 0) {
    pthread_mutex_lock(&lock);
    if (known[slot_of(place)] == place) note(place, 0);
    pthread_mutex_unlock(&lock);
  }
  next(place);
}
