// Which of the compiled paths this processor runs.
#include "dispatch.h"

#include <initializer_list>

#include "maple_kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace maple {

namespace {

#if defined(__x86_64__)
struct X86 {
  bool avx2 = false, avx_vnni = false, avx512 = false, avx512_vbmi = false;
  X86() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    const bool fma = c & (1u << 12), osxsave = c & (1u << 27), f16c = c & (1u << 29);
    if (!osxsave || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    const bool ymm = (low & 6) == 6, zmm = (low & 0xe6) == 0xe6;  // the system saves these registers
    avx2 = ymm && fma && f16c && (b & (1u << 5));
    const unsigned wanted = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
    avx512 = avx2 && zmm && (b & wanted) == wanted && (c & (1u << 11));
    avx512_vbmi = avx512 && (c & (1u << 1));
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) avx_vnni = avx2 && (a & (1u << 4));
  }
};
#elif defined(__aarch64__)
bool has_dot_products() {
#if defined(__linux__)
  constexpr unsigned long kAsimdDp = 1ul << 20;  // HWCAP_ASIMDDP, which old headers do not name
  return getauxval(AT_HWCAP) & kAsimdDp;
#elif defined(__APPLE__)
  int found = 0;
  size_t size = sizeof found;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &found, &size, nullptr, 0) == 0 && found;
#else
  return false;
#endif
}
#endif

}  // namespace

int available_paths() {
  int paths = 1 << kPathScalar;
#if defined(__x86_64__)
  static const X86 cpu;
  if (cpu.avx2) paths |= 1 << kPathAvx2;
  if (cpu.avx_vnni) paths |= 1 << kPathAvxVnni;
  if (cpu.avx512) paths |= 1 << kPathAvx512;
  if (cpu.avx512_vbmi) paths |= 1 << kPathAvx512Vbmi;
#elif defined(__aarch64__)
  static const bool dot_products = has_dot_products();
  paths |= 1 << kPathNeon;
  if (dot_products) paths |= 1 << kPathNeonDot;
#endif
  return paths;
}

const KernelTable* kernel_table(int path) {
  if (path < 0)
    for (int best : {kPathAvx512Vbmi, kPathAvx512, kPathAvxVnni, kPathAvx2, kPathNeonDot, kPathNeon, kPathScalar})
      if (available_paths() & (1 << best)) return kernel_table(best);
  if (path < 0 || path >= kPaths || !(available_paths() & (1 << path))) return nullptr;
  switch (path) {
#if defined(__x86_64__)
    case kPathAvx512Vbmi: return avx512vbmi_table();
    case kPathAvx512: return avx512_table();
    case kPathAvxVnni: return avxvnni_table();
    case kPathAvx2: return avx2_table();
#elif defined(__aarch64__)
    case kPathNeonDot: return neondot_table();
    case kPathNeon: return neon_table();
#endif
    default: return scalar_table();
  }
}

}  // namespace maple

extern "C" {

int maple_abi_version(void) { return MAPLE_ABI_VERSION; }
int maple_paths(void) { return maple::available_paths(); }
const char* maple_path_name(int path) {
  const maple::KernelTable* table = maple::kernel_table(path);
  return table ? table->name : nullptr;
}
}
