// NEON, which every arm64 processor has: four lanes, four vectors per 16-row block. With MAPLE_DOTPROD the integer dot is
// one instruction; without it, widening products and sums of pairs.

typedef float32x4_t F;
typedef int32x4_t I;
constexpr int W = 4;
constexpr int kTileTokens = 4;
#ifdef MAPLE_DOTPROD
constexpr int kAccumulators = 16, kPartSums = 16;
constexpr int kTernaryDots = 1 << 20, kAffineDots = 1 << 20;
#else
constexpr int kAccumulators = 0, kPartSums = 8;  // of two registers each
constexpr int kTernaryDots = 128;  // products of at most 2 * 127, in 16 bits
constexpr int kAffineDots = 16;    // … 15 * 127
#endif
template <int T>
constexpr int tile_blocks() { return 1; }
constexpr int kKeyVectors = 4;
constexpr int kInt8Offset = 0;  // i_dot8 takes the offset off the weights: all of NEON's products are of signed bytes

static inline F f_load(const float* p) { return vld1q_f32(p); }
static inline void f_store(float* p, F a) { vst1q_f32(p, a); }
static inline F f_set1(float a) { return vdupq_n_f32(a); }
static inline F f_zero() { return vdupq_n_f32(0.0f); }
static inline F f_add(F a, F b) { return vaddq_f32(a, b); }
static inline F f_sub(F a, F b) { return vsubq_f32(a, b); }
static inline F f_mul(F a, F b) { return vmulq_f32(a, b); }
static inline F f_div(F a, F b) { return vdivq_f32(a, b); }
static inline F f_fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
static inline F f_fnma(F a, F b, F c) { return vfmsq_f32(c, a, b); }
// The second operand unless the first is beyond it, as the other paths have it; NEON's own would differ for NaN and -0.
static inline F f_max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline F f_min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline F f_from_i(I a) { return vcvtq_f32_s32(a); }
static inline I f_round_i(F a) { return vcvtnq_s32_f32(a); }
static inline I f_bits(F a) { return vreinterpretq_s32_f32(a); }
static inline F f_from_bits(I a) { return vreinterpretq_f32_s32(a); }
static inline F f_load_bf16(const void* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(static_cast<const uint16_t*>(p)), 16));
}
static inline F f_load_f16(const void* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(static_cast<const uint16_t*>(p))));
}
static inline F f_load_i8(const void* p) {
  uint32_t word;
  __builtin_memcpy(&word, p, 4);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(word))))));
}
static inline float f_sum(F a) {
  const float32x2_t pairs = vadd_f32(vget_low_f32(a), vget_high_f32(a));
  return vget_lane_f32(pairs, 0) + vget_lane_f32(pairs, 1);
}
static inline float f_hmax(F a) { return vmaxvq_f32(a); }

static inline I i_load(const void* p) { return vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(p))); }
static inline I i_keep(I a) {  // in a register, instead of one load for every use
  asm("" : "+w"(a));
  return a;
}
static inline I i_zero() { return vdupq_n_s32(0); }
static inline I i_set1(int32_t a) { return vdupq_n_s32(a); }
static inline I i_broadcast(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return vdupq_n_s32(word);
}
template <int N>
static inline I i_srl(I a) {
  if constexpr (N == 0) return a;
  else return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), N));
}
template <int N>
static inline I i_sll(I a) { return vshlq_n_s32(a, N); }
template <int N>
static inline I i_sra(I a) {
  if constexpr (N == 0) return a;
  else return vshrq_n_s32(a, N);
}
static inline I i_and(I a, I b) { return vandq_s32(a, b); }
static inline I i_add(I a, I b) { return vaddq_s32(a, b); }
static inline I i_sub(I a, I b) { return vsubq_s32(a, b); }
static inline I i_max(I a, I b) { return vmaxq_s32(a, b); }
static inline int32_t i_sum(I a) { return vaddvq_s32(a); }
static inline int32_t i_hmax(I a) { return vmaxvq_s32(a); }
static inline I i_dot_signed(I acc, int8x16_t w, int8x16_t x) {
#ifdef MAPLE_DOTPROD
  return vdotq_s32(acc, w, x);
#else
  // No pair overflows: limbs stay within 127 of zero and weights within 128.
  const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
  return vpadalq_s16(acc, vpaddq_s16(low, high));
#endif
}
#ifdef MAPLE_DOTPROD
typedef I N;  // sums of dots
static inline N n_zero() { return i_zero(); }
static inline N n_dot(N sum, I codes, I x) {
  return i_dot_signed(sum, vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(x));
}
template <int L>
static inline I n_fold(I wide, const N (&sum)[L]) {
  return L == 2 ? i_add(i_add(wide, i_sll<7>(sum[0])), sum[L - 1]) : i_add(wide, sum[0]);
}
#else
struct N { int16x8_t low, high; };  // sums of the products of a byte each, two rows in either
static inline N n_zero() { return {vdupq_n_s16(0), vdupq_n_s16(0)}; }
static inline N n_dot(N sum, I codes, I x) {
  const int8x16_t c = vreinterpretq_s8_s32(codes), b = vreinterpretq_s8_s32(x);
  return {vmlal_s8(sum.low, vget_low_s8(c), vget_low_s8(b)), vmlal_high_s8(sum.high, c, b)};
}
static inline I n_rows(N sum) { return vpaddq_s32(vpaddlq_s16(sum.low), vpaddlq_s16(sum.high)); }
template <int L>
static inline I n_fold(I wide, const N (&sum)[L]) {
  if (L == 2) wide = i_add(wide, i_sll<7>(n_rows(sum[0])));
  return i_add(wide, n_rows(sum[L - 1]));
}
#endif
static inline I i_dot8(I acc, I codes, I x) {
  const uint8x16_t weights = veorq_u8(vreinterpretq_u8_s32(codes), vdupq_n_u8(0x80));
  return i_dot_signed(acc, vreinterpretq_s8_u8(weights), vreinterpretq_s8_s32(x));
}
// Four consecutive columns: four hi bytes, then four lo bytes.
static inline void i_store_limbs(int8_t* p, I hi, I lo) {
  vst1_s8(p, vmovn_s16(vcombine_s16(vmovn_s32(hi), vmovn_s32(lo))));
}
static inline void i_store_limb(int8_t* p, I hi) {
  const int16x4_t words = vmovn_s32(hi);
  const int32_t bytes = vget_lane_s32(vreinterpret_s32_s8(vmovn_s16(vcombine_s16(words, words))), 0);
  __builtin_memcpy(p, &bytes, 4);
}
static inline void f_store_f16(void* p, F a) {
  vst1_u16(static_cast<uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(a)));
}

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
