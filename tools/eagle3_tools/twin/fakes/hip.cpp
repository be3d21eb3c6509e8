// A fake libamdhip64: devices, memory, streams, events, modules and graphs of an MI355X, on host
// memory. Kernels are executed by worker.py, a process at the other end of a Unix socket that maps
// the same memory. Every stream has a thread that does its operations in order (TWIN_SYNC=1: each is
// done when its call returns; TWIN_DELAYS=SEED: waits up to 4 ms before each).
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
typedef int hipError_t;
enum { OK = 0, INVALID = 1, OOM = 2, NO_DEVICE = 100, BAD_DEVICE = 101, BAD_IMAGE = 200, NOT_FOUND = 500,
       NOT_READY = 600, LAUNCH_FAILURE = 719, NOT_SUPPORTED = 801, PEER_ALREADY = 704 };
struct dim3 { uint32_t x, y, z; };

static const uint64_t BASE = 0x200000000000ull, GIB = 1ull << 30;
static const uint64_t GRANULE = 4096;

// ---------------------------------------------------------------------------------------- tracing
static int traced() {
  static int level = getenv("TWIN_TRACE") ? atoi(getenv("TWIN_TRACE")) : 0;
  return level;
}
static std::mutex g_trace_mutex;
static std::map<std::string, long> &calls() { static auto *m = new std::map<std::string, long>; return *m; }
static void report() {
  if (!traced()) return;
  std::lock_guard<std::mutex> l(g_trace_mutex);
  fprintf(stderr, "[twin] calls:");
  for (auto &c : calls()) fprintf(stderr, " %s=%ld", c.first.c_str(), c.second);
  fprintf(stderr, "\n");
}
API void twin_trace(const char *name) {
  if (!traced()) return;
  std::lock_guard<std::mutex> l(g_trace_mutex);
  static bool registered = false;
  if (!registered) { registered = true; atexit(report); }
  long n = ++calls()[name];
  if (n == 1 || traced() > 1) fprintf(stderr, "[twin] %s\n", name);
}
API void twin_log(const char *format, ...) {
  va_list a; va_start(a, format); fprintf(stderr, "[twin] "); vfprintf(stderr, format, a); fprintf(stderr, "\n"); va_end(a);
}
// What a library's function does that no source here defines: it fails if it may, else it ends the run.
API long twin_stub(const char *name, long status) {
  twin_trace(name);
  if (status) return status;
  twin_log("%s was called, which has no fake: write it in tools/eagle3_tools/twin/fakes, or list it in MAY_FAIL", name);
  fflush(stderr);
  _exit(70);
}
#define T twin_trace(__func__)

// ----------------------------------------------------------------------------------------- memory
static int env_int(const char *name, int fallback) { const char *v = getenv(name); return v ? atoi(v) : fallback; }
static int devices() { static int n = env_int("TWIN_DEVICES", 1); return n; }
static uint64_t device_bytes() { static uint64_t n = env_int("TWIN_MEMORY_GIB", 4) * GIB; return n; }
static const uint64_t HOST_BYTES = 16 * GIB, SCRATCH_BYTES = GIB / 4;

// Neither new nor freed memory holds anything: bytes of 255 are NaN as float32, bfloat16 and float8, and -1.
// What is too large to fill is zeros, as is memory that nobody has touched.
static const uint64_t MOST_POISONED = GIB / 4;
static void poison(uint64_t at, uint64_t n) {
  if (n <= MOST_POISONED) memset((void *)at, 255, n);
  else madvise((void *)at, n, MADV_REMOVE);
}

// ----------------------------------------------------------------------------------------- faults
// TWIN_FAULT happens from the moment on at which the file TWIN_FAULT_FILE exists: "hang" (a kernel never
// ends), "refuse" (launches return an error), "fail" (a kernel ends with an error), "memory" (allocations fail).
static bool faulty(const char *kind) {
  static const char *chosen = getenv("TWIN_FAULT"), *file = getenv("TWIN_FAULT_FILE");
  static std::atomic<bool> begun{false};
  if (!chosen || strcmp(chosen, kind)) return false;
  if (!begun && (!file || !access(file, F_OK))) begun = true;
  return begun;
}

struct Pool {   // first fit over a sorted map of free ranges
  uint64_t first = 0, size = 0, used = 0;
  std::map<uint64_t, uint64_t> free_ranges, live;
  void init(uint64_t at, uint64_t n) { first = at; size = n; free_ranges[at] = n; }
  uint64_t take(uint64_t n) {
    n = (n + GRANULE - 1) / GRANULE * GRANULE; if (!n) n = GRANULE;
    for (auto i = free_ranges.begin(); i != free_ranges.end(); ++i)
      if (i->second >= n) {
        uint64_t at = i->first, left = i->second - n;
        free_ranges.erase(i);
        if (left) free_ranges[at + n] = left;
        live[at] = n; used += n;
        return at;
      }
    return 0;
  }
  bool give(uint64_t at) {
    auto i = live.find(at);
    if (i == live.end()) return false;
    uint64_t n = i->second; live.erase(i); used -= n;
    poison(at, n);
    auto next = free_ranges.lower_bound(at);
    if (next != free_ranges.end() && at + n == next->first) { n += next->second; next = free_ranges.erase(next); }
    if (next != free_ranges.begin()) { auto p = std::prev(next); if (p->first + p->second == at) { p->second += n; return true; } }
    free_ranges[at] = n;
    return true;
  }
};
static std::mutex g_memory_mutex;
static Pool *g_pools;          // one a device, then host memory
static int g_fd = -1;
static uint64_t g_total;
static std::once_flag g_once;

