#include "timing/pipeline_states.hpp"

#include <algorithm>
#include <utility>

namespace vpmu::timing {
namespace {

std::uint64_t hash_of(std::span<const std::uint32_t> words) {
  constexpr std::uint64_t odd = 0x9E3779B97F4A7C15;
  std::uint64_t a = words.size(), b = odd;  // two, so that one need not wait for the other
  for (; words.size() >= 2; words = words.subspan(2)) {
    a = (a ^ words[0]) * odd;
    b = (b ^ words[1]) * odd;
    a ^= a >> 32;
    b ^= b >> 32;
  }
  if (!words.empty()) a = (a ^ words[0]) * odd;
  const std::uint64_t hash = (a ^ b >> 29) * odd;
  return hash ^ hash >> 32;
}

template <class T>
std::uint32_t append(std::vector<T>& to, std::span<const T> more) {
  const auto at = static_cast<std::uint32_t>(to.size());
  to.insert(to.end(), more.begin(), more.end());
  return at;
}

template <class... All>
std::size_t bytes_of(const std::vector<All>&... all) {
  return (std::as_bytes(std::span{all}).size() + ...);
}

}  // namespace

PipelineStates::Found PipelineStates::find(std::span<const std::uint32_t> words) {
  if (table_.empty()) table_.resize(places, none);
  const std::uint64_t hash = hash_of(words);
  Index& place = table_[hash % places];
  for (Index at = place; at != none; at = states_[at].next)
    if (states_[at].hash == hash && std::ranges::equal(this->words(at), words)) return {.state = at};
  const auto made = static_cast<Index>(states_.size());
  states_.push_back({.first_word = append(words_, words),
                     .word_count = static_cast<std::uint32_t>(words.size()),
                     .hash = hash,
                     .next = std::exchange(place, made)});
  first_steps_.push_back(none);
  return {.state = made, .is_new = true};
}

void PipelineStates::add(Index from, Step step, const TimedBlockPtr& block, std::span<const Access> accesses,
                         std::span<const PipelineTallies::Growth> growth) {
  step.block = block.get();
  step.access_count = accesses.size() & 0xFFU;
  step.number = counts_.size() & 0xFFFFFFU;
  step.next = std::exchange(first_steps_[from], static_cast<Index>(steps_.size()));
  const auto put = [this](const auto& all) {
    const auto bytes = std::as_bytes(std::span{all});
    const std::size_t at = steps_.size();
    steps_.resize(at + bytes.size() / sizeof(Unit));
    std::ranges::copy(bytes, std::as_writable_bytes(std::span{steps_}.subspan(at)).begin());
  };
  put(std::span{&step, 1});
  put(accesses);
  counts_.push_back({.block = block,
                     .first_growth = append(growth_, growth),
                     .growth_count = static_cast<std::uint32_t>(growth.size())});
}

void PipelineStates::tally(PipelineTallies& tallies) {
  for (const Index at : counted_) {
    Step& step = step_at(at);
    const std::uint32_t times = std::exchange(step.times, 0);
    const Counts& counts = counts_[step.number];
    tallies.add(*counts.block, (step.how & decoded) != 0, times);
    tallies.grow(std::span{growth_}.subspan(counts.first_growth, counts.growth_count), times);
  }
  counted_.clear();
}

bool PipelineStates::is_full() const {
  return bytes_of(steps_, first_steps_, states_, words_, counts_, growth_) >= max_bytes;
}

void PipelineStates::clear() {
  steps_.clear();
  first_steps_.clear();
  states_.clear();
  words_.clear();
  std::ranges::fill(table_, none);
  counts_.clear();
  growth_.clear();
  counted_.clear();
}

std::size_t PipelineStates::bytes() const {
  return bytes_of(steps_, first_steps_, states_, words_, table_, counts_, growth_, counted_);
}

}  // namespace vpmu::timing
