// How many chunks each phase of a one-token step has: for tests, and for the model of many cores.
#include "chunks.h"

#include "maple_kernels.h"

using namespace maple;

namespace {

int matrix_chunks(int kind, int rows, int cols, int threads) {
  const int blocks = chunks_of(rows, kBlockRows);
  return chunks_of(blocks, block_chunk(blocks, matrix_block_bytes(kind, cols), threads));
}

int attention_chunks(const maple_config& c, int position, int window) {
  const int newest = position / kKvTokens, oldest = window ? std::max(0, position - window + 1) / kKvTokens : 0;
  const int blocks = segment_blocks(window ? window / kKvTokens + 2 : newest + 1);
  const int segments = newest / blocks + 1 - oldest / blocks;
  return c.kv_heads * chunks_of(segments, segment_chunk(segments, c.kv_heads, c.threads));
}

}  // namespace

extern "C" void maple_phase_chunks(const maple_config* c, int32_t position, int32_t head_kind, int32_t* counts) {
  const int threads = c->threads, query = c->heads * c->head_dim, width = chunks_of(c->expert_width, kBlockRows);
  const int units = kRouterParts * chunks_of(c->experts, kBlockRows), hidden = chunks_of(c->hidden, kBlockRows);
  *counts++ = matrix_chunks(kTernary, query + 2 * c->kv_heads * c->head_dim, c->hidden, threads);
  *counts++ = attention_chunks(*c, position, c->window);
  *counts++ = attention_chunks(*c, position, 0);
  *counts++ = matrix_chunks(kTernary, c->hidden, query, threads);
  *counts++ = chunks_of(units, fair_chunk(units, threads, units / 4));
  *counts++ = c->experts_per_token * chunks_of(2 * width, gate_up_chunk(c->experts_per_token, 2 * width, threads, false));
  *counts++ = chunks_of(hidden, down_chunk(hidden, threads, 1, false));
  *counts++ = matrix_chunks(head_kind, c->vocabulary, c->hidden, threads);
}
