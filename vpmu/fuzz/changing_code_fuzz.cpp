#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "changing_guest.hpp"

// A script that writes code, changes it and changes it back, maps, unmaps and aliases pages of it, goes from one
// address space to another and forgets no more than it must, copies spaces as fork() does, lets devices and another
// vCPU write, turns an observer on and off, changes privilege level and mode, and runs code in between. Three machines
// obey it: one compiles at once, one interprets, one keeps nothing. After each run they must be in the same state, and
// the same must have been seen.

namespace {

using namespace vpmu;
using namespace vpmu::fuzz;

constexpr unsigned frames = ScatteredRam::pages;
constexpr std::size_t max_steps = 96;
// Where returns go at last: HLT, which the engine leaves. A page for the stack, whose upper half is full of that
// address; and one for the instruction by which the script lets the guest store.
constexpr unsigned halt_page = 29, stack_page = 30, store_page = 28, special_offset = 0x900;
constexpr std::uint64_t halt_at = halt_page * page_size + special_offset;
constexpr std::uint64_t store_at = store_page * page_size + special_offset;
constexpr std::uint64_t stack_top = stack_page * page_size + page_size / 2;

std::uint64_t instructions_run = 0, blocks_compiled = 0, came_back = 0;

/// Of all machines: they differ only in what runs on it.
struct Memory {
  std::array<ScatteredRam, 3> of;

  void reset() {
    for (unsigned n = 0; n < ScatteredRam::table_words; ++n) of[0].table_word(n) = 0;
    for (unsigned s = 0; s < space::count; ++s) {
      space::entry(of[0], s, 0) = space::root(s) | space::all | space::accessed;
      for (unsigned page = space::first; page < space::end; ++page)
        space::entry(of[0], s, page) = page % frames * page_size | space::all;
    }
    constexpr unsigned char ret = 0xC3, hlt = 0xF4;
    for (unsigned n = 0; n < frames; ++n) std::memset(of[0].at_page(n), ret, page_size);
    std::byte* const stack = of[0].at_page(stack_page % frames);
    for (std::size_t at = page_size / 2; at < page_size; at += sizeof halt_at)
      std::memcpy(stack + at, &halt_at, sizeof halt_at);
    of[0].at_page(halt_page % frames)[special_offset] = std::byte{hlt};
    std::memcpy(of[0].at_page(store_page % frames) + special_offset, "\x88\x07", 2);  // mov %al, (%rdi)
    for (std::size_t n = 1; n < of.size(); ++n) of.at(n).copy_from(of[0]);
  }
  [[nodiscard]] bool is_same() const { return of[0].same_as(of[1]) && of[0].same_as(of[2]); }
};

class Script {
 public:
  Script(Memory& memory, std::span<FencedCode, 5> code, Input input)
      : input_{input},
        memory_{&memory},
        compiling_{memory.of[0], code.subspan<0, 2>(), compiled},
        interpreting_{memory.of[1], code.subspan<2, 2>(), interpreted},
        forgetting_{memory.of[2], code[4]} {
    const auto flags = input_.take<std::uint8_t>();
    one_by_one_ = flags % 4 == 3;
    pieces_ = input_.take<std::array<std::uint8_t, 4>>();
    for (auto& piece : pieces_) piece = std::max<std::uint8_t>(piece, 1);
    constexpr unsigned shared_and_a_block = 2;
    const unsigned room = flags >> 2 & 7, refused = flags >> 5;
    compiling_.limit_code(room == 7 ? 0 : shared_and_a_block + room, refused == 0 ? 0 : refused + 1);
    state_.rflags = 2;
    state_.paging.cr0 = 1ULL << 31 | 1U << 16 | 1;
    state_.paging.cr4 = 1U << 5 | 1U << 9 | 1U << 10 | 1U << 17 | 1U << 18;  // PAE, OSFXSR, OSXMMEXCPT, PCIDE, OSXSAVE
    state_.paging.efer = 1U << 8 | 1U << 10 | 1U << 11;                      // LME, LMA, NXE
  }

