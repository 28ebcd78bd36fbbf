// A model bound to its packed weights, its KV cache and a pool of threads; one step at a time.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "kernel_table.h"
#include "maple_kernels.h"
#include "pool.h"

namespace maple {

struct Layer {
  std::vector<float> attention_norm, mlp_norm, q_norm, k_norm;
  Matrix qkv, output, router, gate_up, down;
  size_t gate_up_bytes, down_bytes;  // of one expert
  bool full;
  int kv_index;                      // among the layers of its kind
};

struct Unmap {
  size_t bytes;
  void operator()(uint8_t* p) const;
};
using Pages = std::unique_ptr<uint8_t, Unmap>;
Pages map_pages(size_t bytes);  // zeroed, committed when touched; null when the system refuses

// A run of one sequence's tokens that attend together.
struct AttentionRun {
  int slice, first, count;  // `first` counts from the start of the step
};

// Segments of a run that one thread takes, for one KV head.
struct AttentionChunk {
  int run, begin, end;
  int number;        // of the run among those that are cut, or -1 where this is all of it
  int run_begin, run_end, segment_blocks;
};

class Model {
 public:
  // Returns null with a line in `error` when anything does not fit.
  static std::unique_ptr<Model> create(const maple_config& config, const maple_layer* layers, const maple_embedding& embedding,
                                       const float* final_norm, const maple_matrix& head, const KernelTable* kernels,
                                       char* error);

  int step(const maple_slice* slices, int count, float* logits, char* error);
  size_t kv_block_bytes(bool sliding) const { return sliding ? sliding_block_bytes_ : full_block_bytes_; }
  uint8_t* kv_block(bool sliding, int block);
  Pool& pool() { return pool_; }

 private:
  struct Upcoming {  // what is read after a matrix, in chunks
    const uint8_t* data = nullptr;
    size_t chunk_bytes = 0;
  };

  explicit Model(const maple_config& config, const KernelTable* kernels);
  bool allocate(char* error);
  int check(const maple_slice* slices, int count, int* tokens, char* error) const;

  void plan(const maple_slice* slices, int count);
  void embed(int token, int32_t id);
  void attention(const Layer& layer, const maple_slice* slices);
  void cut_attention(bool full);
  void turn(const Layer& layer, int token, bool query, float* head) const;
  void append_key(const Layer& layer, const maple_slice* slices, int token, int kv_head);
  void attend(const Layer& layer, const maple_slice* slices, const AttentionChunk& chunk, int kv_head, int thread);
  void experts(const Layer& layer, Upcoming after);
  void gate_and_up(const Layer& layer, int size, int down_size);
  void down(const Layer& layer, int size, Upcoming after);
  void route(int token);
  float softmax_total(const float* scores, const int* chosen, float top, float* weights) const;
  void group_by_expert();
  void normalize_rows(const float* weight);
  void head(const maple_slice* slices, int count, float* logits);
  void multiply(const Matrix& matrix, int rows, const Row* const* inputs, int count, Sink sink, Upcoming upcoming);
  uint8_t* scratch(int thread) const { return scratch_ + static_cast<size_t>(thread) * scratch_bytes_; }
  void multiply_many(const Matrix& matrix, int blocks, const Row* const* inputs, int count, Sink sink);
  int chunk_blocks(const Matrix& matrix, int rows) const;
  void score_experts(const Layer& layer);
  template <class Do>
  void for_tokens(const Do& each);
  Upcoming upcoming(const Matrix& matrix, int rows) const;
  const uint8_t* next_chunk(const Matrix& matrix, int chunk, int chunks, size_t chunk_bytes, Upcoming upcoming) const;

  uint8_t* kv_tile(const Layer& layer, int kv_head) const;

  maple_config config_;
  const KernelTable* kernels_;
  std::vector<Layer> layers_;
  maple_embedding embedding_;
  std::vector<float> final_norm_;
  Matrix head_;
  Pool pool_;

  // Widths rounded up to whole blocks or groups.
  int hidden_, query_, kv_, width_, experts_, vocabulary_;
  size_t limb_stride_, attention_limb_stride_, hidden_limb_stride_;
  float score_scale_;
  KvTile tile_;
  size_t tile_bytes_, full_block_bytes_ = 0, sliding_block_bytes_ = 0;
  Pages full_pool_, sliding_pool_;

  // The step's scratch, sized for max_tokens at creation.
  int tokens_ = 0;
  bool single_tokens_ = false;                 // every slice is one token long
  std::vector<int> slice_of_, position_of_;    // by token of the step
  std::vector<AttentionRun> runs_;
  std::vector<AttentionChunk> attention_chunks_[2];  // of the sliding and of the full layers
  Pages parts_;                                // of runs that are cut: [run][KV head][segment]
  size_t run_parts_;                           // floats of a run and KV head in it
  std::unique_ptr<std::atomic<int>[]> segments_left_;  // [run][KV head]
  Pages arena_;
  float *x_, *normed_, *qkv_, *attended_, *hidden_rows_, *rope_;
  float* router_;                              // [tokens, kRouterParts, experts]
  float* group_sums_;                          // [tokens, hidden / kGroup]
  int8_t *limbs_, *attention_limbs_, *hidden_limbs_;
  uint8_t* scratch_;                           // of each thread, for one product or one run of attention at a time
  size_t scratch_bytes_;
  std::vector<Row> rows_, attention_rows_, hidden_row_;
  std::vector<Row> router_row_;                // [kRouterParts, tokens]
  std::vector<const Row*> router_rows_, row_list_, attention_list_, pair_rows_, pair_hidden_rows_, head_list_;
  std::vector<float*> x_list_, qkv_list_, router_list_, pair_hidden_, pair_x_, logits_list_;
  std::vector<float> pair_weight_, ones_;
  std::vector<int> chosen_;                    // [tokens, experts_per_token], ascending
  std::vector<float> chosen_weight_;
  std::vector<int> expert_start_, expert_next_, active_;  // pairs of expert e: [start[e], start[e + 1])
  std::vector<double> inverse_frequency_;
};

}  // namespace maple
