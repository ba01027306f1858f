#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "exec/state/code_mode.hpp"
#include "exec/state/flags.hpp"
#include "exec/state/kick_flag.hpp"
#include "exec/state/platform.hpp"
#include "vpmu/address.hpp"
#include "vpmu/observer.hpp"
#include "vpmu/retirement.hpp"

/// For the parts of ops, which must be inlined: a call that returns would cost a stack frame, and a jump that ops share
/// hides from the CPU's branch predictor where it comes from. GCC by itself stops inlining where there are many users.
#define VPMU_PART_OF_OP [[gnu::always_inline]] inline

namespace vpmu::exec {

struct Core;
struct Op;
struct Block;
struct Tap;
class AddressSpaces;
class CodePages;
class Jit;
struct VectorState;
/// Runs `op` and then the ops that follow, unless something prevents it.
using Run = void (*)(const Op* op, Core* core);

/// Registers by their number in instructions. SDM 2A table 2-2. Those after R15 are for addresses only.
enum RegisterNumber : std::uint8_t {
  rax,
  rcx,
  rdx,
  rbx,
  rsp,
  rbp,
  rsi,
  rdi,
  r8,
  r9,
  r10,
  r11,
  r12,
  r13,
  r14,
  r15,
  zero,     ///< No base or no index.
  es_base,  ///< This and the next three are 0 in 64-bit code.
  cs_base,
  ss_base,
  ds_base,
  fs_base,
  gs_base,
  block_rip,  ///< Where the running block starts: what RIP-relative operands are relative to.
  register_count,
};

/// What an instruction does besides retiring, for the counters; and where its memory access is, if it makes just one.
enum OpEvent : std::uint8_t {
  event_branch = 1,
  event_load = 2,
  event_store = 4,
  event_at_operand = 8,  ///< Op::bytes at its memory operand.
  event_at_stack = 16,   ///< 8 bytes: pushed or popped.
  event_locked = 32,     ///< By a prefix, or because it is an XCHG with memory.
};

/// One decoded instruction. d, s, b, x and seg are byte offsets into Core::r, so that AH is an offset too.
struct Op {
  Run run{};
  std::uint8_t d{}, s{};                  ///< Destination and source register.
  std::uint8_t b{}, x{}, seg{}, scale{};  ///< The memory operand: base, index, segment base; scale: see Scale.
  std::uint8_t length{};
  std::uint8_t events{};  ///< OpEvent.
  std::int32_t disp{};
  std::uint16_t offset{};  ///< From the block's first byte.
  std::uint16_t bytes{};   ///< Of the memory operand.
  std::int64_t imm{};
};
static_assert(sizeof(Op) == 32);
/// The bits of Op::scale. With the shift alone, addresses are sums of 64 bits.
enum Scale : std::uint8_t {
  scale_shift = 3,
  scale_32_bits = 16,  ///< The sum of base, index and displacement has 32 bits.
  scale_16_bits = 32,  ///< That sum has 16 bits.
  scale_wraps = 64,    ///< With the segment's base the sum has 32 bits: outside of 64-bit code.
  scale_any = 0xF0,
};
/// What the address of an op's memory operand is made of, besides the displacement.
enum class Address : std::uint8_t { base, base_and_index, any };

/// Remaining or passed events: instructions, branches, loads, stores.
using Counts [[gnu::vector_size(32)]] = std::int64_t;
enum CountIndex : std::uint8_t { count_instructions, count_branches, count_loads, count_stores };

/// What an op counts; an op without a length is no instruction. Uses a table, because a vector that is put together in
/// memory is slow to load.
inline Counts counts_of(const Op& op) {
  static constexpr std::array<Counts, 8> by_events{Counts{1, 0, 0, 0}, Counts{1, 1, 0, 0}, Counts{1, 0, 1, 0},
                                                   Counts{1, 1, 1, 0}, Counts{1, 0, 0, 1}, Counts{1, 1, 0, 1},
                                                   Counts{1, 0, 1, 1}, Counts{1, 1, 1, 1}};
  static_assert(event_branch == 1 && event_load == 2 && event_store == 4);
  return op.length == 0 ? Counts{} : by_events[op.events % by_events.size()];
}
/// What instructions do to memory beyond what OpEvent says: CMPS makes two loads, a repeated string instruction an
/// access for each element. The elements of one that goes on later are here, too: one less, once it retires.
struct MoreAccesses {
  static constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max() / 2;
  std::int64_t loads{}, stores{};
  std::int64_t left{unlimited};  ///< How many of either may still pass before the engine stops: Stop::accesses.
};

/// Counts of `n` instructions and nothing else; made in registers.
inline Counts only_instructions(std::int64_t n) {
  using Half [[gnu::vector_size(16)]] = std::int64_t;
  return __builtin_shufflevector(Half{n, 0}, Half{}, 0, 1, 2, 3);
}

struct Tlb;

/// Where compiled code goes back to the interpreter.
struct Site {
  enum class Why : std::uint8_t {
    op,      ///< The interpreter is to run `op` and what follows.
    alone,   ///< It is to run `op` alone, then the code goes on.
    way,     ///< The block is done; it takes its exit `way`, which is not linked.
    budget,  ///< The counts that are left do not suffice for the block.
    stale,   ///< The block must be checked before it may begin, in the page at CompiledState::to_page.
  };
  Block* block{};
  const Op* op{};
  Run run{};  ///< Function that runs `op`, and nothing after it if Why::alone.
  Why why{};
  std::uint8_t way{};
  std::uint8_t addresses{};  ///< Accesses of the block that are still to come after it: see Tap.
};

/// A block as code of this CPU (jit.hpp).
struct Compiled {
  const std::byte* checked{};                   ///< Entry that checks whether the block is fresh at the page in RCX.
  const std::byte* entry{};                     ///< Entry that subtracts the block's counts.
  const std::byte* body{};                      ///< Entry to the first instruction.
  const Tlb* tlb{};                             ///< The TLB that the code uses.
  std::array<const std::byte*, 2> distances{};  ///< Where its exit jumps have their distances. Null: no such exit.
  std::array<const std::byte*, 2> back{};       ///< Where an exit goes while not linked: back to the interpreter.
  std::array<bool, 2> names_page{};             ///< An exit that may go to `checked`: RCX has the page.
  struct Link {
    Compiled* from{};
    unsigned way{};
  };
  std::vector<Link> incoming;  ///< Which exits are linked to it.
  /// Where computed jumps may find it: at this RIP, and, if it is so, at others.
  std::optional<std::uint64_t> found_at;
  bool found_elsewhere{};
  std::vector<Site> sites;
};

/// Number of a page that code was decoded from. Core::stale says whether its code may run as decoded, and Core::base
/// where: the same page is elsewhere in each address space.
using CodeSlot = std::uint16_t;
inline constexpr unsigned code_slots = 1U << 14;
inline constexpr CodeSlot never_fresh = 0;  ///< Of a block that must not run.

/// What a block has for an observer (tap.hpp).
struct Observed {
  std::vector<Run> real;  ///< The functions that its ops call after reporting.
  std::vector<SeenCode> lines;
  std::vector<BlockAccess> accesses;  ///< Of compiled ops.
  SeenBlock seen;                     ///< It refers to these.
  std::array<SeenPage, 2> pages{};    ///< Where its code begins, and the page after that.
};

/// What a block has for those who count instructions by class (class_counts.hpp).
struct BlockClasses {
  struct Total {
    InstructionClass of{};
    std::uint8_t count{};
  };
  std::vector<InstructionClass> of_ops;
  std::vector<Total> totals;  ///< Without InstructionClass::other.
  Run first{};                ///< The function that its first op calls after counting.
};
/// Instructions by their class.
using ClassCounts = std::array<std::uint64_t, instruction_class_count>;

inline constexpr std::size_t max_instruction_bytes = 15;
/// A block that begins behind this offset in its page may go on in the next page.
inline constexpr std::int64_t last_in_one_page = page_size - max_instruction_bytes;

/// What decoding finds out about straight-line code, wherever its page is mapped.
struct BlockFacts {
  static constexpr std::size_t max_ops = 48;  ///< Instructions, of the 256 bytes that are fetched at once.
  static constexpr std::int64_t nowhere = std::numeric_limits<std::int64_t>::min();

