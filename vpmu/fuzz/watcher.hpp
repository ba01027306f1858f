#pragma once
#include <bit>
#include <cstdint>
#include <initializer_list>

#include "vpmu/observer.hpp"

namespace vpmu::fuzz {

/// All that is seen but code: of a block that is cut, lines are fetched when they run.
class Watcher final : public Observer {
 public:
  /// Without `sees_cuts`, also without where string instructions were left: one that writes to a page from which the
  /// engine keeps code is left sooner.
  explicit Watcher(bool sees_cuts = true) : sees_cuts_{sees_cuts} {}
  void fetched(const SeenCode&) override {}
  void accessed(const SeenAccess& a, std::uint64_t now) override {
    ++seen;
    add({a.linear, a.physical, a.page_bytes, a.bytes, a.store ? 1ULL : 0, a.second_half ? 1ULL : 0, now});
  }
  void retired(bool load, bool store) override { add({load ? 1ULL : 0, store ? 1ULL : 0}); }
  void branched(const SeenBranch& b) override {
    add({b.at, b.fall_through, b.to, static_cast<std::uint64_t>(b.kind), b.taken ? 1ULL : 0, b.now});
  }
  void abandoned() override {
    if (sees_cuts_) add({});
  }
  void flushed_line(const SeenFlush& f) override { add({f.linear, f.physical, f.now}); }
  void flushed(const TlbFlush&) override {}

  std::uint64_t sum{};
  std::uint64_t seen{};  ///< Accesses.

 private:
  void add(std::initializer_list<std::uint64_t> words) {
    sum = std::rotl(sum ^ words.size(), 7);
    for (const std::uint64_t word : words) sum = (sum ^ word) * 0x9E37'79B9'7F4A'7C15ULL + (sum >> 29);
  }

  bool sees_cuts_;
};

}  // namespace vpmu::fuzz
