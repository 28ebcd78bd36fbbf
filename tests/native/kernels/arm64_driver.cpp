// Run under emulation by test_arm64_kernels.py, linked with the library that the package's own build made for arm64.
//
//   products              every kind of matrix on every path, against the portable path bit for bit
//   steps MODEL LOGITS    the model's steps likewise, cut into chunks of 1 to 17 tokens and more; writes the logits of
//                         fp32 and then of two-limb activations
//
// Both name the paths and exit with 1 where anything differs.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "maple_kernels.h"

namespace {

constexpr int kScalar = 0;
constexpr int kMostTokens = 17;
const char* const kModes[] = {"fp32", "int8", "int8x2"};

int compared = 0, different = 0;
char error[MAPLE_ERROR_BYTES];

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<uint8_t, Free>;

// Exactly `size` bytes on a 64-byte boundary, as weights have to be.
Bytes aligned(size_t size) {
  void* p = nullptr;
  if (posix_memalign(&p, 64, size ? size : 1)) std::abort();
  return Bytes(static_cast<uint8_t*>(p));
}

void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%s: %s\n", what, error);
  std::exit(2);
}

std::vector<int> paths() {
  std::vector<int> found;
  for (int path = 0; path < 31; ++path)
    if (maple_paths() >> path & 1) found.push_back(path);
  return found;
}

// The same bits, or a NaN each: what a NaN carries differs between instructions.
bool same(const float* a, const float* b, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if (std::memcmp(a + i, b + i, sizeof *a) && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return true;
}

void expect_same(const float* got, const float* wanted, size_t n, const std::string& what) {
  ++compared;
  if (same(got, wanted, n)) return;
  ++different;
  std::printf("differs: %s\n", what.c_str());
}

// ---- products ------------------------------------------------------------------------------------------------------

enum Kind { kTernary, kAffine4, kInt8, kBf16, kF32 };
const char* const kKinds[] = {"ternary", "affine4", "int8", "bf16", "f32"};

struct Case {
  Kind kind;
  int rows, cols;
  std::vector<int> counts;
};

std::mt19937 generator(4);

float uniform(float low, float high) { return low + (high - low) * static_cast<float>(generator()) / 4294967296.0f; }

uint16_t bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>(bits >> 16);
}

std::vector<uint16_t> ternary_rows(int rows, int cols) {  // the first is all zeros
  std::vector<uint16_t> values;
  for (int r = 0; r < rows; ++r) {
    const float alpha = uniform(0.01f, 3.0f);
    for (int k = 0; k < cols; ++k) values.push_back(bf16(r ? static_cast<float>(static_cast<int>(generator() % 3) - 1) * alpha : -0.0f));
  }
  return values;
}

template <class T, class Make>
std::vector<T> filled(int n, const Make& make) {
  std::vector<T> values;
  for (int i = 0; i < n; ++i) values.push_back(make());
  return values;
}

void pack(const Case& c, const maple_target& target) {
  const int n = c.rows * c.cols;
  int failed = 0;
  if (c.kind == kTernary) {
    failed = maple_pack_ternary(ternary_rows(c.rows, c.cols).data(), 1, c.rows, c.cols, &target, 1, error);
  } else if (c.kind == kAffine4) {
    const auto words = filled<uint32_t>(n / 8, [] { return static_cast<uint32_t>(generator()); });
    const auto scales = filled<uint16_t>(n / 64, [] { return bf16(uniform(0.001f, 0.2f)); });
    const auto biases = filled<uint16_t>(n / 64, [] { return bf16(uniform(-2.0f, 1.0f)); });
    failed = maple_pack_affine4(words.data(), scales.data(), biases.data(), c.rows, c.cols, &target, 1, error);
  } else if (c.kind == kF32) {
    const auto values = filled<float>(n, [] { return uniform(-2.0f, 2.0f); });
    failed = maple_pack_dense(values.data(), 1, c.kind, c.rows, c.cols, &target, 1, error);
  } else {
    const auto values = filled<uint16_t>(n, [] { return bf16(uniform(-2.0f, 2.0f)); });
    failed = maple_pack_dense(values.data(), 0, c.kind, c.rows, c.cols, &target, 1, error);
  }
  require(!failed, "packing");
}