static void init_memory() {
  std::call_once(g_once, [] {
    g_total = devices() * device_bytes() + HOST_BYTES + SCRATCH_BYTES;
    g_fd = syscall(SYS_memfd_create, "rocm-twin", 1u);
    if (g_fd < 0 || ftruncate(g_fd, g_total)) { perror("[twin] memfd"); abort(); }
    void *p = mmap((void *)BASE, g_total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE, g_fd, 0);
    if (p != (void *)BASE) { perror("[twin] mmap"); abort(); }
    g_pools = new Pool[devices() + 1];
    for (int d = 0; d < devices(); d++) g_pools[d].init(BASE + d * device_bytes(), device_bytes());
    g_pools[devices()].init(BASE + devices() * device_bytes(), HOST_BYTES);
  });
}
static int device_of(const void *p) {   // -1: not ours; devices(): pinned host memory
  uint64_t a = (uint64_t)p;
  if (a < BASE || a >= BASE + devices() * device_bytes() + HOST_BYTES) return -1;
  int d = (a - BASE) / device_bytes();
  return d < devices() ? d : devices();
}
static thread_local int t_device = 0;
static thread_local hipError_t t_last = OK;
static hipError_t fail(hipError_t e) { t_last = e; return e; }

// --------------------------------------------------------------------------------- emulator's side
struct Connection { int fd = -1; std::mutex mutex; };
static Connection *g_connections;
static std::once_flag g_connect_once;

static bool send_all(int fd, const void *p, size_t n) {
  for (auto c = (const char *)p; n;) { ssize_t k = send(fd, c, n, MSG_NOSIGNAL); if (k <= 0) { if (errno == EINTR) continue; return false; } c += k; n -= k; }
  return true;
}
static bool receive_all(int fd, void *p, size_t n) {
  for (auto c = (char *)p; n;) { ssize_t k = recv(fd, c, n, 0); if (k <= 0) { if (k < 0 && errno == EINTR) continue; return false; } c += k; n -= k; }
  return true;
}
static void connect_one(Connection &c, int device) {
  const char *path = getenv("TWIN_SOCKET");
  if (!path) { twin_log("TWIN_SOCKET is not set: kernels cannot be executed"); return; }
  c.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un a{}; a.sun_family = AF_UNIX; strncpy(a.sun_path, path, sizeof a.sun_path - 1);
  if (connect(c.fd, (sockaddr *)&a, sizeof a)) { perror("[twin] connect"); close(c.fd); c.fd = -1; return; }
  uint64_t hello[4] = {BASE, g_total, (uint64_t)device, BASE + g_total - SCRATCH_BYTES + device * (SCRATCH_BYTES / devices() & ~4095ull)};
  iovec io{hello, sizeof hello};
  char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr m{}; m.msg_iov = &io; m.msg_iovlen = 1; m.msg_control = control; m.msg_controllen = sizeof control;
  auto h = CMSG_FIRSTHDR(&m); h->cmsg_level = SOL_SOCKET; h->cmsg_type = SCM_RIGHTS; h->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(h), &g_fd, sizeof(int));
  if (sendmsg(c.fd, &m, MSG_NOSIGNAL) < 0) perror("[twin] hello");
}
// One request and its answer. Returns a status; the answer's bytes go to `reply`.
static int request(int device, uint32_t op, const std::vector<std::pair<const void *, size_t>> &parts, std::vector<char> *reply) {
  init_memory();
  std::call_once(g_connect_once, [] {
    g_connections = new Connection[devices()];
    for (int d = 0; d < devices(); d++) connect_one(g_connections[d], d);
  });
  Connection &c = g_connections[device];
  std::lock_guard<std::mutex> l(c.mutex);
  if (c.fd < 0) return LAUNCH_FAILURE;
  uint32_t n = 0; for (auto &p : parts) n += p.second;
  uint32_t head[2] = {op, n};
  bool good = send_all(c.fd, head, 8);
  for (auto &p : parts) good = good && send_all(c.fd, p.first, p.second);
  int32_t answer[2];
  if (!good || !receive_all(c.fd, answer, 8)) { twin_log("the emulator is gone"); close(c.fd); c.fd = -1; return LAUNCH_FAILURE; }
  std::vector<char> data(answer[1]);
  if (!receive_all(c.fd, data.data(), data.size())) return LAUNCH_FAILURE;
  if (answer[0]) twin_log("emulator: %.*s", (int)data.size(), data.data());
  else if (reply) reply->swap(data);
  return answer[0];
}
enum { LOAD = 1, FUNCTION = 2, LAUNCH = 3, UNLOAD = 5, PLACE = 6, SYMBOL = 7 };

// ---------------------------------------------------------------------------- modules and functions
struct Argument { uint32_t offset, size; };
struct Function { int device; uint32_t id; std::string name; uint32_t kernarg, lds, vgprs, threads, scratch; std::vector<Argument> args; };
struct Module { int device; uint32_t id; void *image; };