  Counts counts{};  ///< Of all its ops.
  /// From its first byte to where it goes on, taken and not taken; `nowhere`: no such way.
  std::array<std::int64_t, 2> distance{nowhere, nowhere};
  Run first_alone{};         ///< What runs the first op and no other.
  Run comparison{};          ///< Function of the comparison alone, if it is one op with the branch after it; else null.
  std::uint16_t op_count{};  ///< One more than instructions: the last op is none.
  std::uint16_t code_bytes{};
  std::uint16_t offset{};  ///< Of its first byte in its page.
  CodeMode mode{};
  BranchKind branch{};  ///< Of the last instruction.
  bool is_whole{};      ///< It ends where it does whatever stands behind it, and is 64-bit code.

  /// From its page to that where it goes on.
  [[nodiscard]] std::int64_t page_distance(unsigned way) const {
    return (distance[way] + offset) & ~static_cast<std::int64_t>(page_size - 1);
  }
};

/// A decoded block. In memory its ops and the code that they were decoded from follow it: see BlockArena.
struct Block : BlockFacts {
  explicit Block(const BlockFacts& facts) : BlockFacts{facts} {}
  [[nodiscard]] std::span<Op> ops() { return {reinterpret_cast<Op*>(this + 1), op_count}; }
  [[nodiscard]] std::span<const Op> ops() const { return {reinterpret_cast<const Op*>(this + 1), op_count}; }
  [[nodiscard]] std::span<const std::byte> code() const {
    return {reinterpret_cast<const std::byte*>(ops().data() + op_count), code_bytes};
  }

