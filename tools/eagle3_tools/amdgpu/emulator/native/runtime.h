/* What the C form of every instruction needs: waves, numbers, and memory with the checks of memory.py
   and local_memory.py. Of two workgroups that store at one place NumPy's form tells: they may do so
   at one instruction, as padding rows in a scratch page do, and here no two run together. */
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

#define LANES 64
#define MANY 63 /* stands for several reading waves */
enum { UNWRITTEN, BEFORE };

/* Texts of faults, which machine.py fills in. */
#define AT ", at {address:#x}, {buffer}"
#define OUTSIDE " of {size} bytes outside every buffer" AT
#define CONFLICT(what) "wave {size} " what " ({other}) since the last barrier: LDS byte {address}"

struct region {
  uint64_t start, end, loads_end;
};

struct launch {
  uint8_t *memory; /* the byte at address `base` */
  uint64_t base;
  const struct region *regions;
  uint64_t region_count;
  int32_t *writers; /* of each byte, or NULL: no check of races or unwritten bytes */
  int32_t number, group;
  uint32_t allow_unwritten, granule;
  uint64_t loads_beyond, loads_unwritten, lds_bytes;
  int64_t start;
  uint64_t *counts; /* executions of each block */
  const char *fault;
  uint64_t address, size, pc;
  const struct region *last;
  jmp_buf *escape;
  int32_t *lds_readers, *lds_writers, epoch, other;
};

struct wave {
  uint32_t *v, *s, active[LANES], scc, saturates;
  int32_t number;
  int64_t next;
  uint64_t pc;
  uint8_t *lds;
  struct launch *launch;
};

static __attribute__((noreturn, noinline, cold)) void fail(struct wave *w, const char *what, uint64_t address, uint64_t size) {
  struct launch *g = w->launch;
  g->fault = what, g->address = address, g->size = size, g->pc = w->pc;
  longjmp(*g->escape, 1);
}

#define AS(to, from, T, F) \
  static inline T as_##to##_##from(F x) { T y; memcpy(&y, &x, sizeof y); return y; }
AS(float32, uint32, float, uint32_t)
AS(uint32, float32, uint32_t, float)
AS(float32, int32, float, int32_t)
AS(int32, float32, int32_t, float)
AS(float64, uint64, double, uint64_t)
AS(uint64, float64, uint64_t, double)
AS(float16, uint16, _Float16, uint16_t)

#define signbit_(x) (signbit(x) != 0)
static inline double mantissa_(double x) { int e; return frexp(x, &e); }
static inline int32_t exponent_(double x) { int e; frexp(x, &e); return e; }
/* Exact for powers of up to 1000 if the result is a normal number, as it is for all float32. */
static inline double ldexp_(double x, int64_t e) { return x * as_float64_uint64((uint64_t)(e + 1023) << 52); }

/* NumPy's form, in float64, has the first NaN of a, b and c, and a NaN for infinity times 0. */
static inline float fma_float32(float a, float b, float c) {
  float r = __builtin_fmaf(a, b, c), nan = (float)((double)a * b + c);
  return r != r ? nan : r;
}

static inline uint32_t to_bfloat16_float32(float x) {
  uint32_t u = as_uint32_float32(x);
  return x != x ? (u >> 31 << 15 | 0x7FC0) : (u + 0x7FFF + (u >> 16 & 1)) >> 16;
}

static inline uint32_t bits_or_nan(double x) { return x != x ? 0x7FC00000 : as_uint32_float32((float)x); }

static inline int64_t searched(const float *table, int64_t n, float x) {
  int64_t low = 0;
  while (low < n) {
    int64_t middle = (low + n) / 2;
    if (x < table[middle]) n = middle; else low = middle + 1;
  }
  return low;
}

static inline void expand(uint32_t low, uint32_t high, uint32_t *lanes) {
  for (int l = 0; l < 32; l++) lanes[l] = low >> l & 1;
  for (int l = 0; l < 32; l++) lanes[32 + l] = high >> l & 1;
}

