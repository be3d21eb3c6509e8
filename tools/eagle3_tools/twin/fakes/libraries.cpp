// Fakes of RCCL, rocBLAS, hipBLASLt and rocm_smi for the twin: collectives between the devices of one
// process, and products as plain loops. Built into several libraries (-DRCCL and so on).
#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>
#define API extern "C" __attribute__((visibility("default")))
extern "C" {
void twin_trace(const char *); void twin_log(const char *, ...);
int twin_submit_call(void *stream, void (*f)(void *), void *data);
}
#define T twin_trace(__func__)
// Numbers are read as float or double and rounded once at the end.
enum Type { F32, F64, F16, BF16, F8, F8B, I8, U8, I32, U32, I64, U64, NONE };
static size_t bytes(Type t) { static const size_t n[] = {4, 8, 2, 2, 1, 1, 1, 1, 4, 4, 8, 8, 1}; return n[t]; }
static float small_float(uint32_t v, int e, int m, int bias, bool inf) {   // sign, e, m bits
  uint32_t s = v >> (e + m) & 1, x = v >> m & ((1u << e) - 1), f = v & ((1u << m) - 1); float r;
  if (inf && x == (1u << e) - 1) r = f ? NAN : INFINITY;
  else if (!inf && x == (1u << e) - 1 && f == (1u << m) - 1) r = NAN;
  else r = x ? ldexpf(1 + f / float(1 << m), int(x) - bias) : ldexpf(f / float(1 << m), 1 - bias);
  return s ? -r : r;
}
static double get(const void *p, size_t i, Type t) {
  switch (t) {
    case F32: return ((const float *)p)[i];
    case F64: return ((const double *)p)[i];
    case BF16: { uint32_t w = uint32_t(((const uint16_t *)p)[i]) << 16; float f; memcpy(&f, &w, 4); return f; }
    case F16: return small_float(((const uint16_t *)p)[i], 5, 10, 15, true);
    case F8: return small_float(((const uint8_t *)p)[i], 4, 3, 7, false);
    case F8B: return small_float(((const uint8_t *)p)[i], 5, 2, 15, true);
    case I8: return ((const int8_t *)p)[i];
    case U8: return ((const uint8_t *)p)[i];
    case I32: return ((const int32_t *)p)[i];
    case U32: return ((const uint32_t *)p)[i];
    case I64: return ((const int64_t *)p)[i];
    case U64: return ((const uint64_t *)p)[i];
    default: return 0;
  }
}
static uint16_t half_of(float f) { _Float16 h = (_Float16)f; uint16_t w; memcpy(&w, &h, 2); return w; }
static void put(void *p, size_t i, Type t, double v) {
  switch (t) {
    case F32: ((float *)p)[i] = v; break;
    case F64: ((double *)p)[i] = v; break;
    case BF16: { float f = v; uint32_t w; memcpy(&w, &f, 4); ((uint16_t *)p)[i] = std::isnan(f) ? 0x7FC0 : (w + 0x7FFF + (w >> 16 & 1)) >> 16; break; }
    case F16: ((uint16_t *)p)[i] = half_of(v); break;
    case I8: ((int8_t *)p)[i] = v; break;
    case U8: ((uint8_t *)p)[i] = v; break;
    case I32: ((int32_t *)p)[i] = v; break;
    case U32: ((uint32_t *)p)[i] = v; break;
    case I64: ((int64_t *)p)[i] = v; break;
    case U64: ((uint64_t *)p)[i] = v; break;
    default: twin_log("type %d cannot be written", t); abort();
  }
}
struct Gemm {   // column-major: d = alpha * op(a) op(b) + beta * c (+ bias of the rows), epilogue
  bool ta = false, tb = false; int64_t m = 0, n = 0, k = 0, batch = 1;
  Type a_type = F32, b_type = F32, c_type = F32, d_type = F32, bias_type = NONE;
  const void *a = nullptr, *b = nullptr, *c = nullptr, *bias = nullptr; void *d = nullptr;
  int64_t lda = 0, ldb = 0, ldc = 0, ldd = 0, sa = 0, sb = 0, sc = 0, sd = 0;
  double alpha = 1, beta = 0; const float *a_scale = nullptr, *b_scale = nullptr; int epilogue = 1;
};
static void run(void *data) {
  std::unique_ptr<Gemm> owned; auto &g = *(Gemm *)data;
  std::vector<float> a(g.m * g.k), b(g.k * g.n);
  double scale = g.alpha * (g.a_scale ? *g.a_scale : 1) * (g.b_scale ? *g.b_scale : 1);
  for (int64_t z = 0; z < g.batch; z++) {
    for (int64_t i = 0; i < g.m; i++) for (int64_t l = 0; l < g.k; l++) a[i * g.k + l] = get(g.a, z * g.sa + (g.ta ? l + i * g.lda : i + l * g.lda), g.a_type);
    for (int64_t j = 0; j < g.n; j++) for (int64_t l = 0; l < g.k; l++) b[j * g.k + l] = get(g.b, z * g.sb + (g.tb ? j + l * g.ldb : l + j * g.ldb), g.b_type);
    for (int64_t j = 0; j < g.n; j++) for (int64_t i = 0; i < g.m; i++) {
      double s = 0; const float *x = &a[i * g.k], *y = &b[j * g.k];
      for (int64_t l = 0; l < g.k; l++) s += (double)x[l] * y[l];
      s *= scale;
      if (g.beta) s += g.beta * get(g.c, z * g.sc + i + j * g.ldc, g.c_type);
      if (g.bias && g.bias_type != NONE) s += get(g.bias, i, g.bias_type);
      if (g.epilogue & 2) s = std::max(s, 0.0);
      if (g.epilogue & 32) s = s * 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (s + 0.044715 * s * s * s)));
      put(g.d, z * g.sd + i + j * g.ldd, g.d_type, s);
    }
  }
}
static int submit(void *stream, const Gemm &g) { return twin_submit_call(stream, run, new Gemm(g)); }   // leaks: graphs may run it again