  void obey() {
    for (std::size_t n = 0; n < max_steps && !input_.empty(); ++n) step(input_.take<std::uint8_t>());
    require(memory_->is_same(), "the same memory in all machines");
    for (unsigned v = 0; v < spaces_.size(); ++v) {
      const Watcher &a = compiling_.watcher(v), &b = interpreting_.watcher(v);
      require(a.sum == b.sum && a.seen == b.seen, "the same is seen of compiled as of interpreted code");
    }
    blocks_compiled += compiling_.compiled_blocks();
  }

 private:
  struct Byte {
    std::uint64_t at{};  ///< Physical.
    std::byte before{};
  };
  using Change = std::vector<Byte>;

  void step(std::uint8_t code) {
    const unsigned more = code / 16U;
    switch (code % 16) {
      case 0:
      case 1: return put(pieces_of_code.at(input_.take<std::uint8_t>() % pieces_of_code.size()), more);
      case 2: return put_raw(more);
      case 3: return poke(more);
      case 4: return take_back(more);
      case 5: return store(more);
      case 6: return map(more);
      case 7: return unmap(more);
      case 8: return map_again(more);
      case 9: return fork(more);
      case 10: return copy_page();
      case 11: return become(input_.take<std::uint8_t>());
      default: return run_anew(more);
    }
  }

  std::uint64_t take_place() {
    const auto page = input_.take<std::uint8_t>(), offset = input_.take<std::uint8_t>();
    const std::uint64_t base = (space::first + page % (space::end - space::first)) * page_size;
    // Few places, so that steps meet; many are near the end of a page.
    return base + (offset < 128 ? offset % 8 * 64U : page_size - 1 - offset % 16U);
  }
  unsigned& space_now() { return spaces_.at(vcpu_); }
  /// Where `at` is mapped in the present address space, whatever the rights.
  std::optional<std::uint64_t> physical(std::uint64_t at) {
    const std::uint64_t page = at / page_size;
    if (page < space::first || page >= space::end) return std::nullopt;
    const std::uint64_t word = space::entry(memory_->of[0], space_now(), static_cast<unsigned>(page));
    const std::uint64_t frame = (word & ~space::execute_disable) / page_size;
    return frame < frames ? std::optional{frame * page_size + at % page_size} : std::nullopt;
  }

  /// A device writes. `quietly`: nobody is told, but the guest has been elsewhere meanwhile.
  void write(std::uint64_t physical, std::byte value, bool quietly) {
    const auto frame = static_cast<unsigned>(physical / page_size);
    for (ScatteredRam& ram : memory_->of) ram.at_page(frame)[physical % page_size] = value;
    if (quietly) return loads_.fill(true);
    const GuestPhysical page{frame * page_size};
    compiling_.written(page);
    interpreting_.written(page);
  }
  void put(std::string_view code, std::uint64_t at, unsigned how) {
    Change change;
    for (const char c : code) {
      const auto where = physical(at++);
      if (!where) continue;
      change.push_back({*where, memory_->of[0].at_page(static_cast<unsigned>(*where / page_size))[*where % page_size]});
      write(*where, static_cast<std::byte>(c), (how & 1) != 0);
    }
    changes_.push_back(std::move(change));
  }
  void put(const Piece& piece, unsigned how) {
    const std::uint64_t at = take_place();
    std::array<char, 64> code{};
    std::ranges::copy(piece.code, code.begin());
    if (piece.distance_at != 0) {
      const auto distance = static_cast<std::uint32_t>(take_place() - (at + piece.distance_at + sizeof(std::uint32_t)));
      std::memcpy(code.data() + piece.distance_at, &distance, sizeof distance);
    }
    put(std::string_view{code.data(), piece.code.size()}, at, how);
  }
  void put_raw(unsigned how) {
    const std::uint64_t at = take_place();
    const auto bytes = input_.take<std::array<char, 16>>();
    put({bytes.data(), bytes.size()}, at, how);
  }
  void poke(unsigned how) {
    const std::uint64_t at = take_place() + (how >> 1);
    const auto value = input_.take<char>();
    put({&value, 1}, at, how);
  }
  /// The bytes of the last change come back, or of all of them.
  void take_back(unsigned how) {
    do {
      if (changes_.empty()) return;
      const Change change = std::move(changes_.back());
      changes_.pop_back();
      // Backwards: of a place that was written twice, the first value stays.
      for (std::size_t n = change.size(); n-- > 0;) write(change[n].at, change[n].before, (how & 1) != 0);
      came_back_ = true;
    } while ((how & 2) != 0);
  }
  /// The guest itself writes a byte of code, or writes the last changed one back.
  void store(unsigned how) {
    std::uint64_t at = take_place() + (how >> 1);
    auto value = input_.take<std::uint8_t>();
    const auto where = physical(at);
    if (where && (how & 1) == 0)
      changes_.push_back(
          {{*where, memory_->of[0].at_page(static_cast<unsigned>(*where / page_size))[*where % page_size]}});
    if ((how & 1) != 0 && !changes_.empty() && !changes_.back().empty()) {
      const Byte byte = changes_.back().front();
      for (unsigned page = space::first; page < space::end; ++page)
        if (physical(page * page_size) == byte.at - byte.at % page_size) at = page * page_size + byte.at % page_size;
      value = std::to_integer<std::uint8_t>(byte.before);
      changes_.pop_back();
      came_back_ = true;
    }
    exec::CpuState& s = state_;
    s.rip = store_at;
    s.gpr[exec::rdi] = at;
    s.gpr[exec::rax] = value;
    run(1);
  }

