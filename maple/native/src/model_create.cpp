// Binding a model: every pointer and size is checked here, so that a step can trust them.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "chunks.h"
#include "failure.h"
#include "model.h"

namespace maple {

namespace {

constexpr size_t kHugeFrom = 4 << 20;

int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

// Lines of 64 bytes that do not all fall into the same few sets of a cache when the width is a power of two.
size_t skewed(size_t bytes) { return (bytes + 63) / 64 * 64 + 64; }

std::vector<float> padded_copy(const float* from, int n, int padded) {
  std::vector<float> copy(static_cast<size_t>(padded), 0.0f);
  std::copy(from, from + n, copy.begin());
  return copy;
}

bool bind(const maple_matrix& given, int rows, int cols, int count, const char* name, Matrix* out, char* error) {
  const int64_t bytes = given.kind < kTernary || given.kind > kF32 ? -1 : maple_matrix_bytes(given.kind, rows, cols) * count;
  if (!given.blocks || given.rows != rows || given.cols != cols || given.count != count || given.bytes != bytes) {
    fail(error, "%s: expected %d packed matrices of %d x %d in %lld bytes, got %d of %d x %d in %lld", name, count, rows, cols,
         static_cast<long long>(bytes), given.count, given.rows, given.cols, static_cast<long long>(given.bytes));
    return false;
  }
  if (reinterpret_cast<uintptr_t>(given.blocks) % 64) {
    fail(error, "%s: not 64-byte aligned", name);
    return false;
  }
  *out = {static_cast<const uint8_t*>(given.blocks), given.kind, padded_columns(given.kind, cols),
          matrix_block_bytes(given.kind, cols)};
  return true;
}

bool bind_ternary(const maple_matrix& given, int rows, int cols, int count, const char* name, Matrix* out, char* error) {
  if (given.kind == kTernary) return bind(given, rows, cols, count, name, out, error);
  fail(error, "%s: kind %d is not ternary", name, given.kind);
  return false;
}

bool bind_embedding(const maple_embedding& e, const maple_config& c, char* error) {
  const int64_t n = static_cast<int64_t>(c.vocabulary) * c.hidden;
  const bool affine = e.kind == kAffine4;
  const int64_t bytes = affine ? n / 2 : e.kind == kBf16 ? n * 2 : e.kind == kF32 ? n * 4 : -1;
  const bool scales = !affine || (c.hidden % kGroup == 0 && e.scales && e.biases && e.scale_bytes == n / kGroup * 2);
  if (e.data && e.rows == c.vocabulary && e.cols == c.hidden && e.bytes == bytes && scales) return true;
  fail(error, "embedding: kind %d of %d x %d in %lld bytes does not fit", e.kind, e.rows, e.cols, static_cast<long long>(e.bytes));
  return false;
}

bool check_config(const maple_config& c, char* error) {
  const char* wrong = nullptr;
  if (c.abi_version != MAPLE_ABI_VERSION) wrong = "built for another version of the interface";
  else if (c.layers < 1 || c.hidden < 1 || c.hidden > 32768 || c.vocabulary < 1) wrong = "layers, hidden or vocabulary";
  else if (c.heads < 1 || c.kv_heads < 1 || c.heads % c.kv_heads) wrong = "heads must be a multiple of KV heads";
  else if (c.head_dim < 16 || c.head_dim > 256 || c.head_dim % 16) wrong = "head_dim must be a multiple of 16 up to 256";
  else if (c.heads * c.head_dim > 32768) wrong = "more than 32768 query columns";
  else if (c.rotary_dim < 0 || c.rotary_dim > c.head_dim || c.rotary_dim % 2) wrong = "rotary dimensions";
  else if (c.window < 0) wrong = "window";
  else if (c.experts < 1 || c.experts_per_token < 1 || c.experts_per_token > c.experts) wrong = "experts";
  else if (c.expert_width < 1 || c.expert_width > 32768) wrong = "expert width";
  else if (c.activations < kActFp32 || c.activations > kActInt8x2) wrong = "activations";
  else if (c.kv_kind < kKvF32 || c.kv_kind > kKvInt8) wrong = "KV kind";
  else if (c.threads < 1 || c.threads > 1024 || c.max_tokens < 1 || c.max_tokens > 65536) wrong = "threads or max_tokens";
  else if (c.kv_blocks < 0 || c.sliding_kv_blocks < 0) wrong = "KV blocks";
  if (wrong) fail(error, "configuration: %s", wrong);
  return !wrong;
}

}  // namespace

void Unmap::operator()(uint8_t* p) const { munmap(p, bytes); }

Pages map_pages(size_t bytes) {
  bytes = std::max<size_t>(bytes, 64);
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return Pages(nullptr, Unmap{0});
#ifdef MADV_HUGEPAGE
  if (bytes >= kHugeFrom) madvise(p, bytes, MADV_HUGEPAGE);  // a refusal changes the speed alone
#endif
  return Pages(static_cast<uint8_t*>(p), Unmap{bytes});
}

Model::Model(const maple_config& config, const KernelTable* kernels)
    : config_(config), kernels_(kernels), pool_(config.threads), full_pool_(nullptr, Unmap{0}), sliding_pool_(nullptr, Unmap{0}),
      parts_(nullptr, Unmap{0}), arena_(nullptr, Unmap{0}) {
  hidden_ = round_up(config.hidden, kGroup);  // the widest unit of columns
  query_ = config.heads * config.head_dim;
  kv_ = config.kv_heads * config.head_dim;
  width_ = round_up(config.expert_width, kBlockRows);
  experts_ = round_up(config.experts, kBlockRows);
  vocabulary_ = round_up(config.vocabulary, kBlockRows);
  score_scale_ = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  tile_ = {config.kv_kind, config.head_dim};
  tile_bytes_ = kv_tile_bytes(tile_);
  const size_t limbs = config.activations == kActFp32 ? 0 : static_cast<size_t>(config.activations);
  limb_stride_ = skewed(hidden_ * limbs);
  attention_limb_stride_ = skewed(query_ * limbs);
  hidden_limb_stride_ = skewed(width_ * limbs);
  const int group = config.heads / config.kv_heads;
  const size_t attention = (attention_scratch(group, config.head_dim) + static_cast<size_t>(group) * config.head_dim) * sizeof(float);
  run_parts_ = (kMostSegments + 1) * attention_part(kAttendTokens, group, config.head_dim);
  scratch_bytes_ = (std::max(attention, kProductScratch) + 127) / 64 * 64;
  for (int f = 0; f < config.rotary_dim / 2; ++f)
    inverse_frequency_.push_back(std::pow(static_cast<double>(config.rope_theta), -2.0 * f / config.rotary_dim));
}

std::unique_ptr<Model> Model::create(const maple_config& c, const maple_layer* layers, const maple_embedding& embedding,
                                     const float* final_norm, const maple_matrix& head, const KernelTable* kernels, char* error) {
  if (!check_config(c, error) || !bind_embedding(embedding, c, error)) return nullptr;
  std::unique_ptr<Model> model(new Model(c, kernels));
  model->embedding_ = embedding;
  model->final_norm_ = padded_copy(final_norm, c.hidden, model->hidden_);
  if (!bind(head, c.vocabulary, c.hidden, 1, "head", &model->head_, error)) return nullptr;
  int full = 0, sliding = 0;
  for (int i = 0; i < c.layers; ++i) {
    const maple_layer& given = layers[i];
    Layer layer;
    layer.full = given.full != 0;
    layer.kv_index = layer.full ? full++ : sliding++;
    layer.attention_norm = padded_copy(given.attention_norm, c.hidden, model->hidden_);
    layer.mlp_norm = padded_copy(given.mlp_norm, c.hidden, model->hidden_);
    if (given.q_norm && given.k_norm) {
      layer.q_norm = padded_copy(given.q_norm, c.head_dim, c.head_dim);
      layer.k_norm = padded_copy(given.k_norm, c.head_dim, c.head_dim);
    }
    const int qkv_rows = (c.heads + 2 * c.kv_heads) * c.head_dim;
    if (!bind_ternary(given.qkv, qkv_rows, c.hidden, 1, "qkv", &layer.qkv, error) ||
        !bind_ternary(given.output, c.hidden, c.heads * c.head_dim, 1, "output", &layer.output, error) ||
        !bind(given.router, c.experts, c.hidden, 1, "router", &layer.router, error) ||
        !bind_ternary(given.gate_up, 2 * model->width_, c.hidden, c.experts, "gate_up", &layer.gate_up, error) ||
        !bind_ternary(given.down, c.hidden, c.expert_width, c.experts, "down", &layer.down, error))
      return nullptr;
    if (given.router.kind != kBf16 && given.router.kind != kF32) {
      fail(error, "router: kind %d is neither bf16 nor f32", given.router.kind);
      return nullptr;
    }
    layer.gate_up_bytes = layer.gate_up.block_bytes * (2 * model->width_ / kBlockRows);
    layer.down_bytes = layer.down.block_bytes * static_cast<size_t>(round_up(c.hidden, kBlockRows) / kBlockRows);
    model->layers_.push_back(std::move(layer));
  }
  model->full_block_bytes_ = static_cast<size_t>(full) * c.kv_heads * model->tile_bytes_;
  model->sliding_block_bytes_ = static_cast<size_t>(sliding) * c.kv_heads * model->tile_bytes_;
  if (!model->allocate(error)) return nullptr;
  return model;
}

bool Model::allocate(char* error) {
  const size_t n = static_cast<size_t>(config_.max_tokens), k = static_cast<size_t>(config_.experts_per_token), pairs = n * k;
  full_pool_ = map_pages(full_block_bytes_ * config_.kv_blocks);
  sliding_pool_ = map_pages(sliding_block_bytes_ * config_.sliding_kv_blocks);
  size_t used = 0;
  auto reserve = [&](size_t bytes) {
    const size_t at = used;
    used += (bytes + 63) / 64 * 64;
    return at;
  };
  const size_t f = sizeof(float), qkv = static_cast<size_t>(query_) + 2 * kv_;
  const size_t x = reserve(n * hidden_ * f), normed = reserve(n * hidden_ * f), qkv_rows = reserve(n * qkv * f),
               attended = reserve(n * query_ * f), hidden_rows = reserve(pairs * width_ * f), router = reserve(n * experts_ * kRouterParts * f),
               rope = reserve(n * std::max(config_.rotary_dim, 1) * f),
               group_sums = reserve(n * hidden_ / kGroup * f),
               scratch = reserve(pool_.threads() * scratch_bytes_), limbs = reserve(n * limb_stride_),
               attention_limbs = reserve(n * attention_limb_stride_), hidden_limbs = reserve(pairs * hidden_limb_stride_);
  const size_t cut = 2 * static_cast<size_t>(pool_.threads()) + config_.kv_heads;  // runs and heads, at most: see segment_chunk
  parts_ = map_pages(cut * run_parts_ * f);
  segments_left_.reset(new std::atomic<int>[cut]);
  arena_ = map_pages(used);
  if (!arena_ || !parts_ || !full_pool_ || !sliding_pool_) {
    fail(error, "out of memory: %zu bytes of KV cache (lower MAPLE_KV_CACHE_MB) and %zu of scratch", full_block_bytes_ * config_.kv_blocks +
         sliding_block_bytes_ * config_.sliding_kv_blocks, used);
    return false;
  }
  auto floats = [&](size_t at) { return reinterpret_cast<float*>(arena_.get() + at); };
  auto bytes = [&](size_t at) { return reinterpret_cast<int8_t*>(arena_.get() + at); };
  x_ = floats(x), normed_ = floats(normed), qkv_ = floats(qkv_rows), attended_ = floats(attended);
  hidden_rows_ = floats(hidden_rows), router_ = floats(router), rope_ = floats(rope);
  scratch_ = arena_.get() + scratch;
  group_sums_ = floats(group_sums);
  limbs_ = bytes(limbs), attention_limbs_ = bytes(attention_limbs), hidden_limbs_ = bytes(hidden_limbs);

  slice_of_.resize(n), position_of_.resize(n), runs_.reserve(n);
  rows_.resize(n), attention_rows_.resize(n), hidden_row_.resize(pairs);
  ones_.assign(n, 1.0f);
  logits_list_.resize(n);
  for (size_t t = 0; t < n; ++t) {
    row_list_.push_back(&rows_[t]);
    attention_list_.push_back(&attention_rows_[t]);
    x_list_.push_back(x_ + t * hidden_);
    qkv_list_.push_back(qkv_ + t * qkv);
  }
  router_row_.resize(kRouterParts * n);
  for (size_t p = 0; p < kRouterParts; ++p)
    for (size_t t = 0; t < n; ++t) {
      Row& row = router_row_[p * n + t];
      row.f32 = normed_ + t * hidden_ + p * (layers_[0].router.padded_cols / kRouterParts);
      router_rows_.push_back(&row);
      router_list_.push_back(router_ + (t * kRouterParts + p) * experts_);
    }
  for (size_t p = 0; p < pairs; ++p) {
    pair_hidden_rows_.push_back(&hidden_row_[p]);
    pair_hidden_.push_back(hidden_rows_ + p * width_);
  }
  pair_rows_.resize(pairs), pair_x_.resize(pairs), pair_weight_.resize(pairs), chosen_.resize(pairs), chosen_weight_.resize(pairs);
  expert_start_.resize(static_cast<size_t>(config_.experts) + 1), expert_next_.resize(config_.experts);
  active_.reserve(config_.experts);
  return true;
}

int Model::check(const maple_slice* slices, int count, int* tokens, char* error) const {
  int64_t total = 0;
  for (int s = 0; s < count; ++s) {
    const maple_slice& slice = slices[s];
    if (slice.count < 1 || slice.start < 0 || slice.logits < 0 || slice.logits > slice.count || !slice.tokens)
      return fail(error, "slice %d: count %d, start %d, logits %d", s, slice.count, slice.start, slice.logits);
    const int64_t end = static_cast<int64_t>(slice.start) + slice.count;
    if (end > static_cast<int64_t>(slice.block_count) * kKvTokens)
      return fail(error, "slice %d: %lld positions, %d blocks", s, static_cast<long long>(end), slice.block_count);
    for (int i = 0; i < slice.count; ++i)
      if (slice.tokens[i] < 0 || slice.tokens[i] >= config_.vocabulary)
        return fail(error, "slice %d: token %d is outside the vocabulary", s, slice.tokens[i]);
    const int oldest = config_.window ? std::max(0, slice.start - config_.window + 1) / kKvTokens : 0;
    for (int b = 0; b * static_cast<int64_t>(kKvTokens) < end; ++b) {
      const bool full = !full_block_bytes_ || (slice.blocks[b] >= 0 && slice.blocks[b] < config_.kv_blocks);
      const bool sliding = !sliding_block_bytes_ || b < oldest ||
                           (slice.sliding_blocks[b] >= 0 && slice.sliding_blocks[b] < config_.sliding_kv_blocks);
      if (!full || !sliding) return fail(error, "slice %d: block %d is not in the pool", s, b);
    }
    total += slice.count;
  }
  if (count < 1 || total > config_.max_tokens)
    return fail(error, "%lld tokens in a step for at most %d", static_cast<long long>(total), config_.max_tokens);
  *tokens = static_cast<int>(total);
  return 0;
}

}  // namespace maple