// Ordinary tokens, and hostile ones among them.
std::vector<float> tokens_of(int cols) {
  std::vector<float> x;
  for (int t = 0; t < kMostTokens; ++t)
    for (int k = 0; k < cols; ++k) {
      const float ordinary = uniform(-3.0f, 3.0f);
      x.push_back(t == 1 ? 0.0f : t == 3 ? -0.0f : t == 4 ? 1e-36f : t == 6 ? (k % 3 ? 1.0f : -1.0f) : ordinary);
    }
  const auto at = [&](int t) { return &x[static_cast<size_t>(t) * cols]; };
  at(2)[cols / 2] = 1e4f;
  at(5)[cols - 1] = 3e38f;
  at(8)[0] = NAN;
  at(11)[cols - 1] = -INFINITY;
  return x;
}

void check_product(const Case& c) {
  const int64_t bytes = maple_matrix_bytes(c.kind, c.rows, c.cols);
  const Bytes blocks = aligned(static_cast<size_t>(bytes));
  pack(c, {blocks.get(), bytes, 0, 1, (c.rows + 15) / 16});
  if (c.kind == kInt8)  // the smallest weight there is, for a while: pairs of products are at their widest
    for (int64_t i = 64; i < 64 + 16 * 8 && i < bytes; ++i) blocks.get()[i] = 0;
  const maple_matrix matrix{blocks.get(), bytes, c.kind, c.rows, c.cols, 1};
  const std::vector<float> x = tokens_of(c.cols);
  std::vector<float> wanted(static_cast<size_t>(kMostTokens) * c.rows), got(wanted.size());
  for (int mode = 0; mode < 3; ++mode) {
    require(!maple_linear(&matrix, x.data(), kMostTokens, wanted.data(), mode, kScalar, error), "linear");
    for (const int path : paths())
      for (const int count : c.counts) {
        std::fill(got.begin(), got.end(), 0.0f);
        require(!maple_linear(&matrix, x.data(), count, got.data(), mode, path, error), "linear");
        expect_same(got.data(), wanted.data(), static_cast<size_t>(count) * c.rows,
                    std::string(kKinds[c.kind]) + " " + std::to_string(c.rows) + " x " + std::to_string(c.cols) + ", " +
                        std::to_string(count) + " tokens, " + kModes[mode] + " on " + maple_path_name(path));
      }
  }
}

void check_products() {
  std::vector<int> all;
  for (int n = 1; n <= kMostTokens; ++n) all.push_back(n);
  const std::vector<int> few{1, 2, 17};
  for (const Case& c : std::vector<Case>{
           {kTernary, 80, 128, all}, {kTernary, 1, 16, all}, {kTernary, 17, 48, all}, {kTernary, 31, 33, all},
           {kTernary, 100, 192, all}, {kTernary, 48, 2048, few}, {kTernary, 2048, 512, few}, {kAffine4, 33, 192, all},
           {kAffine4, 5, 64, all}, {kAffine4, 20, 2048, few}, {kAffine4, 3, 8192, few}, {kInt8, 48, 256, all},
           {kInt8, 19, 50, all}, {kInt8, 17, 2048, few}, {kBf16, 33, 96, all}, {kBf16, 8, 33, all}, {kBf16, 256, 2048, few},
           {kF32, 23, 77, all}})
    check_product(c);
}

// ---- steps ---------------------------------------------------------------------------------------------------------

// The model as the test wrote it: parts of an int64 size and as many bytes, in the order in which they are taken.
class Parts {
 public:
  explicit Parts(const char* path) : file_(path, std::ios::binary) { require(file_.good(), path); }

  const uint8_t* take(int64_t* size) {
    file_.read(reinterpret_cast<char*>(size), sizeof *size);
    require(file_.good(), "model");
    kept_.push_back(aligned(static_cast<size_t>(*size)));
    file_.read(reinterpret_cast<char*>(kept_.back().get()), *size);
    require(file_.good(), "model");
    return *size ? kept_.back().get() : nullptr;
  }

  template <class T>
  const T* array() {
    int64_t size;
    return reinterpret_cast<const T*>(take(&size));
  }

  maple_matrix matrix() {
    const int32_t* shape = array<int32_t>();
    maple_matrix m{nullptr, 0, shape[0], shape[1], shape[2], shape[3]};
    m.blocks = take(&m.bytes);
    return m;
  }

 private:
  std::ifstream file_;
  std::vector<Bytes> kept_;
};

