// The checker of `vpmu test-kernel`, which runs in the guest. ../README.md describes what it does.
#include <cstdio>
#include <string_view>

#include "test_kernel/guest/checks.hpp"
#include "test_kernel/guest/work.hpp"

int main(int argc, char** argv) {
  using namespace vmm::tool::checker;
  if (argc == 3 && std::string_view{argv[1]} == work_argument) return do_work(argv[2]);
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
  check_no_complaint("log.clean", 0, report);
  if (processor->perf) {
    check_perf(*processor, report);
    check_perfs_tests(report);
    // When two precise events overflow at once, the interrupt of the second one may find nothing left to do.
    constexpr int known_to_happen = 4;
    check_no_complaint("perf.log", known_to_happen, report);
  }
  report.end();
  return 0;
}
