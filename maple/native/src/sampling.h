// How the next id is chosen from a row of logits; the rules and every operation's order are those of
// maple/engine/sampling.py, so that both choose the same id.
#pragma once

#include <cstdint>
#include <vector>

#include "maple_kernels.h"

namespace maple {

// Room for one row, kept between rows.
struct SamplingScratch {
  std::vector<float> scores;      // [limit], after penalties, bias and mask
  std::vector<float> maxima;      // of groups of scores
  std::vector<float> candidates;  // with a small top-k, the scores that may be drawn, by id
  std::vector<int32_t> ids;       // and their ids
  std::vector<int32_t> bins;
  std::vector<int> inside;        // the bin that a cut falls into
  std::vector<double> sums;       // of weights by bin, in four lanes
  std::vector<double> weights;    // e^((score - highest) / temperature), 0 where top-p or min-p rule out
};

// The id of a row of `limit` logits, or -1 where none can be chosen: a NaN, +inf, or nothing but -inf.
int32_t sample_row(const maple_sampling& row, int limit, SamplingScratch& scratch);

}  // namespace maple