  unsigned take_page() { return space::first + input_.take<std::uint8_t>() % (space::end - space::first); }
  /// Changes the mapping. What was not present need not be flushed: SDM 3A 4.10.4.3.
  void set_entry(unsigned in, unsigned page, std::uint64_t word, bool flushes) {
    const bool was_present = (space::entry(memory_->of[0], in, page) & space::present) != 0;
    for (ScatteredRam& ram : memory_->of) space::entry(ram, in, page) = word;
    if (!flushes && !was_present) return;
    for (auto& changed : changed_) changed.at(in).push_back(page);
  }
  void map(unsigned how) {
    const unsigned in = how % space::count, page = take_page();
    const auto bits = input_.take<std::uint8_t>();
    const std::uint64_t rights = space::all & ~((bits >> 4) % 8 * space::present);
    set_entry(in, page, bits % frames * page_size | rights | (bits >= 0xE0 ? space::execute_disable : 0), how >= 8);
  }
  void unmap(unsigned how) {
    const unsigned page = take_page(), in = space_now();
    const std::uint64_t word = space::entry(memory_->of[0], in, page);
    unmapped_.push_back({in, page, word});
    set_entry(in, page, (how & 1) != 0 ? word & ~space::present : 0, true);
  }
  void map_again(unsigned how) {
    if (unmapped_.empty()) return;
    const Unmapped u = unmapped_.back();
    unmapped_.pop_back();
    set_entry(u.in, u.page, u.word, (how & 1) != 0);
    came_back_ = true;
  }
  /// Another address space becomes as this one is. 1: it has nothing mapped yet; 2: both are read-only.
  void fork(unsigned how) {
    const unsigned from = space_now(), to = input_.take<std::uint8_t>() % space::count;
    if (to == from) return;
    for (unsigned page = space::first; page < space::end; ++page) {
      std::uint64_t word = space::entry(memory_->of[0], from, page);
      if ((how & 2) != 0 && page < store_page) set_entry(from, page, word &= ~space::writable, true);
      const bool is_left_out = (how & 1) != 0 && page < store_page;
      if (is_left_out) unmapped_.push_back({to, page, word});
      set_entry(to, page, is_left_out ? 0 : word, true);
    }
  }
  /// As after a write to a page that is shared since fork().
  void copy_page() {
    const unsigned page = take_page(), to = input_.take<std::uint8_t>() % frames;
    const auto from = physical(page * page_size);
    if (!from || *from / page_size == to) return;
    for (ScatteredRam& ram : memory_->of)
      std::memcpy(ram.at_page(to), ram.at_page(static_cast<unsigned>(*from / page_size)), page_size);
    compiling_.written(GuestPhysical{to * page_size});
    interpreting_.written(GuestPhysical{to * page_size});
    set_entry(space_now(), page, to * page_size | space::all, true);
  }
  void become(std::uint8_t what) {
    vcpu_ = what & 1;
    space_now() = what >> 1 & 3;
    state_.cpl = (what & 8) != 0 ? 3 : 0;
    observed_ = (what & 16) != 0;
    const unsigned mode = what >> 5;
    state_.mode = mode == 6 ? exec::CodeMode::bits32 : mode == 7 ? exec::CodeMode::bits16 : exec::CodeMode::bits64;
  }