static inline uint32_t packed(const uint32_t *lanes) {
  uint32_t word = 0;
  for (int l = 0; l < 32; l++) word |= (lanes[l] & 1) << l;
  return word;
}

static inline int any(const uint32_t *lanes) {
  uint32_t all = 0;
  for (int l = 0; l < LANES; l++) all |= lanes[l];
  return all != 0;
}

static inline int64_t first(const uint32_t *lanes) {
  for (int l = 0; l < LANES; l++) if (lanes[l]) return l;
  return 0;
}

/* Global memory. */

static inline int is_foreign(const struct launch *g, int32_t writer) {
  return writer >= g->number && writer != g->number + g->group;
}

static uint64_t search(struct wave *w, uint64_t address, uint64_t size, int loads, const char *what) {
  struct launch *g = w->launch;
  uint64_t low = 0, high = g->region_count;
  while (low < high) {
    uint64_t middle = (low + high) / 2;
    if (g->regions[middle].start <= address) low = middle + 1; else high = middle;
  }
  const struct region *r = g->regions + low - 1;
  int outside = low == 0 || address + size < address;
  if (!outside && address + size <= r->end) {
    g->last = r;
    return 0;
  }
  if (!loads || outside || address + size > r->loads_end) fail(w, what, address, size);
  g->loads_beyond++;
  return 1;
}

static inline uint64_t find(struct wave *w, uint64_t address, uint64_t size, int loads, const char *what) {
  const struct region *r = w->launch->last;
  if (address >= r->start && address + size <= r->end && address + size >= address) return 0;
  return search(w, address, size, loads, what);
}

static inline const uint8_t *loaded(struct wave *w, uint64_t address, uint64_t size) {
  struct launch *g = w->launch;
  uint64_t beyond = find(w, address, size, 1, "load" OUTSIDE), place = address - g->base;
  if (g->writers && !beyond) {
    int32_t first = g->writers[place], last = g->writers[place + size - 1];
    if (first == UNWRITTEN || last == UNWRITTEN) {
      if (!g->allow_unwritten) fail(w, "load of bytes that nobody wrote" AT, address, 0);
      g->loads_unwritten += (first == UNWRITTEN) + (last == UNWRITTEN);
    }
    if (is_foreign(g, first) || is_foreign(g, last)) fail(w, "load of what another workgroup writes in this launch" AT, address, 0);
  }
  return g->memory + place;
}

static inline void load_global(struct wave *w, const uint64_t *address, const uint32_t *lanes, int size, int count, uint32_t *out) {
  for (int l = 0; l < LANES; l++) {
    uint32_t values[4] = {0};
    if (lanes[l]) {
      const uint8_t *from = loaded(w, address[l], size * count);
      if (size == 4) memcpy(values, from, 4 * count); else memcpy(values, from, size);
    }
    for (int k = 0; k < count; k++) out[LANES * k + l] = values[k];
  }
}

static inline void load_words(struct wave *w, uint64_t address, int count, uint32_t *out) {
  memcpy(out, loaded(w, address, 4 * count), 4 * count);
}

static inline void store_global(struct wave *w, const uint64_t *address, const uint32_t *lanes, int size, int count, const uint32_t *values) {
  struct launch *g = w->launch;
  for (int l = 0; l < LANES; l++) {
    if (!lanes[l]) continue;
    find(w, address[l], size * count, 0, "store" OUTSIDE);
    uint64_t place = address[l] - g->base;
    if (g->writers)
      for (int k = 0; k < size * count; k++) g->writers[place + k] = g->number + g->group;
    for (int k = 0; k < count; k++) memcpy(g->memory + place + size * k, values + LANES * k + l, size);
  }
}

