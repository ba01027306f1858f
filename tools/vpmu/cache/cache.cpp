#include "cache/cache.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "command_line.hpp"
#include "exec/guest_cache.hpp"
#include "shared/output.hpp"

namespace vmm::tool {
namespace {

constexpr std::string_view columns = "{:<{}} {:>8} {}\n";

std::string mebibytes(std::uint64_t bytes) { return fmt::format("{} MiB", (bytes + (1U << 20U) - 1) >> 20U); }

std::uint64_t bytes_of(const std::vector<GuestCache::Entry>& all) {
  std::uint64_t bytes = 0;
  for (const GuestCache::Entry& entry : all) bytes += entry.bytes;
  return bytes;
}

}  // namespace

Result<std::string> list_cache() {
  VMM_ASSIGN(const GuestCache cache, GuestCache::open());
  const auto all = cache.list();
  std::size_t width = 0;
  for (const GuestCache::Entry& entry : all) width = std::max(width, printable(entry.name).size());
  std::string text = fmt::format(columns, "GUEST", width, "SIZE", "LAST USED");
  for (const GuestCache::Entry& entry : all)
    text += fmt::format(columns, printable(entry.name), width, mebibytes(entry.bytes),
                        fmt::format("{:%F %T}", fmt::localtime(entry.used)));
  return text + fmt::format("{} of at most {} in {}\n", mebibytes(bytes_of(all)), mebibytes(cache.max_bytes()),
                            printable(cache.path()));
}

Result<std::string> clear_cache() {
  VMM_ASSIGN(const GuestCache cache, GuestCache::open());
  const auto all = cache.list();
  for (const GuestCache::Entry& entry : all) VMM_TRY(cache.remove(entry.name));
  return fmt::format("{} guests, {}\n", all.size(), mebibytes(bytes_of(all)));
}

void add_cache(Command& app, int& exit_code) {
  auto action = std::make_shared<std::string>();
  Command cache = app.add_command("cache", "list or remove the booted guests from which later runs go on");
  cache.add_option("action", *action, "list or clear").required().one_of({"list", "clear"});
  cache.set_footer("VPMU_GUEST_CACHE_SIZE says how much the cache may hold: a number and K, M or G; default 4G.");
  cache.set_exit_codes(exit_codes_of_printing());
  cache.add_example("vpmu cache list", "what is kept, and when it was last used");
  cache.add_example("vpmu cache clear", "removes all of it");
  cache.when_given([action, &exit_code] {
    exit_code = print_or_explain("vpmu cache", *action == "clear" ? clear_cache() : list_cache());
  });
}

}  // namespace vmm::tool
