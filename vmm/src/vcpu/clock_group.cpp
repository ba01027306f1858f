#include "vcpu/clock_group.hpp"

namespace vmm {

unsigned ClockGroup::join(std::function<void()> kick) {
  members_.push_back(std::make_unique<Member>(std::move(kick)));
  return static_cast<unsigned>(members_.size() - 1);
}

std::uint64_t ClockGroup::must_wait(unsigned id, std::uint64_t hidden) {
  members_[id]->asked = false;
  const std::uint64_t most = most_hidden_;
  return most > hidden + slack_ ? most - hidden : 0;
}

void ClockGroup::publish(unsigned id, std::uint64_t hidden) {
  members_[id]->hidden = hidden;
  std::uint64_t most = most_hidden_;
  while (hidden > most && !most_hidden_.compare_exchange_weak(most, hidden)) {
  }
  for (unsigned other = 0; other < members_.size(); ++other) {
    Member& m = *members_[other];
    if (other != id && hidden > m.hidden + slack_ && !m.asked.exchange(true)) m.kick();
  }
}

}  // namespace vmm