static hipError_t get_function(int device, uint32_t module, const char *name, Function **out) {
  std::vector<char> reply;
  int e = request(device, FUNCTION, {{&module, 4}, {name, strlen(name)}}, &reply);
  if (e) return fail(e);
  auto w = (const uint32_t *)reply.data();
  auto f = new Function{device, w[0], name, w[1], w[2], w[3], w[4], w[5], {}};
  for (uint32_t k = 0; k < w[6]; k++) f->args.push_back({w[7 + 2 * k], w[8 + 2 * k]});
  *out = f;
  return OK;
}
struct Launch { Function *f; dim3 grid, block; uint32_t lds; std::vector<char> kernarg; };
static Launch make_launch(Function *f, dim3 grid, dim3 block, uint32_t lds, void **params, void **extra) {
  Launch l{f, grid, block, lds, std::vector<char>(f->kernarg)};
  if (params) for (size_t k = 0; k < f->args.size(); k++) memcpy(&l.kernarg[f->args[k].offset], params[k], f->args[k].size);
  else if (extra) {
    void *p = nullptr; size_t n = 0;
    for (void **e = extra; *e != (void *)3; e += 2) { if (*e == (void *)1) p = e[1]; else if (*e == (void *)2) n = *(size_t *)e[1]; }
    if (p) memcpy(l.kernarg.data(), p, n < l.kernarg.size() ? n : l.kernarg.size());
  }
  return l;
}
static hipError_t run_launch(const Launch &l) {
  while (faulty("hang")) sleep(1);
  if (faulty("fail")) return fail(LAUNCH_FAILURE);
  uint32_t head[8] = {l.f->id, l.grid.x, l.grid.y, l.grid.z, l.block.x, l.block.y, l.block.z, l.lds};
  int e = request(l.f->device, LAUNCH, {{head, sizeof head}, {l.kernarg.data(), l.kernarg.size()}}, nullptr);
  if (e) twin_log("launch of %s failed: %d", l.f->name.c_str(), e);
  return e ? fail(LAUNCH_FAILURE) : OK;
}

// -------------------------------------------------------------------------------- graphs and streams
struct Graph;
struct Node {
  enum Kind { EMPTY, KERNEL, COPY, SET, CHILD, CALL } kind = EMPTY;
  Launch launch{}; void *to = nullptr; const void *from = nullptr; size_t size = 0; uint32_t value = 0, element = 1;
  Graph *child = nullptr; void (*call)(void *) = nullptr; void *data = nullptr;
  std::vector<Node *> after; const Node *origin = nullptr;
};
struct Graph { std::vector<Node *> nodes; };
static Graph *clone(const Graph *g) {
  auto c = new Graph; std::map<const Node *, Node *> m;
  for (auto n : g->nodes) {
    auto k = new Node(*n); k->origin = n; m[n] = k;
    if (n->child) k->child = clone(n->child);
    for (auto &a : k->after) a = m[a];
    c->nodes.push_back(k);
  }
  return c;
}
static void destroy(Graph *g) { for (auto n : g->nodes) { if (n->child) destroy(n->child); delete n; } delete g; }
static void fill(void *to, uint32_t value, uint32_t element, size_t count) {
  if (element == 4) { auto p = (uint32_t *)to; for (size_t k = 0; k < count; k++) p[k] = value; }
  else if (element == 2) { auto p = (uint16_t *)to; for (size_t k = 0; k < count; k++) p[k] = value; }
  else memset(to, value, count);
}
static hipError_t run_node(const Node &n);
static hipError_t run_graph(const Graph *g) { for (auto n : g->nodes) if (auto e = run_node(*n)) return e; return OK; }
static hipError_t run_node(const Node &n) {
  switch (n.kind) {
    case Node::EMPTY: return OK;
    case Node::KERNEL: return run_launch(n.launch);
    case Node::COPY: memmove(n.to, n.from, n.size); return OK;
    case Node::SET: fill(n.to, n.value, n.element, n.size); return OK;
    case Node::CHILD: return run_graph(n.child);
    case Node::CALL: n.call(n.data); return OK;
  }
  return OK;
}
struct Ticket { std::mutex mutex; std::condition_variable changed; bool done = false; std::chrono::steady_clock::time_point at; };
static void finish(const std::shared_ptr<Ticket> &k) { std::lock_guard<std::mutex> l(k->mutex); k->done = true; k->at = std::chrono::steady_clock::now(); k->changed.notify_all(); }
static void wait_for(const std::shared_ptr<Ticket> &k) { std::unique_lock<std::mutex> l(k->mutex); k->changed.wait(l, [&] { return k->done; }); }
static bool synchronous() { static bool v = env_int("TWIN_SYNC", 0); return v; }
struct Stream {
  int device; Graph *captured = nullptr;
  std::mutex mutex; std::condition_variable changed; std::deque<std::function<hipError_t()>> queue; bool busy = false, ends = false; hipError_t error = OK; std::thread worker;
  explicit Stream(int d) : device(d) {}
  void work() {
    t_device = device;
    static const int seed = env_int("TWIN_DELAYS", 0);
    static std::atomic<unsigned> streams{0};
    std::minstd_rand random(seed + 7919 * streams++);
    std::unique_lock<std::mutex> l(mutex);
    for (;;) {
      changed.wait(l, [&] { return ends || !queue.empty(); });
      if (queue.empty()) return;
      auto f = std::move(queue.front()); queue.pop_front(); busy = true;
      l.unlock();
      if (seed) usleep(random() % 4000);
      auto e = f();
      l.lock();
      if (e && !error) error = e;
      busy = false; changed.notify_all();
    }
  }
  hipError_t put(std::function<hipError_t()> f) {
    if (synchronous()) return f();
    std::lock_guard<std::mutex> l(mutex);
    if (!worker.joinable()) worker = std::thread([this] { work(); });
    queue.push_back(std::move(f)); changed.notify_all();
    return error;
  }
  bool idle() { std::lock_guard<std::mutex> l(mutex); return queue.empty() && !busy; }
  hipError_t drain() { std::unique_lock<std::mutex> l(mutex); changed.wait(l, [&] { return queue.empty() && !busy; }); return error; }
  void end() { drain(); { std::lock_guard<std::mutex> l(mutex); ends = true; changed.notify_all(); } if (worker.joinable()) worker.join(); }
};
static std::mutex g_streams_mutex; static std::set<Stream *> &streams() { static auto *s = new std::set<Stream *>; return *s; }
static Stream *make_stream() { auto s = new Stream(t_device); std::lock_guard<std::mutex> l(g_streams_mutex); streams().insert(s); return s; }
static void drain_device(int device) {   // of that device only: others may wait for what it is yet to do
  std::vector<Stream *> all; { std::lock_guard<std::mutex> l(g_streams_mutex); for (auto s : streams()) if (s->device == device) all.push_back(s); }
  for (auto s : all) s->drain();
}
struct Event { std::shared_ptr<Ticket> ticket; };
static Stream *stream_of(void *s) {
  static std::map<int, Stream *> defaults; static std::mutex m;
  if (s && (uint64_t)s > 2) return (Stream *)s;
  std::lock_guard<std::mutex> l(m);
  auto &d = defaults[t_device]; if (!d) d = make_stream();
  return d;
}
static hipError_t submit(void *stream, Node n) {
  auto s = stream_of(stream);
  if (!s->captured) return s->put([n] { return run_node(n); });
  if (!s->captured->nodes.empty()) n.after = {s->captured->nodes.back()};
  s->captured->nodes.push_back(new Node(n));
  return OK;
}
API int twin_submit_call(void *stream, void (*f)(void *), void *data) { Node n; n.kind = Node::CALL; n.call = f; n.data = data; return submit(stream, n); }

