// The checker of `vpmu test-kernel`: what a guest runs. ../README.md tells what it does.
#include <cstdio>

#include "test_kernel/guest/checks.hpp"

int main(int argc, char** argv) {
  using namespace vmm::tool::checker;
  const auto processor = read_processor({argv + 1, argv + argc});
  if (!processor) {
    std::fputs("the checker does not understand its arguments\n", stderr);
    return 2;
  }
  Report report{processor->wrong};
  check_driver(*processor, report);
  check_counting(*processor, report);
  check_sampling(*processor, report);
  check_branches(*processor, report);
  check_memory(*processor, report);
  check_frontend(*processor, report);
  check_no_complaint(report);
  report.end();
  return 0;
}