#ifdef ROCBLAS
struct Handle { void *stream = nullptr; };
static Type type_of(int t) { switch (t) { case 150: return F16; case 151: return F32; case 152: return F64; case 160: return I8; case 161: return U8; case 162: return I32; case 163: return U32; case 168: return BF16; } twin_log("rocblas type %d", t); abort(); }
API int rocblas_create_handle(Handle **h) { T; *h = new Handle; return 0; }
API int rocblas_destroy_handle(Handle *h) { T; delete h; return 0; }
API int rocblas_set_stream(Handle *h, void *s) { T; h->stream = s; return 0; }
API int rocblas_get_stream(Handle *h, void **s) { T; *s = h->stream; return 0; }
API int rocblas_set_atomics_mode(Handle *, int) { T; return 0; }
API int rocblas_set_workspace(Handle *, void *, size_t) { T; return 0; }
static const char VERSION[] = "5.2.0.twin";
API int rocblas_get_version_string_size(size_t *n) { T; *n = sizeof VERSION; return 0; }
API int rocblas_get_version_string(char *p, size_t n) { T; strncpy(p, VERSION, n); return 0; }
static double number(const void *p, int compute) { return get(p, 0, type_of(compute)); }
API int rocblas_gemm_strided_batched_ex(Handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, int64_t sa, const void *b, int bt, int ldb, int64_t sb,
    const void *beta, const void *c, int ct, int ldc, int64_t sc, void *d, int dt, int ldd, int64_t sd, int batch, int compute, int, int32_t, uint32_t) {
  T; Gemm g; g.ta = ta != 111; g.tb = tb != 111; g.m = m; g.n = n; g.k = k; g.batch = batch; g.a = a; g.b = b; g.c = c; g.d = d; g.lda = lda; g.ldb = ldb; g.ldc = ldc; g.ldd = ldd;
  g.sa = sa; g.sb = sb; g.sc = sc; g.sd = sd; g.a_type = type_of(at); g.b_type = type_of(bt); g.c_type = type_of(ct); g.d_type = type_of(dt); g.alpha = number(alpha, compute); g.beta = number(beta, compute);
  return submit(h->stream, g);
}
API int rocblas_gemm_ex(Handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, const void *b, int bt, int ldb, const void *beta, const void *c, int ct, int ldc,
    void *d, int dt, int ldd, int compute, int algo, int32_t index, uint32_t flags) {
  T; return rocblas_gemm_strided_batched_ex(h, ta, tb, m, n, k, alpha, a, at, lda, 0, b, bt, ldb, 0, beta, c, ct, ldc, 0, d, dt, ldd, 0, 1, compute, algo, index, flags);
}
API int rocblas_sgemm_strided_batched(Handle *h, int ta, int tb, int m, int n, int k, const float *alpha, const float *a, int lda, int64_t sa, const float *b, int ldb, int64_t sb, const float *beta, float *c, int ldc, int64_t sc, int batch) {
  T; return rocblas_gemm_strided_batched_ex(h, ta, tb, m, n, k, alpha, a, 151, lda, sa, b, 151, ldb, sb, beta, c, 151, ldc, sc, c, 151, ldc, sc, batch, 151, 0, 0, 0);
}
API int rocblas_sgemm(Handle *h, int ta, int tb, int m, int n, int k, const float *alpha, const float *a, int lda, const float *b, int ldb, const float *beta, float *c, int ldc) {
  T; return rocblas_sgemm_strided_batched(h, ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);
}
#endif