// ------------------------------------------------------------------------------------------ devices
API hipError_t hipInit(unsigned) { T; init_memory(); return OK; }
API hipError_t hipGetDeviceCount(int *n) { T; *n = devices(); return OK; }
API hipError_t hipDeviceGet(int *d, int n) { T; if (n < 0 || n >= devices()) return fail(BAD_DEVICE); *d = n; return OK; }
API hipError_t hipGetDevice(int *d) { T; *d = t_device; return OK; }
API hipError_t hipSetDevice(int d) { T; if (d < 0 || d >= devices()) return fail(BAD_DEVICE); t_device = d; return OK; }
API hipError_t hipDriverGetVersion(int *v) { T; *v = 70200000; return OK; }
API hipError_t hipRuntimeGetVersion(int *v) { T; *v = 70200000; return OK; }
API hipError_t hipDeviceGetName(char *p, int n, int) { T; strncpy(p, "AMD Instinct MI355X (emulated)", n); return OK; }
API hipError_t hipDeviceGetPCIBusId(char *p, int n, int d) { T; snprintf(p, n, "0000:%02x:00.0", 5 + 16 * d); return OK; }
API hipError_t hipDeviceTotalMem(size_t *n, int) { T; *n = device_bytes(); return OK; }
API hipError_t hipMemGetInfo(size_t *f, size_t *t) {
  T; init_memory(); std::lock_guard<std::mutex> l(g_memory_mutex);
  *t = device_bytes(); *f = device_bytes() - g_pools[t_device].used; return OK;
}
API hipError_t hipDeviceGetStreamPriorityRange(int *a, int *b) { T; *a = 1; *b = -1; return OK; }
API hipError_t hipDeviceCanAccessPeer(int *can, int a, int b) { T; *can = a != b; return OK; }
API hipError_t hipDeviceEnablePeerAccess(int, unsigned) { T; return OK; }
API const char *hipGetErrorString(hipError_t e) {
  T; switch (e) { case OK: return "no error"; case OOM: return "out of memory"; case INVALID: return "invalid argument"; case NOT_FOUND: return "named symbol not found";
    case LAUNCH_FAILURE: return "unspecified launch failure (see the emulator's message)"; case NOT_SUPPORTED: return "operation not supported"; default: return "twin error"; }
}
API hipError_t hipGetLastError() { T; auto e = t_last; t_last = OK; return e; }
API hipError_t hipDeviceGetAttribute(int *v, int a, int d) {
  T;
  switch (a) {
    case 23: *v = 9; break;             // ComputeCapabilityMajor
    case 61: *v = 5; break;             // ComputeCapabilityMinor
    case 5: *v = 2400000; break;        // ClockRate, kHz
    case 19: *v = 4 << 20; break;       // L2CacheSize
    case 26: case 27: case 28: case 56: *v = 1024; break;    // MaxBlockDim, MaxThreadsPerBlock
    case 29: *v = 2147483647; break;    // MaxGridDimX
    case 30: case 31: *v = 65536; break;
    case 57: *v = 2048; break;          // MaxThreadsPerMultiProcessor
    case 59: *v = 8192; break;          // MemoryBusWidth
    case 60: *v = 2000000; break;       // MemoryClockRate
    case 63: case 10015: *v = 256; break;   // MultiprocessorCount
    case 71: case 72: *v = 131072; break;   // MaxRegistersPer{Block,Multiprocessor}
    case 74: case 75: case 76: case 10002: *v = 163840; break;   // shared memory
    case 87: *v = 64; break;            // WarpSize
    case 67: *v = 5 + 16 * d; break;    // PciBusId
    case 8: case 24: case 85: case 90: case 3: case 4: case 10: case 10011: *v = 1; break;
    case 0: *v = 1; break;              // EccEnabled
    case 10018: *v = 8; break;          // NumberOfXccs
    default: *v = 0; if (traced()) twin_log("attribute %d: 0", a);
  }
  return OK;
}
API hipError_t hipGetDevicePropertiesR0600(void *out, int d) {   // offsets of hipDeviceProp_tR0600
  T;
  auto b = (char *)out; memset(b, 0, 1472);
  auto i = [&](int at, int v) { memcpy(b + at, &v, 4); };
  auto u = [&](int at, uint64_t v) { memcpy(b + at, &v, 8); };
  strcpy(b, "AMD Instinct MI355X (emulated)");
  snprintf(b + 256, 16, "twin%012d", d);
#include "properties.inc"
  return OK;
}
API hipError_t hipCtxGetDevice(int *d) { T; *d = t_device; return OK; }
API hipError_t hipCtxPushCurrent(void *c) { T; t_device = (int)(uint64_t)c - 1; return OK; }
API hipError_t hipCtxPopCurrent(void **c) { T; if (c) *c = (void *)(uint64_t)(t_device + 1); return OK; }
API hipError_t hipDevicePrimaryCtxRetain(void **c, int d) { T; *c = (void *)(uint64_t)(d + 1); return OK; }

