// Portable: four lanes in plain arrays, for any compiler and processor. The reference the other paths are tested against.

constexpr int W = 4;
struct F { float v[W]; };
struct I { int32_t v[W]; };
constexpr int kTileTokens = 3;
constexpr int kAccumulators = 0, kPartSums = 4;
constexpr int kTernaryDots = 1 << 20, kAffineDots = 1 << 20;
template <int T>
constexpr int tile_blocks() { return 1; }
constexpr int kKeyVectors = 4;
constexpr int kInt8Offset = 128;

#define MAPLE_LANES(T, expression) \
  T r;                             \
  for (int i = 0; i < W; ++i) r.v[i] = expression; \
  return r

static inline F f_load(const float* p) { MAPLE_LANES(F, p[i]); }
static inline void f_store(float* p, F a) { __builtin_memcpy(p, a.v, sizeof a.v); }
static inline F f_set1(float a) { MAPLE_LANES(F, a); }
static inline F f_zero() { return f_set1(0.0f); }
static inline F f_add(F a, F b) { MAPLE_LANES(F, a.v[i] + b.v[i]); }
static inline F f_sub(F a, F b) { MAPLE_LANES(F, a.v[i] - b.v[i]); }
static inline F f_mul(F a, F b) { MAPLE_LANES(F, a.v[i] * b.v[i]); }
static inline F f_div(F a, F b) { MAPLE_LANES(F, a.v[i] / b.v[i]); }
// One rounding, as the vector paths have it; where the compiler has no instruction for that, the C library decides.
static inline F f_fma(F a, F b, F c) { MAPLE_LANES(F, __builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
static inline F f_fnma(F a, F b, F c) { MAPLE_LANES(F, __builtin_fmaf(-a.v[i], b.v[i], c.v[i])); }
static inline F f_max(F a, F b) { MAPLE_LANES(F, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
static inline F f_min(F a, F b) { MAPLE_LANES(F, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
static inline F f_from_i(I a) { MAPLE_LANES(F, static_cast<float>(a.v[i])); }
static inline I f_round_i(F a) { MAPLE_LANES(I, static_cast<int32_t>(std::nearbyintf(a.v[i]))); }
static inline I f_bits(F a) {
  I r;
  __builtin_memcpy(r.v, a.v, sizeof r.v);
  return r;
}
static inline F f_from_bits(I a) {
  F r;
  __builtin_memcpy(r.v, a.v, sizeof r.v);
  return r;
}
static inline F f_load_bf16(const void* p) {
  I r;
  for (int i = 0; i < W; ++i) {
    uint16_t half;
    __builtin_memcpy(&half, static_cast<const char*>(p) + 2 * i, 2);
    r.v[i] = static_cast<int32_t>(static_cast<uint32_t>(half) << 16);
  }
  return f_from_bits(r);
}
static inline float half_to_float(uint16_t h) {
  uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff, bits;
  if (exponent == 0) {
    float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return sign ? -value : value;
  }
  bits = exponent == 31 ? sign | 0x7f800000u | (mantissa << 13) : sign | ((exponent + 112) << 23) | (mantissa << 13);
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
static inline uint16_t float_to_half(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x7f800000) return sign | (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00);
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to 65536 or more
  if (magnitude < 0x38800000) {                       // below 2^-14: the subnormal grid of 2^-24
    float scaled;
    __builtin_memcpy(&scaled, &magnitude, 4);
    return sign | static_cast<uint16_t>(std::nearbyintf(scaled * 16777216.0f));
  }
  uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded - 0x38000000) >> 13);
}
static inline F f_load_f16(const void* p) {
  F r;
  for (int i = 0; i < W; ++i) {
    uint16_t half;
    __builtin_memcpy(&half, static_cast<const char*>(p) + 2 * i, 2);
    r.v[i] = half_to_float(half);
  }
  return r;
}
static inline F f_load_i8(const void* p) { MAPLE_LANES(F, static_cast<float>(static_cast<const int8_t*>(p)[i])); }
static inline float f_sum(F a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
static inline float f_hmax(F a) {
  float m = a.v[0];
  for (int i = 1; i < W; ++i) m = m > a.v[i] ? m : a.v[i];
  return m;
}

static inline I i_load(const void* p) {
  I r;
  __builtin_memcpy(r.v, p, sizeof r.v);
  return r;
}
static inline I i_set1(int32_t a) { MAPLE_LANES(I, a); }
static inline I i_keep(I a) { return a; }
static inline I i_zero() { return i_set1(0); }
static inline I i_broadcast(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return i_set1(word);
}
template <int N>
static inline I i_srl(I a) { MAPLE_LANES(I, static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) >> N)); }
template <int N>
static inline I i_sll(I a) { MAPLE_LANES(I, static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << N)); }
template <int N>
static inline I i_sra(I a) { MAPLE_LANES(I, a.v[i] >> N); }
static inline I i_and(I a, I b) { MAPLE_LANES(I, a.v[i] & b.v[i]); }
static inline I i_add(I a, I b) { MAPLE_LANES(I, a.v[i] + b.v[i]); }
static inline I i_sub(I a, I b) { MAPLE_LANES(I, a.v[i] - b.v[i]); }
static inline I i_max(I a, I b) { MAPLE_LANES(I, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
static inline int32_t i_sum(I a) { return a.v[0] + a.v[1] + a.v[2] + a.v[3]; }
static inline int32_t i_hmax(I a) {
  int32_t m = a.v[0];
  for (int i = 1; i < W; ++i) m = m > a.v[i] ? m : a.v[i];
  return m;
}
static inline I i_dot(I acc, I codes, I x) {
  uint8_t c[4 * W];
  int8_t b[4 * W];
  __builtin_memcpy(c, codes.v, sizeof c);
  __builtin_memcpy(b, x.v, sizeof b);
  for (int i = 0; i < W; ++i)
    acc.v[i] += c[4 * i] * b[4 * i] + c[4 * i + 1] * b[4 * i + 1] + c[4 * i + 2] * b[4 * i + 2] + c[4 * i + 3] * b[4 * i + 3];
  return acc;
}
static inline I i_dot8(I acc, I codes, I x) { return i_dot(acc, codes, x); }
typedef I N;  // sums of dots
static inline N n_zero() { return i_zero(); }
static inline N n_dot(N sum, I codes, I x) { return i_dot(sum, codes, x); }
template <int L>
static inline I n_fold(I wide, const N (&sum)[L]) {
  return L == 2 ? i_add(i_add(wide, i_sll<7>(sum[0])), sum[L - 1]) : i_add(wide, sum[0]);
}
static inline void i_store_limbs(int8_t* p, I hi, I lo) {
  for (int i = 0; i < W; ++i) {
    p[i] = static_cast<int8_t>(hi.v[i]);
    p[4 + i] = static_cast<int8_t>(lo.v[i]);
  }
}
static inline void i_store_limb(int8_t* p, I hi) {
  for (int i = 0; i < W; ++i) p[i] = static_cast<int8_t>(hi.v[i]);
}
static inline void f_store_f16(void* p, F a) {
  for (int i = 0; i < W; ++i) {
    uint16_t half = float_to_half(a.v[i]);
    __builtin_memcpy(static_cast<char*>(p) + 2 * i, &half, 2);
  }
}
#undef MAPLE_LANES

#define UNROLL