struct Model {
  explicit Model(const char* path) : parts(path) {
    config = *parts.array<maple_config>();
    int64_t size;
    tokens = reinterpret_cast<const int32_t*>(parts.take(&size));
    count = static_cast<int>(size / 4);
    embedding.kind = *parts.array<int32_t>();
    embedding.data = parts.take(&embedding.bytes);
    embedding.scales = parts.take(&embedding.scale_bytes);
    embedding.biases = parts.array<uint8_t>();
    embedding.rows = config.vocabulary;
    embedding.cols = config.hidden;
    final_norm = parts.array<float>();
    head = parts.matrix();
    for (int i = 0; i < config.layers; ++i) {
      maple_layer layer;
      for (const float** norm : {&layer.attention_norm, &layer.mlp_norm, &layer.q_norm, &layer.k_norm}) *norm = parts.array<float>();
      for (maple_matrix* m : {&layer.qkv, &layer.output, &layer.router, &layer.gate_up, &layer.down}) *m = parts.matrix();
      layer.full = *parts.array<int32_t>();
      layers.push_back(layer);
    }
  }

  Parts parts;
  maple_config config;
  maple_embedding embedding;
  maple_matrix head;
  const int32_t* tokens;
  int count;
  const float* final_norm;
  std::vector<maple_layer> layers;
};

struct Setting {
  int activations, kv_kind;
};

// The logits of all tokens, in chunks of the given sizes and then of what is left.
std::vector<float> logits_of(const Model& model, Setting setting, int path, const std::vector<int>& sizes) {
  maple_config config = model.config;
  config.activations = setting.activations;
  config.kv_kind = setting.kv_kind;
  config.threads = 2;
  config.max_tokens = model.count;
  config.kv_blocks = config.sliding_kv_blocks = 4;
  maple_context* context = maple_create(&config, model.layers.data(), &model.embedding, model.final_norm, &model.head, path, error);
  require(context, "create");
  const std::vector<int32_t> full{3, 1, 0, 2}, sliding{1, 2, 3, 0};
  const size_t wide = static_cast<size_t>(config.vocabulary + 15) / 16 * 16;
  std::vector<float> logits(wide * model.count);
  size_t turn = 0;
  for (int start = 0; start < model.count;) {
    const int left = model.count - start, count = turn < sizes.size() && sizes[turn] < left ? sizes[turn] : left;
    const maple_slice slice{model.tokens + start, full.data(), sliding.data(), count, start, 4, count};
    require(!maple_step(context, &slice, 1, &logits[wide * start], error), "step");
    start += count;
    ++turn;
  }
  maple_destroy(context);
  return logits;
}

void check_steps(const Model& model, std::ofstream& out) {
  const std::vector<std::vector<int>> cuts{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {13, 14, 15, 16, 17}};
  for (const Setting setting : {Setting{0, 0}, Setting{1, 3}, Setting{2, 1}, Setting{2, 2}}) {
    const std::vector<float> wanted = logits_of(model, setting, kScalar, {});
    std::vector<float> got;
    for (const int path : paths()) {
      if (path == kScalar) continue;
      for (const auto& sizes : cuts) {
        got = logits_of(model, setting, path, sizes);
        expect_same(got.data(), wanted.data(), wanted.size(),
                    std::string("step, ") + kModes[setting.activations] + " and KV kind " + std::to_string(setting.kv_kind) +
                        ", " + std::to_string(sizes.size()) + " cuts on " + maple_path_name(path));
      }
    }
    if (setting.kv_kind <= 1) {
      got = logits_of(model, setting, -1, {});
      out.write(reinterpret_cast<const char*>(got.data()), static_cast<std::streamsize>(got.size() * sizeof(float)));
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  std::printf("paths:");
  for (const int path : paths()) std::printf(" %s", maple_path_name(path));
  std::printf("\ndefault: %s\n", maple_path_name(-1));
  if (what == "products" && count == 2) {
    check_products();
  } else if (what == "steps" && count == 4) {
    std::ofstream out(arguments[3], std::ios::binary);
    check_steps(Model(arguments[2]), out);
    out.close();
    require(out.good(), arguments[3]);
  } else {
    std::fprintf(stderr, "usage: products | steps MODEL LOGITS\n");
    return 2;
  }
  std::printf("compared: %d\ndifferent: %d\n", compared, different);
  return different ? 1 : 0;
}
