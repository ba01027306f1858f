#include "vcpu/kick_watch.hpp"

#include <algorithm>

namespace vmm {
namespace {

std::int64_t now() { return std::chrono::nanoseconds{std::chrono::steady_clock::now().time_since_epoch()}.count(); }

}  // namespace

void KickWatch::kicked() {
  std::int64_t none = 0;
  since_.compare_exchange_strong(none, now());
}

void KickWatch::count() {
  const std::int64_t since = since_.exchange(0);
  if (since == 0) return;
  const std::int64_t waited = now() - since;
  if (waited > in_time().count()) ++late_;
  max_ = std::max(max_.load(), waited);
}

KickWatch::Late KickWatch::late() const {
  const std::int64_t since = since_;
  const std::int64_t waits = since == 0 ? 0 : now() - since;
  return {.kicks = late_ + (waits > in_time().count() ? 1U : 0U),
          .max = std::chrono::nanoseconds{std::max(max_.load(), waits)}};
}

}  // namespace vmm