// ------------------------------------------------------------------------------------------- memory
static hipError_t take(void **p, size_t n, int pool) {
  init_memory(); std::lock_guard<std::mutex> l(g_memory_mutex);
  auto at = faulty("memory") ? 0 : g_pools[pool].take(n);
  if (at) poison(at, n);
  if (traced() > 1) twin_log("allocate %zu in pool %d: %#lx", n, pool, at);
  if (!at) { *p = nullptr; return fail(OOM); }
  *p = (void *)at; return OK;
}
static hipError_t give(void *p) {
  if (!p) return OK;
  init_memory(); std::lock_guard<std::mutex> l(g_memory_mutex);
  int d = device_of(p);
  return d >= 0 && g_pools[d].give((uint64_t)p) ? OK : fail(INVALID);
}
API hipError_t hipMalloc(void **p, size_t n) { T; return take(p, n, t_device); }
API hipError_t hipMallocManaged(void **p, size_t n, unsigned) { T; return take(p, n, t_device); }
API hipError_t hipFree(void *p) { T; if (p) drain_device(device_of(p)); return give(p); }
API hipError_t hipHostMalloc(void **p, size_t n, unsigned) { T; return take(p, n, devices()); }
API hipError_t hipHostFree(void *p) { T; return give(p); }
API hipError_t hipHostRegister(void *, size_t, unsigned) { T; return OK; }
API hipError_t hipHostUnregister(void *) { T; return OK; }
API hipError_t hipMemGetAddressRange(void **p, size_t *n, void *q) {
  T; init_memory(); std::lock_guard<std::mutex> l(g_memory_mutex);
  int d = device_of(q); if (d < 0) return fail(NOT_FOUND);
  auto &live = g_pools[d].live; auto i = live.upper_bound((uint64_t)q);
  if (i == live.begin()) return fail(NOT_FOUND);
  --i; if ((uint64_t)q >= i->first + i->second) return fail(NOT_FOUND);
  if (p) *p = (void *)i->first;
  if (n) *n = i->second;
  return OK;
}
API hipError_t hipPointerGetAttribute(void *out, int what, void *p) {
  T; init_memory(); int d = device_of(p);
  if (traced()) twin_log("hipPointerGetAttribute %d of %p: pool %d", what, p, d);
  if (d < 0) return fail(INVALID);
  switch (what) {
    case 2: *(int *)out = d == devices() ? 1 : 2; return OK;
    case 3: *(void **)out = p; return OK;
    case 4: if (d != devices()) return fail(INVALID); *(void **)out = p; return OK;
    case 9: *(int *)out = d == devices() ? 0 : d; return OK;
    case 11: { void *q; size_t n; auto e = hipMemGetAddressRange(&q, &n, p); *(void **)out = q; return e; }
    case 12: { void *q; size_t n; auto e = hipMemGetAddressRange(&q, &n, p); *(size_t *)out = n; return e; }
    default: return fail(NOT_SUPPORTED);
  }
}
static hipError_t copy(void *to, const void *from, size_t n, void *stream) {
  auto s = stream_of(stream);
  if (!s->captured && !synchronous()) {   // pageable memory is read or written before the call returns
    if (device_of(from) < 0) {
      auto kept = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + n);
      auto e = s->put([=] { memmove(to, kept->data(), n); return OK; });
      return device_of(to) < 0 ? s->drain() : e;
    }
    if (device_of(to) < 0) { s->put([=] { memmove(to, from, n); return OK; }); return s->drain(); }
  }
  Node k; k.kind = Node::COPY; k.to = to; k.from = from; k.size = n; return submit(stream, k);
}
API hipError_t hipMemcpyAsync(void *to, const void *from, size_t n, int, void *s) { T; return copy(to, from, n, s); }
API hipError_t hipMemcpyWithStream(void *to, const void *from, size_t n, int, void *s) { T; return copy(to, from, n, s); }
API hipError_t hipMemcpyDtoDAsync(void *to, void *from, size_t n, void *s) { T; return copy(to, from, n, s); }
API hipError_t hipMemcpyDtoHAsync(void *to, void *from, size_t n, void *s) { T; return copy(to, from, n, s); }
API hipError_t hipMemcpyHtoDAsync(void *to, void *from, size_t n, void *s) { T; return copy(to, from, n, s); }
API hipError_t hipMemcpyDtoH(void *to, void *from, size_t n) { T; stream_of(nullptr)->drain(); memmove(to, from, n); return OK; }
API hipError_t hipMemcpyHtoD(void *to, void *from, size_t n) { T; memmove(to, from, n); return OK; }
static hipError_t set(void *to, uint32_t v, uint32_t element, size_t n, void *s) { Node k; k.kind = Node::SET; k.to = to; k.value = v; k.element = element; k.size = n; return submit(s, k); }
API hipError_t hipMemsetAsync(void *to, int v, size_t n, void *s) { T; return set(to, v & 255, 1, n, s); }
API hipError_t hipMemsetD8Async(void *to, unsigned char v, size_t n, void *s) { T; return set(to, v, 1, n, s); }
API hipError_t hipMemsetD32Async(void *to, int v, size_t n, void *s) { T; return set(to, v, 4, n, s); }

