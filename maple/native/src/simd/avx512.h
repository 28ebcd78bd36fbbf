// AVX-512 with VNNI: sixteen lanes, one vector per 16-row block.

typedef __m512 F;
typedef __m512i I;
constexpr int W = 16;
constexpr int kTileTokens = 4;
constexpr int kAccumulators = 16, kPartSums = 16;  // with 24 the compiler spills
constexpr int kTernaryDots = 1 << 20, kAffineDots = 1 << 20;
template <int T>
constexpr int tile_blocks() { return 2; }
constexpr int kKeyVectors = 4;
constexpr int kInt8Offset = 128;  // i_dot8 takes w + 128 as unsigned

static inline F f_load(const float* p) { return _mm512_loadu_ps(p); }
static inline void f_store(float* p, F a) { _mm512_storeu_ps(p, a); }
static inline F f_set1(float a) { return _mm512_set1_ps(a); }
static inline F f_zero() { return _mm512_setzero_ps(); }
static inline F f_add(F a, F b) { return _mm512_add_ps(a, b); }
static inline F f_sub(F a, F b) { return _mm512_sub_ps(a, b); }
static inline F f_mul(F a, F b) { return _mm512_mul_ps(a, b); }
static inline F f_div(F a, F b) { return _mm512_div_ps(a, b); }
static inline F f_fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
static inline F f_fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
static inline F f_max(F a, F b) { return _mm512_max_ps(a, b); }
static inline F f_min(F a, F b) { return _mm512_min_ps(a, b); }
static inline F f_from_i(I a) { return _mm512_cvtepi32_ps(a); }
static inline I f_round_i(F a) { return _mm512_cvtps_epi32(a); }
static inline I f_bits(F a) { return _mm512_castps_si512(a); }
static inline F f_from_bits(I a) { return _mm512_castsi512_ps(a); }
static inline F f_load_bf16(const void* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 16));
}
static inline F f_load_f16(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
static inline F f_load_i8(const void* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
}
static inline float f_sum(F a) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
static inline float f_hmax(F a) {
  __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

static inline I i_load(const void* p) { return _mm512_loadu_si512(p); }
static inline I i_keep(I a) {  // in a register, instead of one load for every use
  asm("" : "+v"(a));
  return a;
}
static inline I i_zero() { return _mm512_setzero_si512(); }
static inline I i_set1(int32_t a) { return _mm512_set1_epi32(a); }
static inline I i_broadcast(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}
template <int N>
static inline I i_srl(I a) { return N ? _mm512_srli_epi32(a, N) : a; }
template <int N>
static inline I i_sll(I a) { return N ? _mm512_slli_epi32(a, N) : a; }
template <int N>
static inline I i_sra(I a) { return N ? _mm512_srai_epi32(a, N) : a; }
static inline I i_and(I a, I b) { return _mm512_and_si512(a, b); }
static inline I i_add(I a, I b) { return _mm512_add_epi32(a, b); }
static inline I i_sub(I a, I b) { return _mm512_sub_epi32(a, b); }
static inline I i_max(I a, I b) { return _mm512_max_epi32(a, b); }
static inline int32_t i_sum(I a) { return _mm512_reduce_add_epi32(a); }
static inline int32_t i_hmax(I a) { return _mm512_reduce_max_epi32(a); }
// Not the intrinsic: GCC 12 treats its sum as another register than its accumulator, copies and spills them in the tiles.
static inline I i_dot(I acc, I codes, I x) {
  asm("vpdpbusd\t%2, %1, %0" : "+v"(acc) : "v"(codes), "v"(x));
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
// Sixteen consecutive columns: per four columns four hi bytes, then four lo bytes.
static inline void i_store_limbs(int8_t* p, I hi, I lo) {
  __m128i h = _mm512_cvtepi32_epi8(hi), l = _mm512_cvtepi32_epi8(lo);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_unpacklo_epi32(h, l));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16), _mm_unpackhi_epi32(h, l));
}
static inline void i_store_limb(int8_t* p, I hi) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(hi));
}
static inline void f_store_f16(void* p, F a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline I i_mul(I a, I b) { return _mm512_mullo_epi32(a, b); }
static inline I i_or(I a, I b) { return _mm512_or_si512(a, b); }

#define UNROLL _Pragma("GCC unroll 32")
