// The C interface of the kernels. Every function may be called without Python's lock; a context takes one call at a time.
//
// Functions that can fail return 0, or a negative code with one line in `error` (of kMapleErrorBytes bytes).
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MAPLE_API __attribute__((visibility("default")))
#define MAPLE_ABI_VERSION 2
#define MAPLE_ERROR_BYTES 256

typedef struct maple_context maple_context;

typedef struct {
  const void* blocks;   // 64-byte aligned is fastest; any alignment of 4 works
  int64_t bytes;        // of all `count` matrices together
  int32_t kind;         // 0 ternary, 1 affine4, 2 int8, 3 bf16, 4 f32
  int32_t rows, cols, count;
} maple_matrix;

typedef struct {
  const void* data;     // row-major: affine4 words, bf16 or f32
  const void* scales;   // affine4: bf16 [rows, cols / 64]
  const void* biases;
  int64_t bytes, scale_bytes;
  int32_t kind, rows, cols;
} maple_embedding;

typedef struct {
  const float *attention_norm, *mlp_norm;  // [hidden]
  const float *q_norm, *k_norm;            // [head_dim], or null without QK norm
  maple_matrix qkv, output, router, gate_up, down;
  int32_t full;                            // 1: attends to everything, without RoPE
} maple_layer;

typedef struct {
  int32_t abi_version;
  int32_t layers, hidden, heads, kv_heads, head_dim, rotary_dim, window;
  int32_t experts, experts_per_token, expert_width, vocabulary, normalize_experts;
  float eps, rope_theta, clamp;
  int32_t activations;  // 0 fp32, 1 int8, 2 two-limb int8
  int32_t kv_kind;      // 0 f32, 1 f16, 2 bf16, 3 int8
  int32_t threads, max_tokens;
  int32_t kv_blocks, sliding_kv_blocks;
} maple_config;

// One sequence's part of a step. Tokens stand at positions start, start + 1, …; block b of a table holds the positions
// 64 b … 64 b + 63. Sliding layers read blocks from (start - window + 1) / 64 on: earlier entries may be -1.
typedef struct {
  const int32_t* tokens;
  const int32_t* blocks;          // of the full layers' pool
  const int32_t* sliding_blocks;  // of the sliding layers' pool
  int32_t count, start, block_count;
  int32_t logits;                 // rows of logits wanted: the last n tokens
} maple_slice;

// How one id is chosen from a row of logits: repetition penalty over `seen`, presence and frequency over `counted`, bias
// (-100 and below bans), mask, temperature (0: the first of the highest), top-k (0: off), top-p, min-p, and a draw.
typedef struct {
  const float* logits;
  const uint32_t* mask;     // a bit an id, 0 where it may not be chosen; or null
  const int32_t* seen;      // distinct ids
  const int32_t* counted;   // distinct ids, and how often each came
  const int32_t* counts;
  const int32_t* biased;    // distinct ids
  const float* bias;
  double temperature, top_p, min_p, repetition, presence, frequency;
  double fraction;          // of [0, 1): where in the weights to draw
  int32_t top_k, seen_count, counted_count, bias_count;
  int32_t chosen;           // the answer: an id, or -1 where the logits allow none
} maple_sampling;

MAPLE_API int maple_abi_version(void);
// Bit i is set when path i can run here: 0 scalar, 1 AVX2, 2 AVX-VNNI, 3 AVX-512 VNNI, 4 NEON, 5 NEON with dot
// products, 6 AVX-512 VNNI with VBMI.
MAPLE_API int maple_paths(void);
MAPLE_API const char* maple_path_name(int path);

MAPLE_API int64_t maple_matrix_bytes(int32_t kind, int32_t rows, int32_t cols);

MAPLE_API maple_context* maple_create(const maple_config* config, const maple_layer* layers, const maple_embedding* embedding,
                                      const float* final_norm, const maple_matrix* head, int path, char* error);
MAPLE_API void maple_destroy(maple_context* context);
// Runs one step; `logits` receives the wanted rows one after the other, each of vocabulary rounded up to 16 floats.
MAPLE_API int maple_step(maple_context* context, const maple_slice* slices, int count, float* logits, char* error);
// Chooses an id for each row among the first `limit`; the context's threads share the rows.
MAPLE_API int maple_sample(maple_context* context, maple_sampling* rows, int count, int limit, char* error);
MAPLE_API int64_t maple_kv_block_bytes(const maple_context* context, int sliding);
// The bytes of one KV block (all layers of its kind); stays valid until maple_destroy.
MAPLE_API void* maple_kv_block(maple_context* context, int sliding, int32_t block);

// Chunks of the phases of a step of one token at `position`: qkv, attention of a sliding and of a full layer, output, router,
// gate_up, down, head.
#define MAPLE_PHASES 8
MAPLE_API void maple_phase_chunks(const maple_config* config, int32_t position, int32_t head_kind, int32_t* counts);

// y[count, rows] = x[count, cols] W^T with one matrix: for tests and for layers that run elsewhere.
MAPLE_API int maple_linear(const maple_matrix* matrix, const float* x, int32_t count, float* y, int32_t activations,
                           int path, char* error);

// Reads `bytes` once with `threads`, as fast as memory gives them: the limit that decoding is measured against. Returns a
// checksum.
MAPLE_API uint64_t maple_read_all(const void* data, int64_t bytes, int32_t threads);

// Where packed blocks go: block b of matrix m lands at block m * matrix_blocks + first_block + b * block_step, so that
// q, k and v share a matrix and gate and up alternate.
typedef struct {
  void* out;
  int64_t bytes;
  int32_t first_block, block_step, matrix_blocks;
} maple_target;

// Packing: `count` row-major matrices [rows, cols] that follow each other in the source; `threads` share the blocks.
// Sources may be unaligned. Each value is checked: a row that does not fit the kind is an error that names it.
//   maple_pack_codes2   32-bit words of 16 two-bit codes, lowest bits first, w = alpha (code - 1); bf16 alpha a row
//   maple_pack_ternary  bf16 rows of -a, 0 and a (-0 is a zero)
//   maple_pack_affine4  32-bit words of 8 four-bit codes, bf16 scales and biases [rows, cols / 64]
//   maple_pack_dense    bf16 rows, to int8 (scale = max |w| / 127 a row), bf16 or f32; or f32 rows to f32
MAPLE_API int maple_pack_codes2(const void* words, const void* alpha, int32_t count, int32_t rows, int32_t cols,
                                const maple_target* target, int32_t threads, char* error);
MAPLE_API int maple_pack_ternary(const void* source, int32_t count, int32_t rows, int32_t cols, const maple_target* target,
                                 int32_t threads, char* error);
MAPLE_API int maple_pack_affine4(const void* words, const void* scales, const void* biases, int32_t rows, int32_t cols,
                                 const maple_target* target, int32_t threads, char* error);
MAPLE_API int maple_pack_dense(const void* source, int32_t source_is_f32, int32_t kind, int32_t rows, int32_t cols,
                               const maple_target* target, int32_t threads, char* error);

#ifdef __cplusplus
}
#endif