  /// An op's own function: the op itself may report to an observer, count, or enter compiled code.
  [[nodiscard]] Run own_run(std::size_t i) const {
    if (observed != nullptr && i < observed->real.size()) return observed->real[i];
    if (i > 0) return ops()[i].run;
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the analyzer loses what the comparison says
    return classes != nullptr ? classes->first : first;
  }

  CodeSlot slot{};  ///< Of its page, or `own` if it lies in two. never_fresh: it is out of date (CodeCache::outdate).
  CodeSlot own{};   ///< A block in two pages has this slot for itself; its compiled code checks it.
  std::uint32_t begun{};                  ///< How often it began, until it was compiled.
  std::array<Block*, 2> next{};           ///< Where `target` leads, once known.
  Run first{};                            ///< The first op's own function: the op itself may count beginnings, or enter
                                          ///< compiled code.
  std::unique_ptr<Observed> observed;     ///< Null: it was not decoded for an observer.
  std::unique_ptr<BlockClasses> classes;  ///< Null: nobody asked for classes, or all are `other`.
  std::unique_ptr<Compiled> compiled;  ///< Set once, with the first op: see Jit::compile(). It lives as long as this.
};

/// Why the engine stopped.
enum class Stop : std::uint8_t {
  none,         ///< Not at all: it looks for the next block.
  again,        ///< A string instruction has done part of its work; it goes on at the same RIP.
  budget,       ///< All instructions asked for have retired, or fewer after a kick or stop_soon().
  unsupported,  ///< The engine does not know the instruction at RIP, or not with these operands.
  fault,        ///< The instruction at RIP would fault, or touches what is no RAM.
  platform,     ///< The instruction at RIP is one that the Platform left to others.
  alone,        ///< The instruction at RIP must run by itself: it writes to a page that blocks were decoded from.
  float_error,  ///< The instruction at RIP raises #MF or #XM: see Engine::raised().
  accesses,     ///< The instruction at RIP makes several accesses, and may make more than Engine::limit_accesses() lets
                ///< pass.
};

/// Which memory may be accessed depends on these as well as on the page tables. SDM 3A 4.6.1.
enum class Rights : std::uint8_t { supervisor, supervisor_ac, user };
inline constexpr unsigned rights_count = 3;

/// The software TLB: each place has the last used of the linear pages that map to it. A tag is minus the address of a
/// page where the access is allowed, so that linear address + tag is the offset in the page. Host address = linear
/// address + add.
struct Tlb {
  using Words = std::array<std::uint64_t, tlb_entries>;
  Words read{}, write{}, add{};

  Tlb() { clear(); }
  void clear() { read = write = no_tags; }
  void clear_writes() { write = no_tags; }
  /// A tag that matches no page of this place.
  static constexpr std::uint64_t no_tag(std::size_t place) {
    return 0 - (place + tlb_entries / 2) % tlb_entries * page_size;
  }