#ifdef HIPBLASLT
static Type type_of(int t) { switch (t) { case 0: return F32; case 1: return F64; case 2: return F16; case 3: return I8; case 10: return I32; case 14: return BF16; case 28: return F8; case 29: return F8B; } twin_log("hipblaslt type %d", t); abort(); }
struct Desc { int compute, scale; std::map<int, std::vector<char>> set; };
struct Layout { int type; uint64_t rows, cols; int64_t ld; int32_t batch = 1; int64_t stride = 0; };
API int hipblasLtCreate(void **h) { T; *h = new int; return 0; }
API int hipblasLtDestroy(void *h) { T; delete (int *)h; return 0; }
API int hipblasLtMatmulDescCreate(Desc **d, int compute, int scale) { T; *d = new Desc{compute, scale, {}}; return 0; }
API int hipblasLtMatmulDescDestroy(Desc *d) { T; delete d; return 0; }
API int hipblasLtMatmulDescSetAttribute(Desc *d, int a, const void *p, size_t n) { T; d->set[a].assign((const char *)p, (const char *)p + n); return 0; }
API int hipblasLtMatrixLayoutCreate(Layout **l, int type, uint64_t rows, uint64_t cols, int64_t ld) { T; *l = new Layout{type, rows, cols, ld}; return 0; }
API int hipblasLtMatrixLayoutDestroy(const Layout *l) { T; delete l; return 0; }
API int hipblasLtMatrixLayoutSetAttribute(Layout *l, int a, const void *p, size_t) { T; if (a == 0) memcpy(&l->batch, p, 4); else if (a == 1) memcpy(&l->stride, p, 8); else twin_log("layout attribute %d", a); return 0; }
API int hipblasLtMatmulPreferenceCreate(void **p) { T; *p = new int; return 0; }
API int hipblasLtMatmulPreferenceDestroy(void *p) { T; delete (int *)p; return 0; }
API int hipblasLtMatmulPreferenceSetAttribute(void *, int, const void *, size_t) { T; return 0; }
struct Algo { uint8_t data[16]; uint64_t workspace; };
struct Found { Algo algo; size_t workspace; int state; float waves; int reserved[4]; };
API int hipblasLtMatmulAlgoGetHeuristic(void *, Desc *, Layout *, Layout *, Layout *, Layout *, void *, int wanted, Found *out, int *n) {
  T; *n = 0; if (wanted > 0) { memset((void *)out, 0, sizeof *out); out->algo.data[0] = 1; *n = 1; } return 0;
}
template <class V> static V value(Desc *d, int a, V fallback) { auto i = d->set.find(a); if (i == d->set.end()) return fallback; V v = fallback; memcpy(&v, i->second.data(), std::min(sizeof v, i->second.size())); return v; }
API int hipblasLtMatmul(void *, Desc *d, const void *alpha, const void *a, Layout *la, const void *b, Layout *lb, const void *beta, const void *c, Layout *lc, void *out, Layout *ld, const void *, void *, size_t, void *stream) {
  T; Gemm g; g.ta = value<int>(d, 0, 111) != 111; g.tb = value<int>(d, 1, 111) != 111; g.m = ld->rows; g.n = ld->cols; g.k = g.ta ? la->rows : la->cols; g.batch = ld->batch;
  g.a = a; g.b = b; g.c = c; g.d = out; g.a_type = type_of(la->type); g.b_type = type_of(lb->type); g.c_type = type_of(lc->type); g.d_type = type_of(ld->type);
  g.lda = la->ld; g.ldb = lb->ld; g.ldc = lc->ld; g.ldd = ld->ld; g.sa = la->stride; g.sb = lb->stride; g.sc = lc->stride; g.sd = ld->stride;
  g.alpha = get(alpha, 0, type_of(d->scale)); g.beta = get(beta, 0, type_of(d->scale));
  g.epilogue = value<int>(d, 2, 1); g.bias = g.epilogue & 4 ? value<const void *>(d, 3, nullptr) : nullptr; g.bias_type = g.bias ? type_of(value<int>(d, 4, ld->type)) : NONE;
  g.a_scale = value<const float *>(d, 5, nullptr); g.b_scale = value<const float *>(d, 6, nullptr);
  return submit(stream, g);
}
#endif

