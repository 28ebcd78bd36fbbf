// The C interface over the model.
#include <new>
#include <vector>

#include "dispatch.h"
#include "failure.h"
#include "maple_kernels.h"
#include "model.h"
#include "sampling.h"

using namespace maple;

struct maple_context {
  std::unique_ptr<Model> model;
};

static SamplingScratch& thread_scratch() {
  static thread_local SamplingScratch scratch;
  return scratch;
}

extern "C" {

maple_context* maple_create(const maple_config* config, const maple_layer* layers, const maple_embedding* embedding,
                            const float* final_norm, const maple_matrix* head, int path, char* error) {
  const KernelTable* kernels = kernel_table(path);
  if (!kernels) {
    fail(error, "path %d cannot run on this processor", path);
    return nullptr;
  }
  try {
    std::unique_ptr<Model> model = Model::create(*config, layers, *embedding, final_norm, *head, kernels, error);
    return model ? new maple_context{std::move(model)} : nullptr;
  } catch (const std::exception& e) {  // no memory, or no more threads
    fail(error, "%s", e.what());
    return nullptr;
  }
}

void maple_destroy(maple_context* context) { delete context; }

int maple_step(maple_context* context, const maple_slice* slices, int count, float* logits, char* error) {
  return context->model->step(slices, count, logits, error);
}

int maple_sample(maple_context* context, maple_sampling* rows, int count, int limit, char* error) {
  if (count < 0 || limit < 1) return fail(error, "sampling: %d rows of %d ids", count, limit);
  Pool& pool = context->model->pool();
  pool.parallel(count, [&](int row, int) { rows[row].chosen = sample_row(rows[row], limit, thread_scratch()); });
  return 0;
}

int64_t maple_kv_block_bytes(const maple_context* context, int sliding) {
  return static_cast<int64_t>(context->model->kv_block_bytes(sliding != 0));
}

void* maple_kv_block(maple_context* context, int sliding, int32_t block) {
  return context->model->kv_block(sliding != 0, block);
}

int maple_linear(const maple_matrix* m, const float* x, int32_t count, float* y, int32_t activations, int path, char* error) {
  const KernelTable* kernels = kernel_table(path);
  if (!kernels) return fail(error, "path %d cannot run on this processor", path);
  if (m->count != 1 || count < 1 || activations < kActFp32 || activations > kActInt8x2 || m->cols > 32768 ||
      m->bytes != maple_matrix_bytes(m->kind, m->rows, m->cols))
    return fail(error, "linear: %d matrices, %d rows of input, %lld bytes", m->count, count, static_cast<long long>(m->bytes));
  const int padded = padded_columns(m->kind, m->cols);
  const size_t stride = static_cast<size_t>(padded), blocks = static_cast<size_t>(m->rows + kBlockRows - 1) / kBlockRows;
  std::vector<float> input(stride * count, 0.0f), output(blocks * kBlockRows * count);
  std::vector<int8_t> limbs(stride * count * 2);
  std::vector<Row> rows(static_cast<size_t>(count));
  std::vector<const Row*> inputs;
  std::vector<float*> outputs;
  for (int t = 0; t < count; ++t) {
    for (int k = 0; k < m->cols; ++k) input[t * stride + k] = x[static_cast<size_t>(t) * m->cols + k];
    kernels->quantize(&input[t * stride], padded, activations, &limbs[t * stride * 2],
                      &rows[t]);
    inputs.push_back(&rows[t]);
    outputs.push_back(&output[t * blocks * kBlockRows]);
  }
  const Matrix matrix{static_cast<const uint8_t*>(m->blocks), m->kind, padded, matrix_block_bytes(m->kind, m->cols)};
  std::vector<uint8_t> scratch(kProductScratch);
  const size_t groups = m->kind == kAffine4 ? stride / kGroup : 0;
  std::vector<float> sums(groups * count);
  for (int t = 0; t < count && groups; ++t) kernels->group_sums(&rows[t], padded, activations, &sums[t * groups]);
  kernels->matmul(matrix, 0, static_cast<int>(blocks), activations, inputs.data(), count, {outputs.data(), nullptr},
                  scratch.data());
  for (int t = 0; t < count; ++t)
    for (int r = 0; r < m->rows; ++r) y[static_cast<size_t>(t) * m->rows + r] = output[t * blocks * kBlockRows + r];
  return 0;
}
}