// ------------------------------------------------------------------------------- streams and events
API hipError_t hipStreamCreateWithFlags(void **s, unsigned) { T; *s = make_stream(); return OK; }
API hipError_t hipStreamCreateWithPriority(void **s, unsigned, int) { T; *s = make_stream(); return OK; }
API hipError_t hipStreamDestroy(void *p) { T; auto s = (Stream *)p; { std::lock_guard<std::mutex> l(g_streams_mutex); streams().erase(s); } s->end(); delete s; return OK; }
API hipError_t hipStreamQuery(void *s) { T; return stream_of(s)->idle() ? OK : NOT_READY; }
API hipError_t hipStreamSynchronize(void *s) { T; return stream_of(s)->drain(); }
API hipError_t hipStreamWaitEvent(void *s, void *e, unsigned) {
  T; auto k = ((Event *)e)->ticket; auto q = stream_of(s);
  if (!k || q->captured) return OK;
  return q->put([k] { wait_for(k); return OK; });
}
API int hipGetStreamDeviceId(void *s) { T; return stream_of(s)->device; }
API hipError_t hipEventCreateWithFlags(void **e, unsigned) { T; *e = new Event{}; return OK; }
API hipError_t hipEventDestroy(void *e) { T; delete (Event *)e; return OK; }
API hipError_t hipEventRecord(void *e, void *s) {
  T; auto k = std::make_shared<Ticket>(); ((Event *)e)->ticket = k; auto q = stream_of(s);
  if (q->captured) { finish(k); return OK; }
  return q->put([k] { finish(k); return OK; });
}
API hipError_t hipEventQuery(void *e) { T; auto k = ((Event *)e)->ticket; if (!k) return OK; std::lock_guard<std::mutex> l(k->mutex); return k->done ? OK : NOT_READY; }
API hipError_t hipEventSynchronize(void *e) { T; auto k = ((Event *)e)->ticket; if (k) wait_for(k); return OK; }
API hipError_t hipEventElapsedTime(float *ms, void *a, void *b) {
  T; auto x = ((Event *)a)->ticket, y = ((Event *)b)->ticket; if (!x || !y) return fail(INVALID);
  *ms = std::chrono::duration<float, std::milli>(y->at - x->at).count(); return OK;
}
API hipError_t hipDeviceSynchronize() { T; drain_device(t_device); return OK; }
API hipError_t hipLaunchHostFunc(void *s, void (*f)(void *), void *data) { T; Node n; n.kind = Node::CALL; n.call = f; n.data = data; return submit(s, n); }
API hipError_t hipStreamBeginCapture(void *s, int) { T; stream_of(s)->captured = new Graph; return OK; }
API hipError_t hipStreamEndCapture(void *s, void **g) { T; auto k = stream_of(s); *g = k->captured; k->captured = nullptr; return OK; }
API hipError_t hipStreamIsCapturing(void *s, int *v) { T; *v = stream_of(s)->captured ? 1 : 0; return OK; }

