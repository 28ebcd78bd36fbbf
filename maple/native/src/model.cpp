// One step of Maple: the order of the work, and how it is shared out. The arithmetic is in kernels.inc.
#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "chunks.h"

namespace maple {

namespace {

constexpr int kTokenChunk = 4;  // tokens a thread takes at once where work goes by token
constexpr int kManyTokens = 8;  // tokens from which a thread's part of a matrix is long in rows and short in tokens

float bf16_at(const void* base, size_t index) {
  uint16_t half;
  std::memcpy(&half, static_cast<const char*>(base) + 2 * index, 2);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

float round_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

}  // namespace

// ---- the step ------------------------------------------------------------------------------------------------------

int Model::step(const maple_slice* slices, int count, float* logits, char* error) {
  if (const int failed = check(slices, count, &tokens_, error)) return failed;
  plan(slices, count);
  for_tokens([&](int t) {
    const maple_slice& slice = slices[slice_of_[t]];
    embed(t, slice.tokens[position_of_[t] - slice.start]);
  });
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    normalize_rows(layer.attention_norm.data());
    attention(layer, slices);
    normalize_rows(layer.mlp_norm.data());
    experts(layer, i + 1 < layers_.size() ? upcoming(layers_[i + 1].qkv, query_ + 2 * kv_)
                                          : upcoming(head_, config_.vocabulary));
  }
  head(slices, count, logits);
  return 0;
}

template <class Do>
void Model::for_tokens(const Do& each) {
  const int size = fair_chunk(tokens_, pool_.threads(), kTokenChunk);
  pool_.parallel(chunks_of(tokens_, size), [&](int chunk, int) {
    for (int t = chunk * size; t < std::min(tokens_, (chunk + 1) * size); ++t) each(t);
  });
}

void Model::plan(const maple_slice* slices, int count) {
  int token = 0;
  runs_.clear();
  single_tokens_ = true;
  for (int s = 0; s < count; ++s) {
    single_tokens_ &= slices[s].count == 1;
    for (int i = 0; i < slices[s].count; ++i) {
      slice_of_[token + i] = s;
      position_of_[token + i] = slices[s].start + i;
      float* angles = rope_ + static_cast<size_t>(token + i) * config_.rotary_dim;
      for (int f = 0; f < config_.rotary_dim / 2; ++f) {
        const double angle = (slices[s].start + i) * inverse_frequency_[f];
        angles[2 * f] = static_cast<float>(std::cos(angle));
        angles[2 * f + 1] = static_cast<float>(std::sin(angle));
      }
    }
    for (int i = 0; i < slices[s].count; i += runs_.back().count) {  // within a KV block, so that their segments are the same
      const int left = std::min(slices[s].count - i, kKvTokens - (slices[s].start + i) % kKvTokens);
      runs_.push_back({s, token + i, std::min(kAttendTokens, left)});
    }
    token += slices[s].count;
  }
  cut_attention(false);
  cut_attention(true);
}

// Runs and KV heads side by side, and where they are fewer than the threads their segments too.
void Model::cut_attention(bool full) {
  std::vector<AttentionChunk>& chunks = attention_chunks_[full];
  chunks.clear();
  for (size_t r = 0; r < runs_.size(); ++r) {
    const int position = position_of_[runs_[r].first], window = full ? 0 : config_.window;
    const int newest = position / kKvTokens, oldest = window ? std::max(0, position - window + 1) / kKvTokens : 0;
    const int blocks = segment_blocks(window ? window / kKvTokens + 2 : newest + 1);
    const int begin = oldest / blocks, end = newest / blocks + 1;
    const int size = segment_chunk(end - begin, static_cast<int>(runs_.size()) * config_.kv_heads, pool_.threads());
    for (int at = begin; at < end; at += size)
      chunks.push_back({static_cast<int>(r), at, std::min(end, at + size), size < end - begin ? static_cast<int>(r) : -1, begin, end, blocks});
  }
}

void Model::embed(int token, int32_t id) {
  float* x = x_ + static_cast<size_t>(token) * hidden_;
  const size_t n = static_cast<size_t>(config_.hidden), row = static_cast<size_t>(id);
  std::fill(x, x + hidden_, 0.0f);
  if (embedding_.kind == kAffine4) {
    const auto* codes = static_cast<const uint8_t*>(embedding_.data) + row * n / 2;
    for (size_t g = 0; g < n / kGroup; ++g) {
      const float scale = bf16_at(embedding_.scales, row * (n / kGroup) + g);
      const float bias = bf16_at(embedding_.biases, row * (n / kGroup) + g);
      for (size_t k = g * kGroup; k < (g + 1) * kGroup; k += 2) {
        x[k] = round_bf16(round_bf16(scale * static_cast<float>(codes[k / 2] & 15)) + bias);
        x[k + 1] = round_bf16(round_bf16(scale * static_cast<float>(codes[k / 2] >> 4)) + bias);
      }
    }
  } else if (embedding_.kind == kBf16) {
    for (size_t k = 0; k < n; ++k) x[k] = bf16_at(embedding_.data, row * n + k);
  } else {
    std::memcpy(x, static_cast<const char*>(embedding_.data) + row * n * 4, n * 4);
  }
}

void Model::normalize_rows(const float* weight) {
  for_tokens([&](int t) {
    float* normed = normed_ + static_cast<size_t>(t) * hidden_;
    kernels_->rms_norm(x_ + static_cast<size_t>(t) * hidden_, weight, config_.hidden, hidden_, config_.eps, normed);
    kernels_->quantize(normed, hidden_, config_.activations, limbs_ + t * limb_stride_, &rows_[t]);
  });
}

int Model::chunk_blocks(const Matrix& matrix, int rows) const {
  return block_chunk(chunks_of(rows, kBlockRows), matrix.block_bytes, pool_.threads());
}

// The threads take turns, so a thread's next chunk is most likely the one after the others'; behind the last chunks come
// the first ones of what is read next. Fetching that ahead keeps memory busy across chunks and phases.
const uint8_t* Model::next_chunk(const Matrix& matrix, int chunk, int chunks, size_t chunk_bytes, Upcoming upcoming) const {
  const int next = chunk + pool_.threads();
  if (next < chunks) return matrix.blocks + static_cast<size_t>(next) * chunk_bytes;
  return upcoming.data ? upcoming.data + static_cast<size_t>(next - chunks) * upcoming.chunk_bytes : nullptr;
}

Model::Upcoming Model::upcoming(const Matrix& matrix, int rows) const {
  return {matrix.blocks, static_cast<size_t>(chunk_blocks(matrix, rows)) * matrix.block_bytes};
}

void Model::multiply(const Matrix& matrix, int rows, const Row* const* inputs, int count, Sink sink, Upcoming upcoming) {
  const int blocks = chunks_of(rows, kBlockRows), size = chunk_blocks(matrix, rows), chunks = chunks_of(blocks, size);
  if (count >= kManyTokens && matrix.kind == kTernary) return multiply_many(matrix, blocks, inputs, count, sink);
  pool_.parallel(chunks, [&](int chunk, int thread) {
    Matrix part = matrix;
    part.next = next_chunk(matrix, chunk, chunks, static_cast<size_t>(size) * matrix.block_bytes, upcoming);
    kernels_->matmul(part, chunk * size, std::min(blocks, (chunk + 1) * size), config_.activations, inputs, count, sink,
                     scratch(thread));
  });
}

// Long ranges of rows, which share what is made of the tokens (lookup.inc), for some tokens at a time. The ranges are as
// short as it takes to keep the threads even.
void Model::multiply_many(const Matrix& matrix, int blocks, const Row* const* inputs, int count, Sink sink) {
  const int groups = chunks_of(count, kLookupGroup), fair = blocks * groups / (4 * pool_.threads()) / 4 * 4;
  const int size = std::clamp(fair, kLookupLeastBlocks, kLookupBlocks);
  pool_.parallel(chunks_of(blocks, size) * groups, [&](int chunk, int thread) {
    const int begin = chunk / groups * size, first = chunk % groups * kLookupGroup;
    kernels_->matmul(matrix, begin, std::min(blocks, begin + size), config_.activations, inputs + first,
                     std::min(kLookupGroup, count - first), {sink.out + first, sink.weight ? sink.weight + first : nullptr},
                     scratch(thread));
  });
}

// ---- attention -----------------------------------------------------------------------------------------------------

void Model::attention(const Layer& layer, const maple_slice* slices) {
  multiply(layer.qkv, query_ + 2 * kv_, row_list_.data(), tokens_, {qkv_list_.data(), nullptr},
           upcoming(layer.output, config_.hidden));
  const int kv_heads = config_.kv_heads;
  if (!single_tokens_) {  // a token attends to others of its step, so all keys come first
    const int units = tokens_ * kv_heads, size = fair_chunk(units, pool_.threads(), kTokenChunk * kv_heads);
    pool_.parallel(chunks_of(units, size), [&](int chunk, int) {
      for (int u = chunk * size; u < std::min(units, (chunk + 1) * size); ++u) {
        const int token = u / kv_heads, kv_head = u % kv_heads, group = config_.heads / kv_heads;
        float* q = qkv_ + static_cast<size_t>(token) * (query_ + 2 * kv_) + kv_head * group * config_.head_dim;
        for (int head = 0; head < group; ++head) turn(layer, token, true, q + head * config_.head_dim);
        append_key(layer, slices, token, kv_head);
      }
    });
  }
  const std::vector<AttentionChunk>& chunks = attention_chunks_[layer.full];
  for (const AttentionChunk& chunk : chunks)
    if (chunk.number >= 0)
      for (int head = 0; head < kv_heads; ++head)
        segments_left_[chunk.number * kv_heads + head].store(chunk.run_end - chunk.run_begin, std::memory_order_relaxed);
  pool_.parallel(static_cast<int>(chunks.size()) * kv_heads, [&](int chunk, int thread) {
    attend(layer, slices, chunks[chunk / kv_heads], chunk % kv_heads, thread);
  });
  for_tokens([&](int t) {
    kernels_->quantize(attended_ + static_cast<size_t>(t) * query_, query_, config_.activations,
                       attention_limbs_ + t * attention_limb_stride_, &attention_rows_[t]);
  });
  multiply(layer.output, config_.hidden, attention_list_.data(), tokens_, {x_list_.data(), ones_.data()}, {});
}

// QK norm and RoPE of a head in place; queries also take the 1 / sqrt(dim) of the scores.
void Model::turn(const Layer& layer, int token, bool query, float* v) const {
  const int dim = config_.head_dim, half = config_.rotary_dim / 2;
  const float* angles = rope_ + static_cast<size_t>(token) * config_.rotary_dim;
  const std::vector<float>& norm = query ? layer.q_norm : layer.k_norm;
  if (!norm.empty()) kernels_->rms_norm(v, norm.data(), dim, dim, config_.eps, v);
  if (!layer.full)
    for (int f = 0; f < half; ++f) {
      const float c = angles[2 * f], s = angles[2 * f + 1], a = v[f], b = v[f + half];
      v[f] = a * c - b * s;
      v[f + half] = b * c + a * s;
    }
  if (query)
    for (int d = 0; d < dim; ++d) v[d] *= score_scale_;
}

// A token's key, turned, and value into the cache.
void Model::append_key(const Layer& layer, const maple_slice* slices, int token, int kv_head) {
  float* k = qkv_ + static_cast<size_t>(token) * (query_ + 2 * kv_) + query_ + kv_head * config_.head_dim;
  turn(layer, token, false, k);
  const maple_slice& slice = slices[slice_of_[token]];
  const int position = position_of_[token];
  const int32_t* table = layer.full ? slice.blocks : slice.sliding_blocks;
  const size_t offset = static_cast<size_t>(table[position / kKvTokens]) * kv_block_bytes(!layer.full);
  kernels_->append(tile_, kv_tile(layer, kv_head) + offset, position % kKvTokens, k, k + kv_);
}

void Model::attend(const Layer& layer, const maple_slice* slices, const AttentionChunk& chunk, int kv_head, int thread) {
  const AttentionRun& run = runs_[chunk.run];
  const maple_slice& slice = slices[run.slice];
  const int dim = config_.head_dim, group = config_.heads / config_.kv_heads, stride = query_ + 2 * kv_;
  Attention a;
  a.q = qkv_ + static_cast<size_t>(run.first) * stride + kv_head * group * dim;
  a.out = attended_ + static_cast<size_t>(run.first) * query_ + kv_head * group * dim;
  a.q_stride = static_cast<size_t>(stride);
  a.out_stride = static_cast<size_t>(query_);
  a.tokens = run.count;
  a.position = position_of_[run.first];
  a.heads = group;
  a.window = layer.full ? 0 : config_.window;
  a.pool = kv_tile(layer, kv_head);
  a.block_stride = kv_block_bytes(!layer.full);
  a.blocks = layer.full ? slice.blocks : slice.sliding_blocks;
  a.tile = tile_;
  a.scratch = reinterpret_cast<float*>(scratch(thread));
  if (single_tokens_) {  // queries of its own for each chunk; the key goes where the chunk with the newest segment reads it
    float* q = a.scratch + attention_scratch(group, dim);
    std::memcpy(q, a.q, static_cast<size_t>(group) * dim * sizeof(float));
    for (int head = 0; head < group; ++head) turn(layer, run.first, true, q + head * dim);
    a.q = q;
    if (chunk.end == chunk.run_end) append_key(layer, slices, run.first, kv_head);
  }
  a.segment_blocks = chunk.segment_blocks;
  a.first_segment = chunk.begin, a.last_segment = chunk.end;
  a.parts = nullptr;
  if (chunk.number < 0) return kernels_->attend(a);
  const int place = chunk.number * config_.kv_heads + kv_head;
  float* parts = reinterpret_cast<float*>(parts_.get()) + place * run_parts_;
  a.parts = parts + (chunk.begin - chunk.run_begin) * attention_part(run.count, group, dim);
  kernels_->attend(a);
  const int taken = chunk.end - chunk.begin;
  if (segments_left_[place].fetch_sub(taken, std::memory_order_acq_rel) != taken) return;
  a.first_segment = chunk.run_begin, a.last_segment = chunk.run_end, a.parts = parts;
  kernels_->merge_segments(a);
}

// ---- experts -------------------------------------------------------------------------------------------------------

void Model::experts(const Layer& layer, Upcoming after) {
  score_experts(layer);
  for_tokens([&](int t) { route(t); });
  group_by_expert();

  // Many experts are read one after the other, so each should be long; a single token's few leave the threads uneven.
  const int pairs = tokens_ * config_.experts_per_token, active = static_cast<int>(active_.size());
  const bool many = pairs >= 4 * active && active >= 8 * pool_.threads();  // tokens, and experts to even the threads out
  const int size = down_chunk(chunks_of(config_.hidden, kBlockRows), pool_.threads(), tokens_, many);
  gate_and_up(layer, gate_up_chunk(active, 2 * width_ / kBlockRows, pool_.threads(), many), size);
  pool_.parallel(chunks_of(pairs, 4 * kTokenChunk), [&](int chunk, int) {
    for (int p = chunk * 4 * kTokenChunk; p < std::min(pairs, (chunk + 1) * 4 * kTokenChunk); ++p)
      kernels_->quantize(hidden_rows_ + static_cast<size_t>(p) * width_, width_, config_.activations,
                         hidden_limbs_ + p * hidden_limb_stride_, &hidden_row_[p]);
  });
  down(layer, size, after);
}

// The router has few rows: its columns are cut too.
void Model::score_experts(const Layer& layer) {
  const int blocks = chunks_of(config_.experts, kBlockRows), units = kRouterParts * blocks;
  const int size = fair_chunk(units, pool_.threads(), units / 4), cols = layer.router.padded_cols / kRouterParts;
  const size_t part_bytes = layer.router.block_bytes / kRouterParts;
  pool_.parallel(chunks_of(units, size), [&](int chunk, int thread) {
    for (int u = chunk * size; u < std::min(units, (chunk + 1) * size);) {
      const int part = u / blocks, begin = u % blocks, end = std::min(blocks, begin + (chunk + 1) * size - u);
      Matrix matrix = layer.router;
      matrix.blocks += static_cast<size_t>(part) * part_bytes;
      matrix.padded_cols = cols;
      kernels_->matmul(matrix, begin, end, config_.activations, router_rows_.data() + static_cast<size_t>(part) * config_.max_tokens,
                       tokens_, {router_list_.data() + static_cast<size_t>(part) * config_.max_tokens, nullptr}, scratch(thread));
      u += end - begin;
    }
  });
}

void Model::gate_and_up(const Layer& layer, int size, int down_size) {
  const int active = static_cast<int>(active_.size()), blocks = 2 * width_ / kBlockRows;
  const int parts = chunks_of(blocks, size), chunks = active * parts;
  const size_t down_bytes = static_cast<size_t>(down_size) * layer.down.block_bytes;
  const auto at = [&](int chunk) {
    return layer.gate_up.blocks + static_cast<size_t>(active_[chunk / parts]) * layer.gate_up_bytes +
           static_cast<size_t>(chunk % parts * size) * layer.gate_up.block_bytes;
  };
  pool_.parallel(chunks, [&](int chunk, int thread) {
    const int expert = active_[chunk / parts], begin = chunk % parts * size, next = chunk + pool_.threads();
    const int first = expert_start_[expert], count = expert_start_[expert + 1] - first;
    Matrix matrix = layer.gate_up;
    matrix.blocks += static_cast<size_t>(expert) * layer.gate_up_bytes;
    matrix.next = next < chunks ? at(next)
                                : layer.down.blocks + static_cast<size_t>(active_[0]) * layer.down_bytes +
                                      static_cast<size_t>(next - chunks) * down_bytes;
    kernels_->gate_up(matrix, begin, std::min(blocks, begin + size), config_.activations, pair_rows_.data() + first, count,
                      pair_hidden_.data() + first, config_.clamp, scratch(thread));
  });
}

// A thread owns rows of the output and adds the experts to them in ascending order, whatever else is in the step.
void Model::down(const Layer& layer, int size, Upcoming after) {
  const int blocks = chunks_of(config_.hidden, kBlockRows), chunks = chunks_of(blocks, size);
  const size_t chunk_bytes = static_cast<size_t>(size) * layer.down.block_bytes;
  pool_.parallel(chunks, [&](int chunk, int thread) {
    for (size_t i = 0; i < active_.size(); ++i) {
      Matrix matrix = layer.down;
      if (i + 1 < active_.size()) {
        matrix.next = layer.down.blocks + static_cast<size_t>(active_[i + 1]) * layer.down_bytes +
                      static_cast<size_t>(chunk) * chunk_bytes;
      } else {
        Matrix again = layer.down;
        again.blocks += static_cast<size_t>(active_[0]) * layer.down_bytes;
        matrix.next = next_chunk(again, chunk, chunks, chunk_bytes, after);
      }
      matrix.blocks += static_cast<size_t>(active_[i]) * layer.down_bytes;
      const int first = expert_start_[active_[i]], count = expert_start_[active_[i] + 1] - first;
      kernels_->matmul(matrix, chunk * size, std::min(blocks, (chunk + 1) * size), config_.activations,
                       pair_hidden_rows_.data() + first, count, {pair_x_.data() + first, pair_weight_.data() + first},
                       scratch(thread));
    }
  });
}

// The experts_per_token with the highest scores, ties to the lower index, in ascending order of expert; their weights are
// those of a softmax over all experts, or over themselves.
void Model::route(int token) {
  float* scores = router_ + static_cast<size_t>(token) * kRouterParts * experts_;
  for (int e = 0; e < config_.experts; ++e)
    scores[e] = (scores[e] + scores[experts_ + e]) + (scores[2 * experts_ + e] + scores[3 * experts_ + e]);
  const int k = config_.experts_per_token, n = config_.experts;
  int* chosen = chosen_.data() + static_cast<size_t>(token) * k;
  int kept = 0;
  for (int e = 0; e < n; ++e) {
    const float value = scores[e];
    // A NaN is above nothing, so that a poisoned token still chooses valid experts (and stays NaN through its input).
    if (kept == k && !(value > scores[chosen[k - 1]])) continue;
    if (kept < k) ++kept;
    int at = kept - 1;
    for (; at > 0 && value > scores[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
    chosen[at] = e;
  }
  const float top = scores[chosen[0]];
  std::sort(chosen, chosen + k);
  float* weights = chosen_weight_.data() + static_cast<size_t>(token) * k;
  const float inverse = 1.0f / softmax_total(scores, chosen, top, weights);
  for (int i = 0; i < k; ++i) weights[i] *= inverse;
}

// The exponentials of the chosen scores, less the top one, to `weights`; returns what they are divided by.
float Model::softmax_total(const float* scores, const int* chosen, float top, float* weights) const {
  const int k = config_.experts_per_token, n = config_.normalize_experts ? k : config_.experts;
  float total = 0.0f;
  for (int first = 0; first < n; first += kBlockRows) {
    alignas(64) float part[kBlockRows] = {};
    const int count = std::min(kBlockRows, n - first);
    for (int i = 0; i < count; ++i) part[i] = scores[config_.normalize_experts ? chosen[first + i] : first + i];
    kernels_->exponentials(part, kBlockRows, top);
    for (int i = 0; i < count; ++i) total += part[i];
    for (int i = 0; i < k; ++i) {
      const int at = (config_.normalize_experts ? i : chosen[i]) - first;
      if (at >= 0 && at < count) weights[i] = part[at];
    }
  }
  return total;
}

void Model::group_by_expert() {
  const int k = config_.experts_per_token, pairs = tokens_ * k;
  std::fill(expert_start_.begin(), expert_start_.end(), 0);
  for (int i = 0; i < pairs; ++i) ++expert_start_[chosen_[i] + 1];
  active_.clear();
  for (int e = 0; e < config_.experts; ++e) {
    if (expert_start_[e + 1]) active_.push_back(e);
    expert_start_[e + 1] += expert_start_[e];
  }
  std::copy(expert_start_.begin(), expert_start_.end() - 1, expert_next_.begin());
  for (int i = 0; i < pairs; ++i) {
    const int pair = expert_next_[chosen_[i]]++, token = i / k;
    pair_rows_[pair] = &rows_[token];
    pair_x_[pair] = x_list_[token];
    pair_weight_[pair] = chosen_weight_[i];
  }
}

// ---- the head ------------------------------------------------------------------------------------------------------

void Model::head(const maple_slice* slices, int count, float* logits) {
  int wanted = 0, token = 0;
  for (int s = 0; s < count; token += slices[s++].count)
    for (int i = slices[s].count - slices[s].logits; i < slices[s].count; ++i) {
      float* normed = normed_ + static_cast<size_t>(wanted) * hidden_;
      kernels_->rms_norm(x_list_[token + i], final_norm_.data(), config_.hidden, hidden_, config_.eps, normed);
      kernels_->quantize(normed, hidden_, config_.activations, limbs_ + wanted * limb_stride_, &rows_[wanted]);
      if (head_.kind == kAffine4)
        kernels_->group_sums(&rows_[wanted], hidden_, config_.activations, group_sums_ + static_cast<size_t>(wanted) * hidden_ / kGroup);
      logits_list_[wanted] = logits + static_cast<size_t>(wanted) * vocabulary_;
      ++wanted;
    }
  if (wanted) multiply(head_, config_.vocabulary, row_list_.data(), wanted, {logits_list_.data(), nullptr}, {});
}

uint8_t* Model::kv_tile(const Layer& layer, int kv_head) const {
  uint8_t* pool = layer.full ? full_pool_.get() : sliding_pool_.get();
  return pool + (static_cast<size_t>(layer.kv_index) * config_.kv_heads + kv_head) * tile_bytes_;
}

uint8_t* Model::kv_block(bool sliding, int block) {
  if (block < 0 || block >= (sliding ? config_.sliding_kv_blocks : config_.kv_blocks)) return nullptr;
  return (sliding ? sliding_pool_ : full_pool_).get() + static_cast<size_t>(block) * kv_block_bytes(sliding);
}

}  // namespace maple
