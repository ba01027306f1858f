#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

/// The interface between a guest test kernel and the host that runs it. Included by both sides; data only.
///
/// The host finds the tests in the ELF section `.gt_tests`, an array of TestDescriptor. For each test it makes a fresh
/// VM with one vCPU (two for need_second_cpu), loads the file, and starts the first vCPU at the entry point in 64-bit
/// mode, CPL 0, interrupts off, memory mapped linear = physical, with the test's index in RDI and BootFlags in RSI. The
/// guest sends messages by a 32-bit OUT of a Message's address to `command_port`, and ends with Command::complete.
namespace gt {

/// ELF section that holds the descriptors.
inline constexpr char test_section[] = ".gt_tests";

/// I/O port of all messages. Not used by any device of a PC.
inline constexpr std::uint16_t command_port = 0x7F0;

/// Guest RAM that the kernel may rely on, from physical 0.
inline constexpr std::uint64_t ram_bytes = 64ULL << 20;

/// What a test needs from the counting source to be meaningful; the host skips the test if the source lacks it.
enum Need : std::uint32_t {
  need_nothing = 0,
  need_counts = 1U << 0,        ///< Counters move while the guest runs.
  need_exact_counts = 1U << 1,  ///< Each retired instruction, branch, load and store is counted, no more and no less.
  need_records = 1U << 2,       ///< PEBS records show the state at a real instruction boundary.
  need_hit_levels = 1U << 3,    ///< Caches, TLBs and branch prediction are real or modelled.
  need_second_cpu = 1U << 4,    ///< The machine has a second vCPU, which waits for INIT and SIPI.
  need_branch_steps = 1U << 5,  ///< DEBUGCTL.BTF works; a host's KVM may drop it.
  need_modelled_levels = 1U << 6,   ///< Hit levels come from one model, never from a host's caches.
  need_uncore = 1U << 7,            ///< The package has uncore counters.
  need_all_events = 1U << 8,        ///< Branches, accesses and micro-operations are counted, not only time.
  need_instruction_time = 1U << 9,  ///< An instruction takes a cycle.
  need_pipeline_time = 1U << 10,    ///< The guest's CPU takes the time of a pipeline, in which pairs fuse.
};

/// Facts about the source, for tests that can check more with a better one, and the user's wishes.
enum BootFlag : std::uint64_t {
  boot_exact_counts = 1U << 0,
  boot_long = 1U << 1,  ///< Tests that repeat something reach their full number, without a time limit.
};

enum class Command : std::uint32_t {
  log = 1,       ///< A line for the reader.
  fail = 2,      ///< A check failed; the test continues.
  skip = 3,      ///< The test cannot judge here, `text` says why; the last message.
  complete = 4,  ///< The test is over, `checks` says how many checks it made; the last message.
};

/// One message. The guest passes its physical address, below 4 GiB; the host copies it before it reads it.
struct Message {
  Command command{};
  std::uint32_t line{};    ///< fail: source line.
  std::uint32_t checks{};  ///< complete.
  std::uint32_t reserved{};
  std::array<char, 64> file{};   ///< fail: end of the source path, NUL-terminated.
  std::array<char, 432> text{};  ///< log, fail, skip: NUL-terminated.
};
static_assert(sizeof(Message) == 512 && std::is_trivially_copyable_v<Message>);

inline constexpr std::size_t test_name_size = 80;

/// One test of the kernel, read from the file by the host.
struct TestDescriptor {
  std::array<char, test_name_size> name{};  ///< NUL-terminated.
  std::uint64_t needs{};                    ///< Need bits.
  std::uint64_t entry{};                    ///< void() in the guest; of no use to the host.
};
// Compilers align large objects to 32 bytes: a size that is a multiple of 32 leaves no gaps in the section.
static_assert(sizeof(TestDescriptor) == 96);

}  // namespace gt
