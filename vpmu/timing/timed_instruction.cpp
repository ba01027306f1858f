#include "timing/timed_instruction.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "exec/decode/instruction.hpp"
#include "timing/form.hpp"

namespace vpmu::timing {
namespace {

using exec::DecodedInstruction;

constexpr ZydisAccessedFlagsMask not_carry =
    ZYDIS_CPUFLAG_PF | ZYDIS_CPUFLAG_AF | ZYDIS_CPUFLAG_ZF | ZYDIS_CPUFLAG_SF | ZYDIS_CPUFLAG_OF;

template <std::size_t count>
bool is_one_of(ZydisMnemonic mnemonic, const std::array<ZydisMnemonic, count>& these) {
  return std::ranges::find(these, mnemonic) != these.end();
}

std::optional<Node> node_of(ZydisRegister reg) {
  const auto id = static_cast<Node>(std::max<int>(0, ZydisRegisterGetId(reg)));
  switch (ZydisRegisterGetClass(reg)) {
    case ZYDIS_REGCLASS_GPR8:
    case ZYDIS_REGCLASS_GPR16:
    case ZYDIS_REGCLASS_GPR32:
    case ZYDIS_REGCLASS_GPR64:
      return static_cast<Node>(ZydisRegisterGetId(ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, reg)));
    case ZYDIS_REGCLASS_XMM:
    case ZYDIS_REGCLASS_YMM:
      // EVEX has 32 of them. Guests have no AVX-512, but their bytes may be such an instruction.
      return id < vector_registers ? std::optional{static_cast<Node>(first_vector_node + id)} : std::nullopt;
    case ZYDIS_REGCLASS_X87:
    case ZYDIS_REGCLASS_MMX: return static_cast<Node>(first_stack_node + id);
    default: return std::nullopt;
  }
}

bool reads(const ZydisDecodedOperand& operand) { return (operand.actions & ZYDIS_OPERAND_ACTION_MASK_READ) != 0; }
bool writes(const ZydisDecodedOperand& operand) { return (operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0; }
bool is_hidden(const ZydisDecodedOperand& operand) { return operand.visibility == ZYDIS_OPERAND_VISIBILITY_HIDDEN; }

/// A write of 8 or 16 bits joins the rest of the register.
bool keeps_the_rest(ZydisRegister reg) {
  const ZydisRegisterClass kind = ZydisRegisterGetClass(reg);
  return kind == ZYDIS_REGCLASS_GPR8 || kind == ZYDIS_REGCLASS_GPR16;
}

/// How an instruction is made into a TimedInstruction.
class Maker {
 public:
  Maker(const DecodedInstruction& i, const Microarchitecture& on) : i_{i}, on_{on} {}

  TimedInstruction make() {
    made_.length = i_.in.length;
    made_.opcode_at = i_.in.raw.modrm.offset != 0 ? static_cast<std::uint8_t>(i_.in.raw.modrm.offset - 1) : 0;
    const ZydisMnemonic m = i_.in.mnemonic;
    made_.uses_stack_engine =
        m == ZYDIS_MNEMONIC_PUSH || m == ZYDIS_MNEMONIC_POP || m == ZYDIS_MNEMONIC_CALL || m == ZYDIS_MNEMONIC_RET;
    take_row();
    if (m != ZYDIS_MNEMONIC_NOP) take_operands();
    take_flags();
    take_idioms();
    take_memory();
    count_micro_ops();
    take_decoding();
    return made_;
  }

 private:
  void take_row() {
    if (i_.in.mnemonic == ZYDIS_MNEMONIC_NOP || i_.in.mnemonic == ZYDIS_MNEMONIC_PUSH ||
        i_.in.mnemonic == ZYDIS_MNEMONIC_POP) {
      made_.has_row = true;  // nothing but its load or store
      if (i_.in.mnemonic == ZYDIS_MNEMONIC_NOP && !on_.renames_idioms) uses_[0] = {on_.alu_ports, 1};
      return;
    }
    const auto row = find_row(on_.rows, form_of(i_));
    made_.has_row = row.has_value();
    if (!row) {
      uses_[0] = {on_.alu_ports, 1};
      made_.latency = 1;
      return;
    }
    uses_ = row->micro_ops;
    made_.latency = row->latency;
    made_.divider = row->divider;
  }

  void take_operands() {
    for (unsigned at = 0; at < i_.in.operand_count; ++at) {
      const ZydisDecodedOperand& operand = i_.at(at);
      if (operand.type == ZYDIS_OPERAND_TYPE_MEMORY) take_memory_operand(operand);
      if (operand.type == ZYDIS_OPERAND_TYPE_REGISTER) take_register(operand, at == 0);
    }
  }

  void take_register(const ZydisDecodedOperand& operand, bool is_first) {
    const auto node = node_of(operand.reg.value);
    if (!node) return;
    if (*node >= first_vector_node) made_.is_vector = true;
    if (*node == ZYDIS_REGISTER_RSP - ZYDIS_REGISTER_RAX) {
      if (made_.uses_stack_engine && is_hidden(operand)) return;
      made_.reads_stack_pointer = true;
    }
    const bool merges = writes(operand) && keeps_the_rest(operand.reg.value);
    if (is_first && reads(operand) && writes(operand)) first_is_both_ = true;
    if (reads(operand) || merges) made_.sources.add(*node);
    if (writes(operand)) made_.results.add(*node);
  }

  void take_memory_operand(const ZydisDecodedOperand& operand) {
    const auto& mem = operand.mem;
    const auto base = node_of(mem.base), index = node_of(mem.index);
    if (mem.type == ZYDIS_MEMOP_TYPE_AGEN) {
      if (base) made_.sources.add(*base);
      if (index) made_.sources.add(*index);
      take_lea(mem);
      return;
    }
    const bool by_stack_engine = made_.uses_stack_engine && is_hidden(operand);
    if (base && !by_stack_engine) made_.addresses.add(*base);
    if (index) made_.addresses.add(*index);
    if (base && !by_stack_engine && *base == 4) made_.reads_stack_pointer = true;
    const bool is_prefetch = i_.in.meta.category == ZYDIS_CATEGORY_PREFETCH;
    if (reads(operand) || is_prefetch) ++made_.loads;
    if (writes(operand) && !is_prefetch) ++made_.stores;
    is_indexed_ |= index.has_value();
    memory_bits_ = operand.size;
    has_simple_address_ = !index && mem.disp.value >= 0 && mem.disp.value < 2048;
  }

  /// 248966, using LEA: three components, or RBP, R13 or RIP as the base, take port 1 for three cycles.
  void take_lea(const ZydisDecodedOperandMem& mem) {
    const bool has_base = mem.base != ZYDIS_REGISTER_NONE, has_index = mem.index != ZYDIS_REGISTER_NONE;
    const bool has_displacement = mem.disp.has_displacement && mem.disp.value != 0;
    const bool by_rip = mem.base == ZYDIS_REGISTER_RIP;
    if (on_.slow_lea_ports == 0) return;
    const bool needs_displacement = mem.base == ZYDIS_REGISTER_RBP || mem.base == ZYDIS_REGISTER_R13;
    if (!by_rip && !(has_index && needs_displacement) && !(has_base && has_index && has_displacement)) return;
    uses_ = {};
    uses_[0] = {on_.slow_lea_ports, 1};
    made_.latency = 3;
  }

  void take_flags() {
    if (i_.in.cpu_flags == nullptr || i_.in.mnemonic == ZYDIS_MNEMONIC_NOP) return;
    const ZydisAccessedFlags& flags = *i_.in.cpu_flags;
    const ZydisAccessedFlagsMask written = flags.modified | flags.set_0 | flags.set_1 | flags.undefined;
    if ((flags.tested & ZYDIS_CPUFLAG_CF) != 0) made_.sources.add(carry_node);
    if ((flags.tested & not_carry) != 0) made_.sources.add(flags_node);
    if ((written & ZYDIS_CPUFLAG_CF) != 0) made_.results.add(carry_node);
    if ((written & not_carry) != 0) made_.results.add(flags_node);
  }

  [[nodiscard]] bool same_registers(unsigned a, unsigned b) const {
    return i_.visible() > std::max(a, b) && i_.is_register(a) && i_.is_register(b) &&
           i_.at(a).reg.value == i_.at(b).reg.value;
  }

  /// 248966, renamer: zeroing and ones idioms, eliminated moves. By InstLatX64: saturating subtractions, PCMPGTQ, and
  /// destinations that are waited for.
  void take_idioms() {
    static constexpr std::array zeroing{
        ZYDIS_MNEMONIC_XOR,      ZYDIS_MNEMONIC_SUB,      ZYDIS_MNEMONIC_PXOR,    ZYDIS_MNEMONIC_XORPS,
        ZYDIS_MNEMONIC_XORPD,    ZYDIS_MNEMONIC_VPXOR,    ZYDIS_MNEMONIC_VXORPS,  ZYDIS_MNEMONIC_VXORPD,
        ZYDIS_MNEMONIC_PSUBB,    ZYDIS_MNEMONIC_PSUBW,    ZYDIS_MNEMONIC_PSUBD,   ZYDIS_MNEMONIC_PSUBQ,
        ZYDIS_MNEMONIC_VPSUBB,   ZYDIS_MNEMONIC_VPSUBW,   ZYDIS_MNEMONIC_VPSUBD,  ZYDIS_MNEMONIC_VPSUBQ,
        ZYDIS_MNEMONIC_PCMPGTB,  ZYDIS_MNEMONIC_PCMPGTW,  ZYDIS_MNEMONIC_PCMPGTD, ZYDIS_MNEMONIC_VPCMPGTB,
        ZYDIS_MNEMONIC_VPCMPGTW, ZYDIS_MNEMONIC_VPCMPGTD, ZYDIS_MNEMONIC_PSUBSB,  ZYDIS_MNEMONIC_PSUBSW,
        ZYDIS_MNEMONIC_PSUBUSB,  ZYDIS_MNEMONIC_PSUBUSW,  ZYDIS_MNEMONIC_VPSUBSB, ZYDIS_MNEMONIC_VPSUBSW,
        ZYDIS_MNEMONIC_VPSUBUSB, ZYDIS_MNEMONIC_VPSUBUSW, ZYDIS_MNEMONIC_PCMPGTQ, ZYDIS_MNEMONIC_VPCMPGTQ};
    static constexpr std::array ones{ZYDIS_MNEMONIC_PCMPEQB,  ZYDIS_MNEMONIC_PCMPEQW,  ZYDIS_MNEMONIC_PCMPEQD,
                                     ZYDIS_MNEMONIC_PCMPEQQ,  ZYDIS_MNEMONIC_VPCMPEQB, ZYDIS_MNEMONIC_VPCMPEQW,
                                     ZYDIS_MNEMONIC_VPCMPEQD, ZYDIS_MNEMONIC_VPCMPEQQ};
    const bool is_vex = i_.in.encoding == ZYDIS_INSTRUCTION_ENCODING_VEX;
    const bool equal_sources = is_vex ? same_registers(1, 2) : same_registers(0, 1);
    const ZydisMnemonic m = i_.in.mnemonic;
    if (equal_sources && is_one_of(m, ones)) made_.sources.clear();
    if (equal_sources && is_one_of(m, zeroing) && is_renamed_whole(i_.at(0))) {
      made_.sources.clear();
      if (on_.renames_idioms) {
        made_.is_free = true;
        made_.latency = 0;
        uses_ = {};
      }
    }
    if (on_.eliminates_moves && is_eliminated_move()) {
      made_.latency = 0;
      uses_ = {};
    }
    if (waits_for_destination() && !made_.results.empty()) made_.sources.add(*made_.results.begin());
  }

  /// MMX registers are not renamed so.
  [[nodiscard]] static bool is_renamed_whole(const ZydisDecodedOperand& operand) {
    return operand.size >= 32 && ZydisRegisterGetClass(operand.reg.value) != ZYDIS_REGCLASS_MMX;
  }

  [[nodiscard]] bool is_eliminated_move() const {
    static constexpr std::array vector_moves{ZYDIS_MNEMONIC_MOVAPS,  ZYDIS_MNEMONIC_MOVAPD,  ZYDIS_MNEMONIC_MOVUPS,
                                             ZYDIS_MNEMONIC_MOVUPD,  ZYDIS_MNEMONIC_MOVDQA,  ZYDIS_MNEMONIC_MOVDQU,
                                             ZYDIS_MNEMONIC_VMOVAPS, ZYDIS_MNEMONIC_VMOVAPD, ZYDIS_MNEMONIC_VMOVUPS,
                                             ZYDIS_MNEMONIC_VMOVUPD, ZYDIS_MNEMONIC_VMOVDQA, ZYDIS_MNEMONIC_VMOVDQU};
    if (i_.visible() != 2 || !i_.is_register(0) || !i_.is_register(1) || same_registers(0, 1)) return false;
    const ZydisMnemonic m = i_.in.mnemonic;
    if (m == ZYDIS_MNEMONIC_MOV)
      return i_.at(0).size >= 32 && node_of(i_.at(1).reg.value) && node_of(i_.at(0).reg.value);
    const ZydisRegister from = i_.at(1).reg.value;
    if (m == ZYDIS_MNEMONIC_MOVZX)
      return i_.at(1).size == 8 && i_.at(0).size >= 32 && (from < ZYDIS_REGISTER_AH || from > ZYDIS_REGISTER_BH);
    return is_one_of(m, vector_moves);
  }

  [[nodiscard]] bool waits_for_destination() const {
    static constexpr std::array merging{ZYDIS_MNEMONIC_SQRTSS,   ZYDIS_MNEMONIC_SQRTSD,   ZYDIS_MNEMONIC_RCPSS,
                                        ZYDIS_MNEMONIC_RSQRTSS,  ZYDIS_MNEMONIC_ROUNDSS,  ZYDIS_MNEMONIC_ROUNDSD,
                                        ZYDIS_MNEMONIC_CVTSI2SS, ZYDIS_MNEMONIC_CVTSI2SD, ZYDIS_MNEMONIC_CVTSS2SD,
                                        ZYDIS_MNEMONIC_CVTSD2SS};
    const ZydisMnemonic m = i_.in.mnemonic;
    if (m == ZYDIS_MNEMONIC_LZCNT || m == ZYDIS_MNEMONIC_TZCNT) return on_.bit_counts_wait;
    return m == ZYDIS_MNEMONIC_POPCNT || m == ZYDIS_MNEMONIC_BSF || m == ZYDIS_MNEMONIC_BSR || is_one_of(m, merging);
  }

  void take_memory() {
    if (made_.loads == 0) return;
    const bool only_loads = compute_micro_ops() == 0;
    if (memory_bits_ == 256) {
      made_.load_latency = on_.wide_load_latency;
    } else if (made_.is_vector) {
      made_.load_latency = on_.vector_load_latency;
    } else {
      made_.load_latency = has_simple_address_ && only_loads ? on_.simple_load_latency : on_.load_latency;
    }
  }

  [[nodiscard]] unsigned compute_micro_ops() const {
    unsigned all{};
    for (const PortUse& use : uses_) all += use.count;
    return all;
  }

  void count_micro_ops() {
    const unsigned compute = compute_micro_ops();
    made_.micro_ops = static_cast<std::uint16_t>(compute + made_.loads + 2U * made_.stores);
    // 248966, micro-fusion: a load joins what it is for, and a store's address its data.
    unsigned slots = made_.micro_ops - made_.stores;
    if (compute != 0 && made_.loads != 0) --slots;
    made_.decoded = static_cast<std::uint16_t>(std::max(1U, slots));
    if (is_indexed_ && is_unlaminated(compute))
      slots += on_.unlaminates_all_indexed ? (compute != 0 && made_.loads != 0) + made_.stores : 1U;
    made_.slots = static_cast<std::uint16_t>(std::max(1U, slots));
    add_ports({on_.load_ports, made_.loads});
    add_ports({is_indexed_ ? on_.indexed_store_address_ports : on_.store_address_ports, made_.stores});
    add_ports({on_.store_data_ports, made_.stores});
    for (const PortUse& use : uses_) add_ports(use);
  }

  /// 248966, micro-op queue, of Sandy Bridge. uiCA, of Haswell on: those with two operands of which the first is read,
  /// too, stay one.
  [[nodiscard]] bool is_unlaminated(unsigned compute) const {
    if (on_.unlaminates_all_indexed) return made_.stores != 0 || (made_.loads != 0 && compute != 0);
    if (made_.loads == 0 || compute == 0 || made_.stores != 0) return false;
    return !first_is_both_ && made_.is_vector;
  }

  void add_ports(PortUse use) {
    if (use.count == 0) return;
    for (std::size_t set = 0; set < max_port_sets; ++set) {
      const unsigned ports = on_.port_sets[set];
      if (use.ports == ports) made_.by_port_set[set] = static_cast<std::uint8_t>(made_.by_port_set[set] + use.count);
      if ((use.ports & ~ports) == 0)
        made_.ports[set] = static_cast<std::uint16_t>(made_.ports[set] + use.count * cycle / std::popcount(ports));
    }
  }

  void take_decoding() {
    const ZydisMnemonic m = i_.in.mnemonic;
    made_.needs_first_decoder = made_.slots > 1;
    made_.is_microcode = made_.slots > 4;
    made_.is_locked = i_.locked() || (m == ZYDIS_MNEMONIC_XCHG && made_.stores != 0);
    made_.barrier = m == ZYDIS_MNEMONIC_LFENCE   ? Barrier::dispatch
                    : m == ZYDIS_MNEMONIC_MFENCE ? Barrier::loads
                                                 : Barrier::none;
    made_.is_branch = i_.in.meta.branch_type != ZYDIS_BRANCH_TYPE_NONE;
    made_.has_length_prefix = i_.has(ZYDIS_ATTRIB_HAS_OPERANDSIZE) && i_.in.raw.imm[0].size == 16 &&
                              i_.in.encoding == ZYDIS_INSTRUCTION_ENCODING_LEGACY && !made_.is_branch;
    made_.takes_two_places = has_wide_constant();
    const exec::FusionPart part = exec::fusion_part(i_);
    if (part.compares || !on_.fuses_compares_only) made_.fusion = part.first;
    made_.condition = part.condition;
  }

  /// 248966, decoded ICache: a constant of 64 bits. uiCA: one that 16 bits do not hold, beside an address.
  [[nodiscard]] bool has_wide_constant() const {
    const auto& constant = i_.in.raw.imm[0];
    if (constant.size == 0 || constant.is_relative) return false;
    const auto fits = [value = constant.value.s](unsigned bits) {
      const std::int64_t most = std::int64_t{1} << (bits - 1);
      return -most <= value && value < most;
    };
    return !fits(32) || (!fits(16) && made_.loads + made_.stores != 0);
  }

  const DecodedInstruction& i_;
  const Microarchitecture& on_;
  TimedInstruction made_;
  std::array<PortUse, 6> uses_{};
  unsigned memory_bits_{};
  bool is_indexed_{}, has_simple_address_{}, first_is_both_{};
};

}  // namespace

TimedInstruction timed_instruction(const exec::DecodedInstruction& i, const Microarchitecture& on) {
  return Maker{i, on}.make();
}

void join(std::span<TimedInstruction> block, const Microarchitecture& on) {
  bool stack_pointer_is_behind = false;
  for (std::size_t at = 0; at < block.size(); ++at) {
    TimedInstruction& i = block[at];
    if (i.uses_stack_engine) {
      stack_pointer_is_behind = true;
    } else if (i.reads_stack_pointer && stack_pointer_is_behind) {
      ++i.slots;
      ++i.micro_ops;
      stack_pointer_is_behind = false;
    }
    if (at == 0) continue;
    TimedInstruction& before = block[at - 1];
    if (i.condition == Fusion::none || before.fusion < i.condition) continue;
    i.fuses = true;
    i.slots = i.micro_ops = 0;
    i.ports = {};
    i.by_port_set = {};
    // The pair goes where branches go: what the compare took of the ALUs' ports alone is taken there.
    for (std::size_t set = 0; set < max_port_sets; ++set) {
      const unsigned ports = on.port_sets[set];
      const bool has_alus = (on.alu_ports & ~ports) == 0, has_branches = (on.fused_branch_ports & ~ports) == 0;
      if (ports == on.alu_ports) --before.by_port_set[set];
      if (ports == on.fused_branch_ports) ++before.by_port_set[set];
      if (ports != 0 && has_branches && !has_alus)
        before.ports[set] = static_cast<std::uint16_t>(before.ports[set] + cycle / std::popcount(ports));
    }
  }
}

std::vector<TimedInstruction> timed_code(std::span<const std::byte> code, unsigned bits, const Microarchitecture& on) {
  using enum exec::CodeMode;
  const exec::CodeMode mode = bits == 64 ? bits64 : bits == 32 ? bits32 : bits16;
  std::vector<TimedInstruction> block;
  exec::DecodedInstruction decoded;
  for (std::size_t at = 0; at < code.size() && exec::read_instruction(code.subspan(at), mode, decoded);
       at += decoded.in.length)
    block.push_back(timed_instruction(decoded, on));
  return block;
}

std::optional<std::vector<TimedInstruction>> timed_block(std::span<const std::byte> code, const Microarchitecture& on) {
  std::vector<TimedInstruction> block = timed_code(code, 64, on);
  std::size_t bytes = 0;
  for (const TimedInstruction& i : block) bytes += i.length;
  if (bytes != code.size()) return std::nullopt;
  join(block, on);
  return block;
}

}  // namespace vpmu::timing
