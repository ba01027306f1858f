#pragma once
#include <sys/mman.h>

#include <functional>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/flat_ram.hpp"
#include "exec/tests/fixtures/vector_platform.hpp"

namespace vpmu::exec::bench {

/// What a run gave.
struct Outcome {
  std::uint64_t result{};
  Passed passed;
  double seconds{};  ///< Of this thread's time on a CPU.
};

/// Seconds that this thread has had a CPU.
double thread_seconds();

/// A function of two arguments with its memory and a stack, that runs here or in the engine.
class Guest {
 public:
  /// `code` is copied; the function begins `entry` bytes into it.
  Guest(std::span<const std::byte> code, std::size_t memory);

  Outcome run_here(std::size_t entry, std::uint64_t work);
  /// From a cold engine, or going on with the same one when `engine` has run before. In runs of `piece` instructions
  /// each.
  Outcome run_in(Engine& engine, std::size_t entry, std::uint64_t work, std::uint64_t piece) {
    return run_in(engine, entry, work, [&] { return engine.run(piece); });
  }
  /// `run` makes each of the runs.
  Outcome run_in(Engine& engine, std::size_t entry, std::uint64_t work, const std::function<Stop()>& run);
  Ram& ram() { return ram_; }

 private:
  [[nodiscard]] std::span<std::byte> memory() const { return ram_.bytes().subspan(memory_at_, memory_size_); }
  void clear();

  std::size_t memory_at_, memory_size_;
  test::FlatRam ram_;
};

}  // namespace vpmu::exec::bench
