// AVX2, FMA and F16C: eight lanes, two vectors per 16-row block. With MAPLE_AVX_VNNI the integer dot is one instruction.

typedef __m256 F;
typedef __m256i I;
constexpr int W = 8;
constexpr int kTileTokens = 2;  // with more the sums leave no registers for a second vector
constexpr int kPartSums = 8;
template <int T>
constexpr int tile_blocks() { return T == 1 ? 2 : 1; }
constexpr int kKeyVectors = 2;
#ifdef MAPLE_AVX_VNNI
constexpr int kInt8Offset = 128;
constexpr int kAccumulators = 8;
constexpr int kTernaryDots = 1 << 20, kAffineDots = 1 << 20;
#else
constexpr int kAccumulators = 0;
constexpr int kTernaryDots = 64;  // of pairs of at most 2 * 127, in 16 bits
constexpr int kAffineDots = 8;    // … 15 * 127
constexpr int kInt8Offset = 0;  // i_dot8 moves the offset into the sign instead: w + 128 as unsigned would saturate
#endif

static inline F f_load(const float* p) { return _mm256_loadu_ps(p); }
static inline void f_store(float* p, F a) { _mm256_storeu_ps(p, a); }
static inline F f_set1(float a) { return _mm256_set1_ps(a); }
static inline F f_zero() { return _mm256_setzero_ps(); }
static inline F f_add(F a, F b) { return _mm256_add_ps(a, b); }
static inline F f_sub(F a, F b) { return _mm256_sub_ps(a, b); }
static inline F f_mul(F a, F b) { return _mm256_mul_ps(a, b); }
static inline F f_div(F a, F b) { return _mm256_div_ps(a, b); }
static inline F f_fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
static inline F f_fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
static inline F f_max(F a, F b) { return _mm256_max_ps(a, b); }
static inline F f_min(F a, F b) { return _mm256_min_ps(a, b); }
static inline F f_from_i(I a) { return _mm256_cvtepi32_ps(a); }
static inline I f_round_i(F a) { return _mm256_cvtps_epi32(a); }
static inline I f_bits(F a) { return _mm256_castps_si256(a); }
static inline F f_from_bits(I a) { return _mm256_castsi256_ps(a); }
static inline F f_load_bf16(const void* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))), 16));
}
static inline F f_load_f16(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
static inline F f_load_i8(const void* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
}
static inline float f_sum(F a) {
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
static inline float f_hmax(F a) {
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

static inline I i_load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
static inline void i_store(void* p, I a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
static inline I i_mul(I a, I b) { return _mm256_mullo_epi32(a, b); }
static inline I i_keep(I a) {  // in a register, instead of one load for every use
  asm("" : "+x"(a));
  return a;
}
static inline I i_zero() { return _mm256_setzero_si256(); }
static inline I i_set1(int32_t a) { return _mm256_set1_epi32(a); }
static inline I i_broadcast(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}
template <int N>
static inline I i_srl(I a) { return N ? _mm256_srli_epi32(a, N) : a; }
template <int N>
static inline I i_sll(I a) { return N ? _mm256_slli_epi32(a, N) : a; }
template <int N>
static inline I i_sra(I a) { return N ? _mm256_srai_epi32(a, N) : a; }
static inline I i_and(I a, I b) { return _mm256_and_si256(a, b); }
static inline I i_add(I a, I b) { return _mm256_add_epi32(a, b); }
static inline I i_sub(I a, I b) { return _mm256_sub_epi32(a, b); }
static inline I i_max(I a, I b) { return _mm256_max_epi32(a, b); }
static inline int32_t i_sum(I a) {
  __m128i q = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
static inline int32_t i_hmax(I a) {
  __m128i q = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
typedef I N;  // sums of dots
static inline N n_zero() { return i_zero(); }
#ifdef MAPLE_AVX_VNNI
// Not the intrinsic: GCC 12 treats its sum as another register than its accumulator, copies and spills them in the tiles.
static inline I i_dot(I acc, I codes, I x) {
  asm("%{vex%} vpdpbusd\t%2, %1, %0" : "+x"(acc) : "x"(codes), "x"(x));
  return acc;
}
static inline I i_dot8(I acc, I codes, I x) { return i_dot(acc, codes, x); }
static inline N n_dot(N sum, I codes, I x) { return i_dot(sum, codes, x); }
static inline I n_whole(N sum) { return sum; }
template <int L>
static inline I n_fold(I wide, const N (&sum)[L]) {
  return L == 2 ? i_add(i_add(wide, i_sll<7>(sum[0])), sum[L - 1]) : i_add(wide, sum[0]);
}
#else
static inline I n_whole(N sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
static inline I i_widen(I acc, I pairs) { return i_add(acc, n_whole(pairs)); }
static inline I i_dot8(I acc, I codes, I x) {
  I w = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
  return i_widen(acc, _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)));
}
// Kept apart, or GCC adds the sums in an order of its own, on the stack.
static inline N n_dot(N sum, I codes, I x) { return i_keep(_mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x))); }
template <int L>
static inline I n_fold(I wide, const N (&sum)[L]) {
  if (L == 2) wide = i_add(wide, _mm256_madd_epi16(sum[0], _mm256_set1_epi16(128)));
  return i_widen(wide, sum[L - 1]);
}
#endif
static inline __m128i i_narrow(I a) {  // eight int32 lanes to eight bytes
  __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  return _mm_packs_epi16(words, words);
}
static inline void i_store_limbs(int8_t* p, I hi, I lo) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_unpacklo_epi32(i_narrow(hi), i_narrow(lo)));
}
static inline void i_store_limb(int8_t* p, I hi) { _mm_storel_epi64(reinterpret_cast<__m128i*>(p), i_narrow(hi)); }
static inline void f_store_f16(void* p, F a) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#define UNROLL _Pragma("GCC unroll 32")
