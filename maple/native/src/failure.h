// One line of explanation for the caller, and the code that goes with it.
#pragma once

#include <cstdarg>
#include <cstdio>

#include "maple_kernels.h"

namespace maple {

__attribute__((format(printf, 2, 3))) inline int fail(char* error, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error, MAPLE_ERROR_BYTES, format, arguments);
  va_end(arguments);
  return -1;
}

}  // namespace maple
