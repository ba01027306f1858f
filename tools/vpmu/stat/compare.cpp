#include "stat/compare.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "exec/exec.hpp"
#include "shared/output.hpp"
#include "stat/comparison.hpp"
#include "stat/counts.hpp"
#include "stat/stat.hpp"

namespace vmm::tool {
namespace {

struct CompareArguments {
  std::string base, head, format{"text"};
  std::vector<std::string> limits;
};

Result<int> compare_measurements(const CompareArguments& arguments) {
  VMM_ASSIGN(StatLimits limits, read_limits(arguments.limits));
  if (arguments.limits.empty()) limits.percent = std::numeric_limits<double>::infinity();
  VMM_ASSIGN(const StatDocument base, read_measurement(arguments.base));
  VMM_ASSIGN(const StatDocument head, read_measurement(arguments.head));
  VMM_TRY(check_same_machine(base, head));
  std::vector<StatEvent> events;
  for (const StatCount& count : head.events) events.push_back({.name = count.name});
  VMM_TRY(check_limits(limits, events));
  StatComparison comparison = compare(base, head, limits);
  const auto others = other_circumstances(base, head);
  comparison.notes.insert(comparison.notes.begin(), others.begin(), others.end());
  VMM_TRY(write_out(arguments.format == "json"       ? to_json(comparison)
                    : arguments.format == "markdown" ? to_markdown(comparison)
                                                     : to_text(comparison)));
  return comparison.rose || base.exit_code != head.exit_code ? stat_rose : 0;
}

}  // namespace

void add_compare(Command& app, int& exit_code) {
  auto arguments = std::make_shared<CompareArguments>();
  Command compare = app.add_command("compare", "compare two measurements of `vpmu stat`: what has changed, and where");
  compare.add_option("base", arguments->base, "a file of `vpmu stat --record`, or of --json").required();
  compare.add_option("head", arguments->head, "the same of another build, or another day").required();
  compare.add_option("--format", arguments->format, "text, markdown (for a pull request's comment) or json")
      .shows_default()
      .one_of({"text", "markdown", "json"});
  compare.add_option("--limit", arguments->limits,
                     "fail if a count has risen by more than PERCENT, or that of an event: EVENT=PERCENT");
  compare.set_footer(
      "First it says what else differs: the command, the kernel, the files that it has read. Functions are those that "
      "have done it themselves, without what they call.");
  compare.set_exit_codes({{.code = "0", .meaning = "compared, and within the limits"},
                          {.code = "2", .meaning = "wrong options"},
                          {.code = "3", .meaning = "a count is above its limit, or the command ended otherwise"},
                          {.code = "125", .meaning = "the files cannot be read or compared"}});
  compare.add_example("vpmu compare base.json head.json",
                      "says which functions of a program count more or less than those of another build");
  compare.when_given([arguments, &exit_code] {
    const auto code = compare_measurements(*arguments);
    exit_code = code ? *code : exec_failed;
    if (!code) std::fprintf(stderr, "vpmu compare: %s\n", describe(code.error()).c_str());
  });
}

}  // namespace vmm::tool