  /// Several times, so that code comes to run compiled and then linked.
  void run_anew(unsigned how) {
    exec::CpuState from = state_;
    from.rip = take_place();
    from.gpr[exec::rsp] = stack_top;
    from.gpr[exec::rdi] = take_place();
    from.gpr[exec::rdx] = take_place();
    from.gpr[exec::rsi] = from.gpr[exec::rdx] ^ page_size;
    const auto bits = input_.take<std::uint8_t>();
    from.gpr[exec::rcx] = bits % 16 + 1;
    const std::uint64_t budget = bits / 4 + 1;
    for (unsigned n = 0; n <= how % 4; ++n) {
      state_ = from;
      run(budget);
    }
  }
  /// What the guest has to run before it goes on in the present space, and what the TLBs lose by that, which has to
  /// be all that has changed. SDM 3A 4.10.4.2.
  std::vector<TlbFlush> lose() {
    using enum TlbFlush::Of;
    const unsigned in = space_now();
    const std::uint16_t pcid = space::pcid(in);
    const std::vector<unsigned> pages = std::exchange(changed_.at(vcpu_).at(in), {});
    if (std::exchange(loaded_.at(vcpu_), in) != in)
      return {TlbFlush{.of = pages.empty() ? nothing : address_space, .pcid = pcid}};
    constexpr std::size_t few = 4;
    if (pages.size() > 2 * few) return {TlbFlush{.of = everything, .pcid = pcid}};
    if (pages.size() > few) return {TlbFlush{.of = address_space, .pcid = pcid}};
    std::vector<TlbFlush> lost;
    for (const unsigned page : pages)
      lost.push_back({.of = TlbFlush::Of::page, .pcid = pcid, .linear = page * page_size});
    return lost;
  }
  void run(std::uint64_t budget) {
    state_.paging.cr3 = space::root(space_now()) | space::pcid(space_now());
    const Task task{.vcpu = vcpu_,
                    .from = state_,
                    .budget = budget,
                    .pieces = pieces_,
                    .loads = std::exchange(loads_.at(vcpu_), false),
                    .lost = lose(),
                    .observed = observed_};
    const End reference = forgetting_.run(task, one_by_one_);
    require_same(interpreting_.run(task), reference, "the same end with kept code as with none");
    require_same(compiling_.run(task), reference, "the same end with compiled code as with none");
    instructions_run += reference.passed.instructions;
    if (std::exchange(came_back_, false)) ++came_back;
    const exec::CpuState& end = reference.state;
    state_.gpr = end.gpr;
    state_.rflags = end.rflags;
  }

  struct Unmapped {
    unsigned in{}, page{};
    std::uint64_t word{};
  };
  Input input_;
  Memory* memory_;
  KeepingMachine compiling_, interpreting_;
  ForgetfulMachine forgetting_;
  bool one_by_one_{};
  std::array<std::uint8_t, 4> pieces_{};
  exec::CpuState state_;
  unsigned vcpu_{};
  std::array<unsigned, 2> spaces_{};  ///< The address space of each vCPU.
  std::array<unsigned, 2> loaded_{};  ///< The address space in which each vCPU last ran.
  std::array<bool, 2> loads_{};
  std::array<std::array<std::vector<unsigned>, space::count>, 2> changed_;  ///< By vCPU and space: pages.
  bool observed_{}, came_back_{};
  std::vector<Change> changes_;
  std::vector<Unmapped> unmapped_;
};

}  // namespace

/// What the inputs so far amounted to.
extern "C" std::uint64_t fuzz_work() { return std::min({instructions_run, 10 * blocks_compiled, 10 * came_back}); }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Memory memory;
  static std::array<FencedCode, 5> code;
  memory.reset();
  std::make_unique<Script>(memory, code, Input{data, size})->obey();  // engines are large
  for (const FencedCode& c : code) c.check();
  return 0;
}