#ifdef RCCL
static Type type_of(int t) { static const Type n[] = {I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, F8, F8B}; return n[t]; }
struct Comm; struct Op;
struct Rendezvous { std::vector<Op *> ops; size_t come = 0; bool done = false; };
struct Clique {
  int size; std::mutex mutex; std::condition_variable changed; std::map<uint64_t, std::shared_ptr<Rendezvous>> open; std::map<std::pair<int, int>, std::deque<Op *>> sent;
};
struct Comm { std::shared_ptr<Clique> clique; int rank; uint64_t next = 0; };
enum Kind { REDUCE, GATHER, SCATTER, BROADCAST, SPLIT, SEND, RECEIVE };
struct Op { Kind kind; Comm *comm; const void *from; void *to; size_t count; Type type; int op, peer; Comm **made; void *stream; int color, key; std::shared_ptr<Rendezvous> at; bool done = false; };
static double reduce(int op, double a, double b) { switch (op) { case 0: case 4: return a + b; case 1: return a * b; case 2: return std::max(a, b); default: return std::min(a, b); } }
static void complete(Rendezvous &r, Clique &c) {
  auto &o = *r.ops[0]; size_t n = o.count, size = bytes(o.type);
  for (auto p : r.ops) if (p->kind != o.kind || p->count != n || p->type != o.type) { twin_log("RCCL: ranks disagree: kind %d count %zu, kind %d count %zu", o.kind, n, p->kind, p->count); abort(); }
  if (o.kind == REDUCE || o.kind == SCATTER) {
    size_t total = o.kind == SCATTER ? n * c.size : n; std::vector<char> sum(total * size);
    for (size_t i = 0; i < total; i++) { double s = get(r.ops[0]->from, i, o.type); for (int k = 1; k < c.size; k++) s = reduce(o.op, s, get(r.ops[k]->from, i, o.type)); put(sum.data(), i, o.type, o.op == 4 ? s / c.size : s); }
    for (int k = 0; k < c.size; k++) memcpy(r.ops[k]->to, sum.data() + (o.kind == SCATTER ? k * n * size : 0), n * size);
  } else if (o.kind == GATHER) {
    std::vector<char> all(n * size * c.size);
    for (int k = 0; k < c.size; k++) memcpy(&all[k * n * size], r.ops[k]->from, n * size);
    for (int k = 0; k < c.size; k++) memcpy(r.ops[k]->to, all.data(), all.size());
  } else if (o.kind == BROADCAST) {
    for (auto p : r.ops) memmove(p->to, r.ops[o.peer]->from, n * size);
  } else if (o.kind == SPLIT) {
    std::map<int, std::vector<std::pair<int, int>>> by;
    for (auto p : r.ops) if (p->color >= 0) by[p->color].push_back({p->key, p->comm->rank}); else *p->made = nullptr;
    for (auto &b : by) { std::sort(b.second.begin(), b.second.end()); auto q = std::make_shared<Clique>(); q->size = b.second.size(); for (size_t k = 0; k < b.second.size(); k++) *r.ops[b.second[k].second]->made = new Comm{q, (int)k}; }
  }
}
static void post(Op *o) {
  auto &c = *o->comm->clique; std::lock_guard<std::mutex> l(c.mutex);
  if (o->kind == SEND) { c.sent[{o->comm->rank, o->peer}].push_back(o); c.changed.notify_all(); return; }
  if (o->kind == RECEIVE) return;
  auto &r = c.open[o->comm->next]; if (!r) { r = std::make_shared<Rendezvous>(); r->ops.resize(c.size); }
  o->at = r; r->ops[o->comm->rank] = o;
  if ((int)++r->come == c.size) { auto k = r; complete(*k, c); k->done = true; c.open.erase(o->comm->next); c.changed.notify_all(); }
  o->comm->next++;
}
static void finish(Op *o) {
  auto &c = *o->comm->clique; std::unique_lock<std::mutex> l(c.mutex);
  if (o->kind == SEND) { c.changed.wait(l, [&] { return o->done; }); }
  else if (o->kind == RECEIVE) {
    auto &q = c.sent[{o->peer, o->comm->rank}]; c.changed.wait(l, [&] { return !q.empty(); });
    auto s = q.front(); q.pop_front(); memmove(o->to, s->from, o->count * bytes(o->type)); s->done = true; c.changed.notify_all();
  } else { auto r = o->at; c.changed.wait(l, [&] { return r->done; }); }
}
static thread_local int t_depth = 0; static thread_local std::vector<Op *> t_ops;
static void run_ops(std::vector<Op *> &ops) { for (auto o : ops) o->done = false; for (auto o : ops) post(o); for (auto o : ops) if (o->kind != SEND) finish(o); for (auto o : ops) if (o->kind == SEND) finish(o); }
static void run_group(void *p) { auto ops = *(std::vector<Op *> *)p; run_ops(ops); }
static int launch() {   // on each operation's stream; what has none (a split) at once
  std::vector<Op *> now; std::map<void *, std::vector<Op *>> later; for (auto o : t_ops) if (o->stream) later[o->stream].push_back(o); else now.push_back(o);
  t_ops.clear(); run_ops(now);
  for (auto &one : later) twin_submit_call(one.first, run_group, new std::vector<Op *>(one.second));
  return 0;
}
static int submit_op(Op o) { t_ops.push_back(new Op(o)); return t_depth ? 0 : launch(); }
static std::mutex g_mutex; static std::map<std::string, std::weak_ptr<Clique>> g_cliques;
struct Id { char bytes[128]; };
API int ncclGetVersion(int *v) { T; *v = 22705; return 0; }
API int ncclGetUniqueId(Id *id) { T; static int n; memset(id, 0, sizeof *id); std::lock_guard<std::mutex> l(g_mutex); snprintf(id->bytes, 128, "twin %d", ++n); return 0; }
API const char *ncclGetErrorString(int e) { T; return e ? "fake RCCL error" : "no error"; }
API const char *ncclGetLastError(void *) { T; return ""; }
API int ncclCommInitRankConfig(Comm **c, int n, Id id, int rank, void *) {
  T; std::lock_guard<std::mutex> l(g_mutex); auto &w = g_cliques[std::string(id.bytes, 128)]; auto q = w.lock();
  static std::vector<std::shared_ptr<Clique>> kept; if (!q) { q = std::make_shared<Clique>(); q->size = n; w = q; kept.push_back(q); }
  *c = new Comm{q, rank}; return 0;
}
API int ncclCommSplit(Comm *c, int color, int key, Comm **made, void *) { T; return submit_op({SPLIT, c, nullptr, nullptr, 0, I8, 0, 0, made, nullptr, color, key}); }
API int ncclCommCount(Comm *c, int *n) { T; *n = c->clique->size; return 0; }
API int ncclCommDestroy(Comm *) { T; return 0; }
API int ncclCommAbort(Comm *) { T; return 0; }
API int ncclCommGetAsyncError(Comm *, int *e) { T; *e = 0; return 0; }
API int ncclGroupStart() { T; t_depth++; return 0; }
API int ncclGroupEnd() { T; if (--t_depth) return 0; return launch(); }
API int ncclAllReduce(const void *a, void *b, size_t n, int t, int op, Comm *c, void *s) { T; return submit_op({REDUCE, c, a, b, n, type_of(t), op, 0, nullptr, s}); }
API int ncclAllGather(const void *a, void *b, size_t n, int t, Comm *c, void *s) { T; return submit_op({GATHER, c, a, b, n, type_of(t), 0, 0, nullptr, s}); }
API int ncclReduceScatter(const void *a, void *b, size_t n, int t, int op, Comm *c, void *s) { T; return submit_op({SCATTER, c, a, b, n, type_of(t), op, 0, nullptr, s}); }
API int ncclBroadcast(const void *a, void *b, size_t n, int t, int root, Comm *c, void *s) { T; return submit_op({BROADCAST, c, a, b, n, type_of(t), 0, root, nullptr, s}); }
API int ncclSend(const void *a, size_t n, int t, int peer, Comm *c, void *s) { T; return submit_op({SEND, c, a, nullptr, n, type_of(t), 0, peer, nullptr, s}); }
API int ncclRecv(void *b, size_t n, int t, int peer, Comm *c, void *s) { T; return submit_op({RECEIVE, c, nullptr, b, n, type_of(t), 0, peer, nullptr, s}); }
extern "C" int hipMalloc(void **, size_t); extern "C" int hipFree(void *);
API int ncclMemAlloc(void **p, size_t n) { T; return hipMalloc(p, n); }
API int ncclMemFree(void *p) { T; return hipFree(p); }
API int ncclCommWindowRegister(Comm *, void *, size_t, void **w, int) { T; *w = new int; return 0; }
API int ncclCommWindowDeregister(Comm *, void *) { T; return 0; }
#endif

#ifdef ROCM_SMI
API int rsmi_init(uint64_t) { T; return 0; }
API int rsmi_num_monitor_devices(uint32_t *n) { T; *n = 0; return 0; }
API int rsmi_status_string(int, const char **s) { T; *s = "fake rocm_smi"; return 0; }
#endif

#ifdef MIOPEN   // XLA wants a handle, nothing more: no convolution is called
API int miopenCreateWithStream(void **h, void *) { T; *h = new int; return 0; }
API int miopenDestroy(void *h) { T; delete (int *)h; return 0; }
API int miopenSetStream(void *, void *) { T; return 0; }
#endif