// ------------------------------------------------------------------------------------------ modules
static size_t elf_size(const void *p) {   // section headers come last
  auto b = (const unsigned char *)p;
  uint64_t table; uint16_t size, count; memcpy(&table, b + 40, 8); memcpy(&size, b + 58, 2); memcpy(&count, b + 60, 2);
  size_t end = table + size * count;
  for (int k = 0; k < count; k++) {
    uint32_t type; uint64_t at, n; memcpy(&type, b + table + k * size + 4, 4); memcpy(&at, b + table + k * size + 24, 8); memcpy(&n, b + table + k * size + 32, 8);
    if (type != 8 && at + n > end) end = at + n;
  }
  return end;
}
static size_t image_size(const void *p) {
  auto b = (const char *)p;
  if (!memcmp(b, "\177ELF", 4)) return elf_size(p);
  if (!memcmp(b, "CCOB", 4)) {          // compressed bundle: version 2 has 32, 3 has 64 bits of size
    uint16_t version; memcpy(&version, b + 4, 2);
    if (version >= 3) { uint64_t n; memcpy(&n, b + 8, 8); return n; }
    uint32_t n; memcpy(&n, b + 8, 4); return n;
  }
  return 0;
}
static hipError_t load(const void *image, Module *m) {
  size_t n = image_size(image);
  if (!n) { twin_log("module with unknown magic %.4s", (const char *)image); return fail(BAD_IMAGE); }
  std::vector<char> reply;
  if (request(t_device, LOAD, {{image, n}}, &reply)) return fail(BAD_IMAGE);
  uint32_t id; uint64_t size; memcpy(&id, reply.data(), 4); memcpy(&size, reply.data() + 4, 8);
  *m = Module{t_device, id, nullptr};
  if (auto e = take(&m->image, size, devices())) return e;   // not out of the device's pool, which XLA sizes once
  char place[12]; memcpy(place, &id, 4); memcpy(place + 4, &m->image, 8);
  return request(t_device, PLACE, {{place, 12}}, nullptr) ? fail(BAD_IMAGE) : OK;
}
API hipError_t hipModuleLoadData(void **m, const void *image) {
  T; Module k; if (auto e = load(image, &k)) return e;
  *m = new Module(k); return OK;
}
API hipError_t hipModuleUnload(void *m) { T; auto k = (Module *)m; request(k->device, UNLOAD, {{&k->id, 4}}, nullptr); give(k->image); delete k; return OK; }
API hipError_t hipModuleGetFunction(void **f, void *m, const char *name) { T; auto k = (Module *)m; return get_function(k->device, k->id, name, (Function **)f); }
API hipError_t hipModuleGetGlobal(void **p, size_t *n, void *m, const char *name) {
  T; auto k = (Module *)m; std::vector<char> reply;
  if (request(k->device, SYMBOL, {{&k->id, 4}, {name, strlen(name)}}, &reply)) return fail(NOT_FOUND);
  if (p) memcpy(p, reply.data(), 8);
  if (n) memcpy(n, reply.data() + 8, 8);
  return OK;
}
API hipError_t hipFuncGetAttribute(int *v, int a, const void *f) {
  T; auto k = (const Function *)f;
  switch (a) { case 0: *v = k->threads; break; case 1: *v = k->lds; break; case 3: *v = k->scratch; break; case 4: *v = k->vgprs; break;
    case 8: *v = 163840 - k->lds; break; default: *v = 0; }
  return OK;
}
API hipError_t hipFuncSetAttribute(const void *, int, int) { T; return OK; }
API hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *, int, size_t) { T; *n = 1; return OK; }
static hipError_t launch(Function *f, dim3 g, dim3 b, uint32_t lds, void *s, void **params, void **extra) {
  if (faulty("refuse")) return fail(LAUNCH_FAILURE);
  Node n; n.kind = Node::KERNEL; n.launch = make_launch(f, g, b, lds, params, extra);
  return submit(s, n);
}
API hipError_t hipModuleLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned lds, void *s, void **params, void **extra) {
  T; return launch((Function *)f, {gx, gy, gz}, {bx, by, bz}, lds, s, params, extra);
}
// HIP's own kernels, linked into the plugin: registered at load time, extracted at the first use.
struct FatBinary { uint32_t magic, version; const void *image; void *unused; };
struct Registered { const void *image; std::string name; std::map<int, Function *> functions; };
static std::mutex g_registered_mutex;
static std::unordered_map<const void *, Registered> &registered() { static auto *m = new std::unordered_map<const void *, Registered>; return *m; }
static std::map<std::pair<const void *, int>, uint32_t> &images() { static auto *m = new std::map<std::pair<const void *, int>, uint32_t>; return *m; }
API void **__hipRegisterFatBinary(const void *data) { T; return (void **)new const void *(((const FatBinary *)data)->image); }
API void __hipRegisterFunction(void **modules, const void *host, char *, const char *name, unsigned, void *, void *, void *, void *, int *) {
  T; std::lock_guard<std::mutex> l(g_registered_mutex); registered()[host] = {*(const void **)modules, name, {}};
}
API void __hipRegisterVar(void **, void *, char *, char *name, int, size_t, int, int) { T; if (traced() > 1) twin_log("variable %s", name); }
API void __hipUnregisterFatBinary(void **) { T; }
static hipError_t by_symbol(const void *host, Function **out) {
  std::lock_guard<std::mutex> l(g_registered_mutex);
  auto i = registered().find(host);
  if (i == registered().end()) return fail(98);
  auto &r = i->second;
  auto &f = r.functions[t_device];
  if (!f) {
    auto &id = images()[{r.image, t_device}];
    if (!id) {
      Module k; if (auto e = load(r.image, &k)) return e;
      id = k.id;
    }
    if (auto e = get_function(t_device, id, r.name.c_str(), &f)) return e;
  }
  *out = f; return OK;
}
API hipError_t hipGetFuncBySymbol(void **f, const void *host) { T; return by_symbol(host, (Function **)f); }
API hipError_t hipLaunchKernel(const void *host, dim3 g, dim3 b, void **params, size_t lds, void *s) {
  T; Function *f; if (auto e = by_symbol(host, &f)) return e;
  return launch(f, g, b, lds, s, params, nullptr);
}
API hipError_t hipLaunchCooperativeKernel(const void *host, dim3 g, dim3 b, void **params, unsigned lds, void *s) { T; Function *f; if (auto e = by_symbol(host, &f)) return e; return launch(f, g, b, lds, s, params, nullptr); }
struct Configuration { dim3 grid, block; size_t lds; void *stream; };
static thread_local std::vector<Configuration> t_configurations;
API hipError_t __hipPushCallConfiguration(dim3 g, dim3 b, size_t lds, void *s) { T; t_configurations.push_back({g, b, lds, s}); return OK; }
API hipError_t __hipPopCallConfiguration(dim3 *g, dim3 *b, size_t *lds, void **s) {
  T; auto c = t_configurations.back(); t_configurations.pop_back(); *g = c.grid; *b = c.block; *lds = c.lds; *s = c.stream; return OK;
}

