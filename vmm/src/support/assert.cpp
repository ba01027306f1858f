#include "support/assert.hpp"

#include <cstdio>
#include <cstdlib>

namespace vmm {

void assertion_failed(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "vpmu: internal error: %s does not hold at %s:%d\n", condition, file, line);
  std::abort();
}

}  // namespace vmm