 private:
  static const Words no_tags;
};
/// The tags of an empty TLB: faster to copy than to compute.
inline constexpr Tlb::Words Tlb::no_tags = [] {
  Words words{};
  for (std::size_t place = 0; place < tlb_entries; ++place) words[place] = no_tag(place);
  return words;
}();
/// Whether all of `bytes` at `at` are in the page of `tag`, which is the tag at the place of `at`.
constexpr bool is_tagged(std::uint64_t tag, std::uint64_t at, std::uint64_t bytes) {
  return at + tag <= page_size - bytes;
}
/// A page that a page walk has found. There are more of these than places in the software TLB: most misses there need
/// no page walk.
struct alignas(64) KnownPage {
  std::uint64_t linear{};      ///< Its number.
  std::uint64_t generation{};  ///< Core::tlb_generation at that time; a page of an older one is not known.
  std::byte* host{};
  SeenPage seen;
  Rights rights{};
  bool writable{};       ///< The walk was for a write, which has set D; and no blocks were decoded from the page.
  std::uint64_t told{};  ///< Core::stretch in which Ram::will_write() was told of it.
};
inline constexpr unsigned known_pages = 4096;
constexpr std::size_t known_place(std::uint64_t at) {
  return (at / page_size ^ at / page_size / known_pages) % known_pages;
}

/// By the 1 GiB that an address is in.
constexpr std::uint64_t large_place(std::uint64_t at) {
  constexpr std::uint64_t golden = 0x9E37'79B9'7F4A'7C15ULL;
  constexpr unsigned region_bits = 30, place_bits = 6;
  return 1ULL << ((at >> region_bits) * golden >> (64 - place_bits));
}

/// Code is kept apart by privilege, as ring 3 may not fetch all that the other rings may, and the reverse; and by mode,
/// as the same bytes are other instructions there.
inline constexpr unsigned code_privileges = 6;
constexpr unsigned code_privilege(Rights rights, CodeMode mode) {
  return 2 * static_cast<unsigned>(mode) + (rights == Rights::user ? 1U : 0U);
}

inline constexpr unsigned jump_entries = 16384;
constexpr std::size_t jump_entry(std::uint64_t rip) { return (rip ^ rip >> 12) % jump_entries; }

/// Where an operand that lies in two pages is to be stored.
struct Across {
  std::byte* low{};
  std::byte* high{};
  std::size_t in_low{};
};
inline constexpr std::size_t max_operand_bytes = 512;  // FXSAVE's

/// An access that found no RAM, or that the page tables do not allow.
struct MissingAccess {
  std::uint64_t at{};
  bool write{};
};

/// What compiled code finds relative to the core (compile/jit.hpp).
struct CompiledState {
  /// A block that computed jumps go to has a place among the first of these, which compiled code searches, and one
  /// among the others, which a routine searches.
  static constexpr unsigned near_jumps = 256, far_jumps = 16384;
  static constexpr std::size_t near_place(std::uint64_t rip) { return (rip + rip / page_size) % near_jumps; }
  static constexpr std::size_t far_place(std::uint64_t rip) { return near_jumps + (rip + rip / page_size) % far_jumps; }
  using Words = std::array<std::uint64_t, near_jumps + far_jumps>;

  std::uint16_t
      flags{};  ///< The status flags while neither has them: OF in bit 0, the others in bits 15 to 8 as LAHF has them.
  const std::byte* leave{};      ///< Routine of Jit: back to the interpreter.
  const std::byte* run_alone{};  ///< Routine of Jit: to the interpreter and back, for one op.
  std::array<const std::byte*, rights_count>
      look_further{};  ///< For a computed jump's block, in `jumps` of the Rights.
  bool (*run_op)(Core*, const Site*){};
  std::uint64_t no_sse{1};      ///< 0: SSE instructions that cannot raise an exception may run.
  std::uint64_t no_avx{1};      ///< The same for AVX.
  std::uint64_t no_mxcsr{1};    ///< 0: the others too: the host's MXCSR is the guest's, which masks all exceptions.
  std::uint64_t wants_mxcsr{};  ///< Not 0: it is to be so while compiled code runs.
  std::uint32_t host_mxcsr{};   ///< Of whoever called the engine.
  std::uint64_t to{};           ///< Code that a call is going to.
  std::uint64_t to_page{};      ///< The page of that; or the one in which a block is not fresh.
  const SeenBlock** logged_blocks{};  ///< In Tap::blocks, after the running block.
  std::uint64_t* logged_addresses{};  ///< In Tap::addresses, after the places of its accesses.
  struct Jumps {
    Words tags{};  ///< Minus the RIP of blocks that computed jumps go to.
    Words code{};  ///< The code of these blocks.
  };
  std::array<Jumps, rights_count> jumps{};  ///< By Rights, as TLBs are.
  std::array<Op, 2> alone{};                ///< The op that runs alone, and one that stops after it.
  bool went_on{};                           ///< The op that ran alone did not give up.
  std::uint64_t x87_forbidden{1};           ///< 0: x87 and MMX instructions may run: they are enabled, and cannot trap.
  std::uint64_t no_x87{1};      ///< 0: the host's x87 registers are the guest's. So only while compiled code runs.
  std::uint32_t kept_mxcsr{};   ///< While x87 registers are loaded.
  std::uint16_t host_fcw{};     ///< Of whoever called the engine.
  const std::byte* load_x87{};  ///< Routine of Jit, which changes only RCX and XMM registers.
  /// Routines of Jit, for loads and stores of each Rights: for a page that the TLB lacks, in Core::known.
  std::array<std::array<const std::byte*, 2>, rights_count> look_page_up{};
  std::array<std::uint64_t, 2> kept{};  ///< RAX and RBX, while one of these runs.

