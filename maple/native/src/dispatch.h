// The paths there may be, and which of them this processor runs.
#pragma once

#include "kernel_table.h"

namespace maple {

enum Path { kPathScalar, kPathAvx2, kPathAvxVnni, kPathAvx512, kPathNeon, kPathNeonDot, kPathAvx512Vbmi, kPaths };

int available_paths();                      // bit i: path i runs here
const KernelTable* kernel_table(int path);  // the best one for a negative path; null where it cannot run

}  // namespace maple
