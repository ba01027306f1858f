#include "uarch/line_transfers.hpp"

namespace vpmu::uarch {

void LineTransfers::settle(std::uint64_t cycles) {
  const std::uint32_t first = last_ - settled_ < Transfers::kept ? settled_ + 1 : last_ - Transfers::kept + 1;
  for (std::uint32_t number = first; number != last_ + 1; ++number) {
    Transfer& at = transfers_[places_[number % places_.size()]];
    if (at.number != number) continue;
    at.ready += cycles;
    last_ready_ = std::max(last_ready_, at.ready);
  }
  settled_ = last_;
}

void LineTransfers::visit_state(const StateVisitor& visit) {
  visit(state_bytes(transfers_));
  visit(state_bytes(places_));
  for (std::uint64_t* const word : {&now_, &marks_, &last_ready_}) visit(state_bytes(*word));
  for (std::uint32_t* const number : {&last_, &settled_}) visit(state_bytes(*number));
  for (Transfer& transfer : transfers_) {
    transfer.level = std::min<std::uint8_t>(transfer.level, hit_level_count - 1);
    transfer.prefetched = std::min(transfer.prefetched, static_cast<std::uint8_t>(Prefetched::by_hardware));
  }
}

}  // namespace vpmu::uarch