static inline uint32_t *atomic_word(struct wave *w, uint64_t address) {
  struct launch *g = w->launch;
  find(w, address, 4, 0, "atomic access" OUTSIDE);
  uint64_t place = (address - g->base) & ~3ull;
  if (g->writers) {
    if (g->writers[place] == UNWRITTEN) fail(w, "swap of bytes that nobody wrote" AT, address, 0);
    if (is_foreign(g, g->writers[place])) fail(w, "swap where another workgroup stored" AT, address, 0);
    for (int k = 0; k < 4; k++) g->writers[place + k] = BEFORE;
  }
  return (uint32_t *)(g->memory + place);
}

static inline void exchange(struct wave *w, const uint64_t *address, const uint32_t *lanes, const uint32_t *new, const uint32_t *expected, uint32_t *out) {
  for (int l = 0; l < LANES; l++) {
    out[l] = lanes[l] ? expected[l] : 0;
    if (lanes[l]) __atomic_compare_exchange_n(atomic_word(w, address[l]), &out[l], new[l], 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  }
}

static inline void add(struct wave *w, const uint64_t *address, const uint32_t *lanes, const uint32_t *by, uint32_t *out) {
  for (int l = 0; l < LANES; l++) out[l] = lanes[l] ? __atomic_fetch_add(atomic_word(w, address[l]), by[l], __ATOMIC_SEQ_CST) : 0;
}

/* Local memory. A conflict concerns `granule` bytes; accesses before a barrier have another epoch. */

static inline int conflicts(int32_t last, int32_t me) { return last >> 6 == me >> 6 && last != me; }

static inline void place_local(struct wave *w, uint32_t place, uint64_t size) {
  if (place + size > w->launch->lds_bytes) fail(w, "LDS access at byte {address} of {limit}", place, 0);
}

/* Several waves may store the same value at one place: compilers let them compute it together. */
static inline void check_local(struct wave *w, uint32_t place, uint64_t size, int writes, int changes) {
  struct launch *g = w->launch;
  int32_t me = g->epoch * 64 + w->number;
  uint64_t begin = place / g->granule, count = size / g->granule;
  for (uint64_t k = begin; k < begin + (count ? count : 1); k++) {
    int32_t writer = g->lds_writers[k], reader = g->lds_readers[k];
    if (conflicts(writer, me) && changes) {
      g->other = writer & 63;
      fail(w, writes ? CONFLICT("overwrites what another wave wrote") : CONFLICT("reads what another wave wrote"), place, w->number);
    }
    if (!writes) {
      g->lds_readers[k] = conflicts(reader, me) ? (me | MANY) : me;
    } else if (conflicts(reader, me)) {
      g->other = reader & 63;
      fail(w, CONFLICT("overwrites what another wave reads"), place, w->number);
    } else {
      g->lds_writers[k] = me;
    }
  }
}

static inline void load_local(struct wave *w, const uint32_t *place, const uint32_t *lanes, int size, int count, uint32_t *out) {
  for (int l = 0; l < LANES; l++) {
    uint32_t values[4] = {0};
    if (lanes[l]) {
      place_local(w, place[l], size * count);
      if (w->launch->lds_writers) check_local(w, place[l], size * count, 0, 1);
      if (size == 4) memcpy(values, w->lds + place[l], 4 * count); else memcpy(values, w->lds + place[l], size);
    }
    for (int k = 0; k < count; k++) out[LANES * k + l] = values[k];
  }
}

static inline void store_local(struct wave *w, const uint32_t *place, const uint32_t *lanes, int size, int count, const uint32_t *values) {
  for (int l = 0; l < LANES; l++) {
    if (!lanes[l]) continue;
    place_local(w, place[l], size * count);
    int changes = 0;
    for (int k = 0; k < count; k++) changes |= memcmp(w->lds + place[l] + size * k, values + LANES * k + l, size);
    if (w->launch->lds_writers) check_local(w, place[l], size * count, 1, changes);
    for (int k = 0; k < count; k++) memcpy(w->lds + place[l] + size * k, values + LANES * k + l, size);
  }
}
