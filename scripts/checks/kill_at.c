/* Licensed under the Apache License, Version 2.0; see LICENSE.
 * SPDX-License-Identifier: Apache-2.0 */
/* Preloaded, kills the process at a system call that changes files: before it, after it, or after
 * half of the bytes of a write. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { BEFORE, AFTER, HALF };
static long count, fatal = -1;
static int how, active;

/* Kill at the call of this number, from now on; a number below zero only counts. */
void kill_at_begin(long number, int mode) { count = 0, fatal = number, how = mode, active = 1; }

/* Number of calls since the beginning. */
long kill_at_end(void) { active = 0; return count; }

static int is_fatal(void) { return active && count++ == fatal; }
static void end(void) { kill(getpid(), SIGKILL); }

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CALL(result, call)                \
  int fatal_here = is_fatal();            \
  if (fatal_here && how != AFTER) end();  \
  result = call;                          \
  if (fatal_here) end();                  \
  return result;

ssize_t write(int file, const void *data, size_t size) {
  int fatal_here = is_fatal();
  if (fatal_here && how == BEFORE) end();
  ssize_t done = REAL(write)(file, data, fatal_here && how == HALF ? size / 2 : size);
  if (fatal_here) end();
  return done;
}
int fsync(int file) { int r; CALL(r, REAL(fsync)(file)) }
int rename(const char *a, const char *b) { int r; CALL(r, REAL(rename)(a, b)) }
int mkdir(const char *path, mode_t mode) { int r; CALL(r, REAL(mkdir)(path, mode)) }
int unlink(const char *path) { int r; CALL(r, REAL(unlink)(path)) }
int rmdir(const char *path) { int r; CALL(r, REAL(rmdir)(path)) }
int unlinkat(int folder, const char *path, int flags) { int r; CALL(r, REAL(unlinkat)(folder, path, flags)) }

int open64(const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  mode_t mode = va_arg(more, mode_t);
  va_end(more);
  if (!(flags & (O_CREAT | O_WRONLY | O_RDWR))) return REAL(open64)(path, flags, mode);
  int r;
  CALL(r, REAL(open64)(path, flags, mode))
}
