// Sampling: one pass for the maximum, one for the weights, and a cut that sorts no more than a few ids.
//
// Sums are double, in blocks of kBlock weights of four lanes each, so that they come out alike however the compiler
// vectorises them and in numpy; this file is compiled without contraction into fused operations.
#include "sampling.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define MAPLE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MAPLE_CLONES
#endif

namespace maple {
namespace {

constexpr int kBlock = 256, kLanes = 4, kBins = 2048, kFew = 64;
constexpr int kGroup = 64;        // scores a group when the largest are looked for by their groups' maxima
constexpr int kFewLargest = 1024;  // up to so many are gathered, more are cut off where they stand
constexpr double kReach = 40.0;  // in temperatures below the highest: e^-40 of its weight is nothing
constexpr float kNone = -std::numeric_limits<float>::infinity();

float clamped(double value) { return static_cast<float>(std::min<double>(FLT_MAX, std::max<double>(-FLT_MAX, value))); }

void edit(const maple_sampling& row, int limit, float* s) {
  std::memcpy(s, row.logits, sizeof(float) * static_cast<size_t>(limit));
  for (int i = 0; i < row.seen_count; ++i) {
    float& x = s[row.seen[i]];
    if (std::isfinite(x)) x = clamped(x < 0 ? x * row.repetition : x / row.repetition);
  }
  for (int i = 0; i < row.counted_count; ++i) {
    float& x = s[row.counted[i]];
    if (std::isfinite(x)) x = clamped(x - (row.frequency * row.counts[i] + row.presence));
  }
  for (int i = 0; i < row.bias_count; ++i) {
    float& x = s[row.biased[i]];
    if (row.bias[i] <= -100) x = kNone;
    else if (std::isfinite(x)) x = clamped(x + row.bias[i]);
  }
  if (row.mask)
    for (int i = 0; i < limit; ++i)
      if (!(row.mask[i / 32] >> (i % 32) & 1)) s[i] = kNone;
}

// The highest of each group, the last of which may be short; NaN where it has one.
MAPLE_CLONES void maxima_of(const float* s, int n, float* maxima) {
  constexpr int kWide = 16;
  for (int begin = 0; begin < n; begin += kGroup) {
    const int size = std::min(kGroup, n - begin);
    float lane[kWide];
    int bad[kWide] = {};
    for (float& one : lane) one = kNone;
    int i = 0;
    for (; i + kWide <= size; i += kWide)
      for (int l = 0; l < kWide; ++l) {
        const float x = s[begin + i + l];
        lane[l] = x > lane[l] ? x : lane[l];
        bad[l] |= x != x;
      }
    for (int l = 0; i < size; ++i, ++l) {
      lane[l] = std::max(lane[l], s[begin + i]);
      bad[l] |= s[begin + i] != s[begin + i];
    }
    float highest = kNone;
    int any = 0;
    for (int l = 0; l < kWide; ++l) highest = std::max(highest, lane[l]), any |= bad[l];
    *maxima++ = any ? std::numeric_limits<float>::quiet_NaN() : highest;
  }
}

// e^x for x <= 0 to about 1e-13, by the same operations as in numpy; 0 below -700.
inline double exponential(double x) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to a whole number
  const double at = x > -700.0 ? x : -700.0;
  const double k = (at * 1.4426950408889634 + kRound) - kRound;
  const double r = (at - k * 0.6931471803691238) - k * 1.9082149292705877e-10;
  double p = 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // k + 1023 in the exponent's place: its low bits stand in the low bits of k + kRound.
  double biased = k + (kRound + 1023.0);
  uint64_t bits;
  std::memcpy(&bits, &biased, sizeof bits);
  bits <<= 52;
  double scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return x > -700.0 ? p * scale : 0.0;
}

MAPLE_CLONES void weigh(const float* s, int n, double highest, double temperature, double* w) {
  for (int i = 0; i < n; ++i) w[i] = exponential((s[i] - highest) / temperature);
}

MAPLE_CLONES double block_sum(const double* w) {
  double lane[kLanes] = {0, 0, 0, 0};
  for (int i = 0; i < kBlock; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lane[l] += w[i + l];
  return (lane[0] + lane[1]) + (lane[2] + lane[3]);
}

double total_of(const double* w, int padded) {
  double total = 0;
  for (int i = 0; i < padded; i += kBlock) total += block_sum(w + i);
  return total;
}

// Bins of scores, 0 for the highest: what is `scale` times as far below it, in whole numbers.
MAPLE_CLONES void bins_of(const float* s, int n, double high, double scale, int32_t* bins) {
  for (int i = 0; i < n; ++i) {
    const double at = (high - s[i]) * scale;
    bins[i] = static_cast<int32_t>(at < kBins - 1 ? at : kBins - 1);
  }
}

MAPLE_CLONES void zero_after(const float* s, double* w, int n, float edge, int last) {
  for (int i = 0; i < n; ++i) w[i] = (s[i] > edge) | ((s[i] == edge) & (i <= last)) ? w[i] : 0.0;
}

// Sets the weights to 0 of all that come after the first, best first and of equals the lower id, to reach `wanted`.
void cut(const float* s, double* w, int n, double highest, double temperature, double wanted, SamplingScratch& scratch) {
  std::vector<int>& all = scratch.inside;
  std::vector<float> some;
  std::vector<double>& sums = scratch.sums;
  scratch.bins.resize(static_cast<size_t>(n));
  int32_t* bins = scratch.bins.data();
  double high = highest, low = highest - kReach * temperature, reached = 0;
  for (bool first = true; first || (all.size() > kFew && high != low); first = false) {
    const int count = first ? n : static_cast<int>(all.size());
    const double scale = high > low ? (kBins - 1) / (high - low) : 1e300;
    if (!first) {
      some.clear();
      for (int i : all) some.push_back(s[i]);
    }
    bins_of(first ? s : some.data(), count, high, scale, bins);
    sums.assign(kBins * kLanes, 0.0);
    for (int j = 0; j < count; ++j) sums[static_cast<size_t>(j % kLanes * kBins + bins[j])] += w[first ? j : all[static_cast<size_t>(j)]];
    int bin = 0;
    for (; bin < kBins - 1; ++bin) {
      const double sum = (sums[bin] + sums[kBins + bin]) + (sums[2 * kBins + bin] + sums[3 * kBins + bin]);
      if (reached + sum >= wanted) break;
      reached += sum;
    }
    if (first && bin == kBins - 1) return;  // only what weighs nothing could be cut
    int kept = 0;
    if (first) all.resize(static_cast<size_t>(n));
    for (int j = 0; j < count; ++j) {
      const int i = first ? j : all[static_cast<size_t>(j)];
      all[static_cast<size_t>(kept)] = i;
      kept += bins[j] == bin;
    }
    all.resize(static_cast<size_t>(kept));
    if (all.empty()) return;
    high = kNone, low = -static_cast<double>(kNone);
    for (int i : all) high = std::max<double>(high, s[i]), low = std::min<double>(low, s[i]);
  }
  std::stable_sort(all.begin(), all.end(), [s](int a, int b) { return s[a] > s[b]; });
  size_t at = 0;
  for (reached += w[all[0]]; reached < wanted && at + 1 < all.size();) reached += w[all[++at]];
  zero_after(s, w, n, s[all[at]], all[at]);
}

int draw(const double* w, int padded, double fraction) {
  const double target = fraction * total_of(w, padded);
  double before = 0;
  int block = 0, chosen = 0;
  for (; block + kBlock < padded; block += kBlock) {
    const double sum = before + block_sum(w + block);
    if (sum > target) break;
    before = sum;
  }
  for (int i = block; i < block + kBlock; ++i) {
    if (w[i] == 0) continue;
    before += w[i];
    chosen = i;
    if (before > target) return chosen;
  }
  for (int i = block + kBlock - 1; i >= 0; --i)  // rounding has left nothing: the last that can be drawn
    if (w[i] != 0) return i;
  return chosen;
}

// The scores that are at least the count-th largest, by id. Each of the `count` largest maxima of groups is such a score,
// so only groups that reach the count-th of them are looked into.
void gather_largest(const float* s, int n, int count, SamplingScratch& scratch) {
  std::vector<float> ranked(scratch.maxima);
  float bound = kNone;
  if (count <= static_cast<int>(ranked.size())) {
    std::nth_element(ranked.begin(), ranked.begin() + (count - 1), ranked.end(), std::greater<float>());
    bound = ranked[static_cast<size_t>(count - 1)];
  }
  scratch.ids.clear(), scratch.candidates.clear();
  for (size_t group = 0; group < scratch.maxima.size(); ++group) {
    if (scratch.maxima[group] < bound) continue;
    const int begin = static_cast<int>(group) * kGroup, end = std::min(n, begin + kGroup);
    for (int i = begin; i < end; ++i)
      if (s[i] >= bound) scratch.ids.push_back(i), scratch.candidates.push_back(s[i]);
  }
  ranked = scratch.candidates;
  std::nth_element(ranked.begin(), ranked.begin() + (count - 1), ranked.end(), std::greater<float>());
  size_t kept = 0;
  for (size_t i = 0; i < scratch.ids.size(); ++i)
    if (scratch.candidates[i] >= ranked[static_cast<size_t>(count - 1)])
      scratch.ids[kept] = scratch.ids[i], scratch.candidates[kept++] = scratch.candidates[i];
  scratch.ids.resize(kept), scratch.candidates.resize(kept);
}

// The count-th largest score: looked for in bins, and in bins of the bin that it lies in.
float nth_largest(const float* s, int n, int count, float highest, SamplingScratch& scratch) {
  std::vector<float>& some = scratch.candidates;
  scratch.bins.resize(static_cast<size_t>(n));
  int32_t* bins = scratch.bins.data();
  double high = highest, low = high;
  for (int i = 0; i < n; ++i) low = s[i] > kNone && s[i] < low ? s[i] : low;
  some.assign(s, s + n);
  while (some.size() > kFew && high > low) {
    bins_of(some.data(), static_cast<int>(some.size()), high, (kBins - 1) / (high - low), bins);
    std::vector<int> counts(kBins * kLanes);
    for (size_t j = 0; j < some.size(); ++j) ++counts[j % kLanes * kBins + static_cast<size_t>(bins[j])];
    int bin = 0;
    for (;; ++bin) {
      const int sum = counts[bin] + counts[kBins + bin] + counts[2 * kBins + bin] + counts[3 * kBins + bin];
      if (count <= sum) break;
      count -= sum;
    }
    size_t kept = 0;
    for (size_t j = 0; j < some.size(); ++j) {
      const float x = some[j];
      some[kept] = x;
      kept += bins[j] == bin;
    }
    some.resize(kept);
    high = *std::max_element(some.begin(), some.end());
    low = *std::min_element(some.begin(), some.end());
    if (!std::isfinite(low)) break;
  }
  std::nth_element(some.begin(), some.begin() + (count - 1), some.end(), std::greater<float>());
  return some[static_cast<size_t>(count - 1)];
}

MAPLE_CLONES void zero_below(const float* s, double* w, int n, float edge) {
  for (int i = 0; i < n; ++i) w[i] = s[i] < edge ? 0.0 : w[i];
}

}  // namespace

int32_t sample_row(const maple_sampling& row, int limit, SamplingScratch& scratch) {
  const float* s = row.logits;
  if (row.seen_count || row.counted_count || row.bias_count || row.mask) {
    scratch.scores.resize(static_cast<size_t>(limit));
    edit(row, limit, scratch.scores.data());
    s = scratch.scores.data();
  }
  scratch.maxima.resize(static_cast<size_t>((limit + kGroup - 1) / kGroup));
  maxima_of(s, limit, scratch.maxima.data());
  float highest = kNone;
  for (float one : scratch.maxima) {
    if (std::isnan(one)) return -1;
    highest = std::max(highest, one);
  }
  if (!std::isfinite(highest)) return -1;
  if (row.temperature == 0) {
    int i = static_cast<int>(std::find(scratch.maxima.begin(), scratch.maxima.end(), highest) - scratch.maxima.begin()) * kGroup;
    while (s[i] != highest) ++i;
    return i;
  }
  int n = limit;
  const bool limited = row.top_k > 0 && row.top_k < limit, few = limited && row.top_k <= kFewLargest;
  float edge = kNone;
  if (few) {
    gather_largest(s, limit, row.top_k, scratch);
    s = scratch.candidates.data(), n = static_cast<int>(scratch.ids.size());
  } else if (limited) {
    edge = nth_largest(s, limit, row.top_k, highest, scratch);
  }
  const int padded = (n + kBlock - 1) / kBlock * kBlock;
  scratch.weights.resize(static_cast<size_t>(padded));
  double* w = scratch.weights.data();
  std::fill(w + n, w + padded, 0.0);
  weigh(s, n, highest, row.temperature, w);
  if (edge > kNone) zero_below(s, w, n, edge);
  if (row.top_p < 1) cut(s, w, n, highest, row.temperature, row.top_p * total_of(w, padded), scratch);
  if (row.min_p > 0)
    for (int i = 0; i < n; ++i)
      if (w[i] < row.min_p) w[i] = 0;
  const int chosen = draw(w, padded, row.fraction);
  return few ? scratch.ids[static_cast<size_t>(chosen)] : chosen;
}

}  // namespace maple