// ------------------------------------------------------------------------------------------- graphs
struct KernelParams { dim3 block; void **extra; Function *func; dim3 grid; void **params; unsigned lds; };
struct SetParams { void *dst; unsigned element; size_t height, pitch; unsigned value; size_t width; };
static hipError_t add(void **out, void *graph, void **after, size_t n, Node node) {
  for (size_t k = 0; k < n; k++) node.after.push_back((Node *)after[k]);
  auto p = new Node(node); ((Graph *)graph)->nodes.push_back(p); *out = p; return OK;
}
static Node kernel_node(const KernelParams *p) { Node n; n.kind = Node::KERNEL; n.launch = make_launch(p->func, p->grid, p->block, p->lds, p->params, p->extra); return n; }
static Node copy_node(void *to, const void *from, size_t size) { Node n; n.kind = Node::COPY; n.to = to; n.from = from; n.size = size; return n; }
static Node set_node(const SetParams *p) { Node n; n.kind = Node::SET; n.to = p->dst; n.value = p->value; n.element = p->element; n.size = p->width * (p->height ? p->height : 1); return n; }
API hipError_t hipGraphCreate(void **g, unsigned) { T; *g = new Graph; return OK; }
API hipError_t hipGraphDestroy(void *g) { T; destroy((Graph *)g); return OK; }
API hipError_t hipGraphAddEmptyNode(void **o, void *g, void **a, size_t n) { T; return add(o, g, a, n, Node{}); }
API hipError_t hipGraphAddKernelNode(void **o, void *g, void **a, size_t n, const KernelParams *p) { T; return add(o, g, a, n, kernel_node(p)); }
API hipError_t hipGraphAddMemcpyNode1D(void **o, void *g, void **a, size_t n, void *to, const void *from, size_t size, int) { T; return add(o, g, a, n, copy_node(to, from, size)); }
API hipError_t hipGraphAddMemsetNode(void **o, void *g, void **a, size_t n, const SetParams *p) { T; return add(o, g, a, n, set_node(p)); }
API hipError_t hipGraphAddChildGraphNode(void **o, void *g, void **a, size_t n, void *child) { T; Node k; k.kind = Node::CHILD; k.child = clone((Graph *)child); return add(o, g, a, n, k); }
API hipError_t hipGraphInstantiate(void **e, void *g, void **, char *, size_t) { T; *e = clone((Graph *)g); return OK; }
API hipError_t hipGraphExecDestroy(void *e) { T; destroy((Graph *)e); return OK; }
API hipError_t hipGraphLaunch(void *e, void *s) {
  T; auto k = stream_of(s);
  if (faulty("refuse")) return fail(LAUNCH_FAILURE);
  if (k->captured) { Node n; n.kind = Node::CHILD; n.child = clone((Graph *)e); return submit(s, n); }
  auto now = clone((Graph *)e);   // what is set later is of later launches
  return k->put([now] { auto error = run_graph(now); destroy(now); return error; });
}
static Node *of(void *exec, void *node) { for (auto n : ((Graph *)exec)->nodes) if (n->origin == node) return n; return nullptr; }
static hipError_t update(void *exec, void *node, Node made) {
  auto n = of(exec, node); if (!n) return fail(INVALID);
  made.after = n->after; made.origin = n->origin; *n = made; return OK;
}
API hipError_t hipGraphExecKernelNodeSetParams(void *e, void *n, const KernelParams *p) { T; return update(e, n, kernel_node(p)); }
API hipError_t hipGraphExecMemcpyNodeSetParams1D(void *e, void *n, void *to, const void *from, size_t size, int) { T; return update(e, n, copy_node(to, from, size)); }
API hipError_t hipGraphExecMemsetNodeSetParams(void *e, void *n, const SetParams *p) { T; return update(e, n, set_node(p)); }
API hipError_t hipGraphExecChildGraphNodeSetParams(void *e, void *n, void *child) { T; Node k; k.kind = Node::CHILD; k.child = clone((Graph *)child); return update(e, n, k); }
API hipError_t hipGraphGetNodes(void *g, void **out, size_t *n) {
  T; auto &v = ((Graph *)g)->nodes;
  if (out) for (size_t k = 0; k < *n && k < v.size(); k++) out[k] = v[k];
  *n = v.size(); return OK;
}
API hipError_t hipGraphGetRootNodes(void *g, void **out, size_t *n) {
  T; size_t k = 0; for (auto v : ((Graph *)g)->nodes) if (v->after.empty()) { if (out && k < *n) out[k] = v; k++; }
  *n = k; return OK;
}
API hipError_t hipGraphDebugDotPrint(void *, const char *, unsigned) { T; return OK; }
