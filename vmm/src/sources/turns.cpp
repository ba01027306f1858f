#include "sources/turns.hpp"

#include "support/assert.hpp"

namespace vmm {

std::optional<Turns::Phase> Turns::next(Phase phase, Event event) {
  const bool stopped = phase == Phase::stopped;
  switch (event) {
    case Event::take: return phase == Phase::back_end ? std::optional{Phase::engine} : std::nullopt;
    case Event::stop: return phase == Phase::engine ? std::optional{Phase::stopped} : std::nullopt;
    case Event::exit: return stopped ? std::optional{Phase::in_exit} : std::nullopt;
    case Event::go_on: return stopped || phase == Phase::in_exit ? std::optional{Phase::engine} : std::nullopt;
    case Event::give_back: return stopped || phase == Phase::engine ? std::optional{Phase::back_end} : std::nullopt;
  }
  return std::nullopt;
}

void Turns::on(Event event) {
  const auto phase = next(phase_, event);
  VMM_ASSERT(phase.has_value());
  phase_ = *phase;
}

void Turns::count(bool counting) {
  counting_ = counting;
  if (counting) pause_left_ = max_pause;
}

}  // namespace vmm
