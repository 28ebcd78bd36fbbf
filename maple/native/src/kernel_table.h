// What the step needs from an instruction set: one table of functions per compiled path.
//
// Every function computes one token's floating-point results in an order that depends on the shapes alone, never on
// how many tokens or row blocks share the call, so that results are bit-identical under any batching or split.
#pragma once

#include <cstddef>
#include <cstdint>

namespace maple {

constexpr int kBlockRows = 16;   // rows interleaved in a weight block
constexpr int kKvTokens = 64;    // tokens in a KV block
constexpr int kGroup = 64;       // columns that share a scale and bias in the affine 4-bit kind
constexpr int kTwoLimbSteps = 10879;  // the largest integer of two limbs: sums of three fit 16 bits, see lookup.inc

enum WeightKind : int32_t { kTernary = 0, kAffine4 = 1, kInt8 = 2, kBf16 = 3, kF32 = 4 };
enum Activations : int32_t { kActFp32 = 0, kActInt8 = 1, kActInt8x2 = 2 };  // the value is the number of limbs
enum KvKind : int32_t { kKvF32 = 0, kKvF16 = 1, kKvBf16 = 2, kKvInt8 = 3 };

// One token's input to a matrix product: x[k] = scale * (128 * hi[k] + lo[k]), or x[k] = scale * hi[k] with one limb.
// Limbs lie in groups of four columns: four hi bytes, then (two limbs) four lo bytes.
struct Row {
  const float* f32;
  const int8_t* limbs;
  const float* group_sums;  // for the affine 4-bit kind: of the integers, or of f32 without limbs, per kGroup columns
  float scale;              // NaN where the input was not finite: every product of the row is then NaN
  int32_t sum, sum_hi;      // of the integers, and of their hi limbs, over all columns
};

// A packed matrix. Blocks of 16 rows follow each other; inside a block the rows are interleaved by 32-bit words:
//   ternary  16 f32 row scales, then per 16 columns 16 words; the code (w + 1) of column 4p + b at bit 8b + 2p
//   affine4  per 64 columns 16 words of a bf16 scale and, in the high half, a bf16 bias, then per 8 columns 16 words; the
//            code of column 4p + b at bit 8b + 4p; w = scale * code + bias, which is not rounded
//   int8     16 f32 row scales, then per 4 columns 16 words of (w + 128) bytes
//   bf16     per 2 columns 16 words, the even column in the low half
//   f32      per column 16 floats
struct Matrix {
  const uint8_t* blocks;
  int32_t kind;
  int32_t padded_cols;  // a multiple of 16, or of 64 for affine4
  size_t block_bytes;
  const uint8_t* next = nullptr;  // what the thread reads after its range of blocks, if that does not follow in memory
};

// Where a product goes: out[t][row] = y, or out[t][row] += weight[t] * y where `weight` is given.
struct Sink {
  float* const* out;
  const float* weight;
};

struct KvTile {  // one head of one layer of one KV block
  int32_t kind;
  int32_t dim;
};

// The keys are taken in segments of `segment_blocks` KV blocks from position 0 on; each has a softmax of its own, and they
// are merged in ascending order, so that it does not show who computed them. A call computes the segments from
// `first_segment` up to `last_segment`, and merges them into `out`, or leaves them in `parts` for merge_segments.
struct Attention {
  const float* q;        // [tokens, heads * dim] with `q_stride` floats between tokens, scaled by 1 / sqrt(dim)
  float* out;            // like q
  size_t q_stride, out_stride;
  int32_t tokens, position;  // position of the first token
  int32_t heads;             // query heads that share this KV head
  int32_t window;            // keys a query sees, itself included; 0: all
  const uint8_t* pool;   // this layer's and head's tile of block 0 …
  size_t block_stride;   // … and how far the next block's is
  const int32_t* blocks; // by absolute block number
  KvTile tile;
  float* scratch;        // attention_scratch() floats
  int segment_blocks, first_segment, last_segment;
  float* parts;          // null, or from `first_segment` on attention_part() floats each
};

struct KernelTable {
  const char* name;
  // `scratch` has kProductScratch bytes of the calling thread.
  void (*matmul)(const Matrix& w, int begin, int end, int limbs, const Row* const* rows, int count, Sink sink,
                 uint8_t* scratch);
  // gate and up blocks alternate: hidden[t][i] = silu(min(gate_i, clamp)) * clip(up_i, -clamp, clamp)
  void (*gate_up)(const Matrix& w, int begin, int end, int limbs, const Row* const* rows, int count,
                  float* const* hidden, float clamp, uint8_t* scratch);
  void (*rms_norm)(const float* x, const float* weight, int n, int padded, float eps, float* out);
  void (*quantize)(const float* x, int padded, int limbs, int8_t* out, Row* row);
  void (*group_sums)(Row* row, int padded, int limbs, float* out);  // padded / kGroup of them, which the row then has
  void (*exponentials)(float* x, int n, float shift);  // x = e^(x - shift), for a multiple of 16
  void (*append)(KvTile tile, uint8_t* data, int slot, const float* k, const float* v);
  void (*attend)(const Attention& a);
  void (*merge_segments)(const Attention& a);  // all of `parts` into `out`
};

inline size_t kv_element_bytes(int32_t kind) { return kind == kKvF32 ? 4 : kind == kKvInt8 ? 1 : 2; }

// K as [dim][64 tokens], V as [64 tokens][dim], and for int8 64 f32 scales of K, then of V.
inline size_t kv_tile_bytes(KvTile t) {
  size_t elements = 2u * kKvTokens * static_cast<size_t>(t.dim) * kv_element_bytes(t.kind);
  return elements + (t.kind == kKvInt8 ? 2u * kKvTokens * sizeof(float) : 0);
}

// What a product by lookup keeps between its passes over the columns.
constexpr int kLookupBlocks = 64, kLookupGroup = 32;  // blocks and tokens at once
constexpr int kLookupLeastBlocks = 16;                // for fewer, the tables cost more than they save
constexpr size_t kLookupTableBytes = 32 << 10, kLookupWeightBytes = 4 << 10;  // of a tile's tables, of a block's weights
constexpr size_t kProductScratch =
    kLookupTableBytes + kLookupBlocks * kLookupWeightBytes + static_cast<size_t>(kLookupGroup + 1) * kLookupBlocks * kBlockRows * 4;

constexpr int kAttendTokens = 8;  // query tokens that share one pass over the keys, all in one KV block
constexpr int kMostSegments = 64;

// Segments are longer where there would be too many of them.
inline int segment_blocks(int blocks) {
  int size = 1;
  while (blocks > kMostSegments * size) size *= 2;
  return size;
}

// A segment of `tokens`: sums of values, top scores and totals of each head.
inline size_t attention_part(int tokens, int heads, int dim) { return static_cast<size_t>(tokens) * heads * (dim + 2); }

// A part that grows, one segment, and scores.
inline size_t attention_scratch(int heads, int dim) {
  return 2 * attention_part(kAttendTokens, heads, dim) + static_cast<size_t>(kAttendTokens) * heads * kKvTokens;
}

int padded_columns(int32_t kind, int cols);
size_t matrix_block_bytes(int32_t kind, int cols);

const KernelTable* avx512vbmi_table();
const KernelTable* avx512_table();
const KernelTable* avxvnni_table();
const KernelTable* avx2_table();
const KernelTable* neondot_table();
const KernelTable* neon_table();
const KernelTable* scalar_table();

}  // namespace maple