  /// What the guest has enabled, or its MXCSR, may have changed: vector code must be checked before it may run.
  void forget_vectors() {
    no_sse = no_avx = x87_forbidden = 1;
    wants_mxcsr = 0;
  }
};

/// What Core::kick is while nobody can want the engine back.
inline constexpr std::uint8_t nobody_waits = 0;

/// All that the ops work on. One vCPU's, used by one thread. The alignment is for compiled code.
struct alignas(64) Core {
  std::array<std::uint64_t, register_count> r{};
  std::uint64_t rip{};  ///< The linear address: with the base of CS, where that counts.
  LazyFlags flags;
  std::uint64_t other_flags{};     ///< RFLAGS without the status flags.
  Counts left{};                   ///< What may still pass before the engine stops.
  Block* block{};                  ///< The one that runs.
  const std::uint8_t* is_stale{};  ///< The part of `stale` for the present privilege.
  const Op* at{};                  ///< The next op, where ops do not call each other.
  Stop stop{};
  bool wrote_code{};  ///< This op has written to a page that blocks were decoded from.
  bool stepping{};    ///< One op at a time: its block's counts have not been subtracted.
  std::array<Tlb, rights_count> tlbs{};
  Tlb* tlb{tlbs.data()};                     ///< That of the present Rights.
  std::uint64_t tlb_generation{1};           ///< Of the present address space: another one when all translations in
                                             ///< it are forgotten.
  std::uint64_t last_generation{1};          ///< The latest of all spaces: grows.
  std::uint64_t large_pages{};               ///< A bit by large_place() of each large page that was found.
  std::uint64_t stretch{1};                  ///< Grows with each Engine::tell_of_writes_anew().
  std::uint64_t answer{};                    ///< The platform's.
  std::uint64_t tsc_aux{};                   ///< And its IA32_TSC_AUX for RDTSCP.
  CpuidAnswer cpuid;                         ///< And its answer for CPUID.
  std::array<Block*, jump_entries> jumps{};  ///< Blocks by their RIP, for returns and indirect jumps.
  PagingState paging;
  std::uint64_t cr2{};
  std::uint8_t cpl{};
  bool checks_accesses{};  ///< CpuState::checks_accesses.
  CodeMode mode{};
  std::uint64_t stack_mask{};   ///< Of offsets in the stack segment, outside of 64-bit code.
  std::int64_t aside{};         ///< Instructions that are left, but not for the present Engine::run().
  KickFlag kick{nobody_waits};  ///< Set: somebody waits for run() to end.
  Ram* ram{};
  Platform* platform{};
  CodePages* code{};
  AddressSpaces* spaces{};
  VectorState* vectors{};  ///< The platform's; null: not asked for since load() or resume().
  Across across;
  std::optional<MissingAccess> missing;  ///< Why the op stopped with Stop::fault; empty: for another reason.
  std::uint8_t raised{};                 ///< Why it stopped with Stop::float_error: see Engine::raised().
  alignas(
      16) std::array<std::byte, max_operand_bytes> operand{};  ///< A memory operand that cannot be used where it is.
  Tap* tap{};                                                  ///< Null while nobody observes.
  Jit* jit{};
  bool counts_classes{};  ///< Blocks are decoded for those who count classes.
  ClassCounts classes{};  ///< Of the instructions that retired meanwhile, without InstructionClass::other.
  CompiledState compiled;
  std::array<KnownPage, known_pages> known{};  ///< By known_place().
  /// By privilege and CodeSlot. 0: since translations were last forgotten the page was checked: it is mapped as before,
  /// its code is as it was decoded, and it is closed for writing.
  std::array<std::array<std::uint8_t, code_slots>, code_privileges> stale{};
  /// By CodeSlot: the linear address of the page where its code was fresh last, and so runs.
  std::array<std::uint64_t, code_slots> base{};
  /// By CodeSlot. 0: nobody has written to the page since its bytes were compared.
  std::array<std::uint8_t, code_slots> changed{};
  MoreAccesses more;
  alignas(16) std::array<std::byte, 512> fxsave_image{};  ///< Where compiled code stores the x87 registers first.

  /// Where the block stands, if it is fresh.
  [[nodiscard]] std::uint64_t rip_of(const Block& b) const { return base[b.slot] + b.offset; }
  /// Whether it may run with that RIP.
  [[nodiscard]] bool is_fresh(const Block& b, std::uint64_t there) const {
    return is_stale[b.slot] == 0 && rip_of(b) == there;
  }
};

}  // namespace vpmu::exec
