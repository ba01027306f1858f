#pragma once
#include <array>
#include <optional>

#include "exec/compile/host_registers.hpp"
#include "exec/compile/jit.hpp"
#include "exec/decode/guest_form.hpp"

namespace vpmu::exec {

/// Writes the code for one block. Between blocks the guest's status flags are in CompiledState; within one they are the
/// host's from an instruction that gives them until code that needs the host's for itself. They are never lost, because
/// the engine may have to stop at any instruction.
///
/// Such code jumps only where it seldom goes: a CPU knows few jumps that are taken, and predicts those alone.
class Translator {
 public:
  Translator(const Core& core, Block& block, Compiled& compiled, HostAssembler& to);
  /// False: it is not worth it.
  bool translate();

 private:
  using Kind = GuestForm::Kind;
  static constexpr HostRegister none = HostAssembler::none;
  static constexpr std::uint64_t word = 8;
  static constexpr std::int32_t stack_word = 8;
  static constexpr std::size_t max_ops = Block::max_ops;
  /// Sites besides one for each op, and one more for each of floating point: the rest of the block, the page, the
  /// budget, and two exits.
  static constexpr std::size_t other_sites = 5;
  /// A slow path. Written after the block, because it is seldom taken.
  struct Outside {
    HostAssembler::Label from, back;
    const Site* site;
    std::uint16_t put_back, take_again;  ///< Vector registers, before and after the instruction.
    bool x87_again;                      ///< The x87 registers are the guest's, after the instruction.
    bool saves_flags;                    ///< They are the host's alone, before the instruction.
    bool flags_again;                    ///< They are the host's, after the instruction.
    std::int32_t condition;              ///< Where CompiledState has 0 if the code may go on after the instruction;
    const Site* rest;                    ///< else the interpreter does. Null: it may always.
  };

  /// The x87 registers are not the guest's yet. `slow`: the interpreter runs the instruction, and finds out whether the
  /// next ones may run.
  struct X87Load {
    HostAssembler::Label from, loaded, slow;
  };

  /// An access whose page the TLB lacks.
  struct FarPage {
    HostAssembler::Label from, found, slow;
    HostRegister at;
    std::uint8_t bytes;
    bool store;
  };

  /// A computed jump whose block is not at the place that is searched first.
  struct FarJump {
    HostAssembler::Label from, found, slow;
  };

  /// What an instruction accesses when it is compiled, in order.
  struct Accesses {
    std::array<BlockAccess, 2> list{};
    std::size_t count{};
    bool are_known{};  ///< Else only the interpreter can tell.
  };

  void see_flags();
  void needs_interpreter(std::size_t i);
  bool is_worth_it();
  const Site* add_site(Site::Why why, std::size_t i, unsigned way = 0);
  HostAssembler::Label slowly(std::size_t i);
  void name_site(const Site* site);
  void leave_to(const Site* site);
  void write_entry();
  void count_classes();
  void write_outside();
  void write_far_pages();
  void go_on_if(std::size_t condition, std::size_t i, Outside& o);

  // Flags.
  void save_flags();
  void load_flags();
  void take_host_flags();
  [[nodiscard]] bool needs_host_flags(std::size_t i) const;
  void prepare_flags(std::size_t i);
  void jump_unless_0(HostAssembler::Memory what, HostAssembler::Label to);
  void jump_unless_rcx_is_0(HostAssembler::Label to);

  // Registers and memory.
  HostRegister read(unsigned guest, HostRegister scratch);
  [[nodiscard]] static HostRegister place(unsigned guest, HostRegister scratch) {
    return guest < homes.size() && homes[guest] != none ? homes[guest] : scratch;
  }
  void written(unsigned guest, HostRegister in);
  void place_in_code(HostRegister to, std::int64_t distance);
  HostRegister address_of(const Op& op);
  void look_up(HostRegister at, unsigned bytes, bool store, HostAssembler::Label slow);
  /// The operand that was looked up.
  [[nodiscard]] static HostAssembler::Memory found(HostRegister at) { return {at, 0, scratch_d}; }
  void found_operand(unsigned reg, HostRegister at) { a_.operand(reg, found(at)); }
  /// 64 bits of it, or 32.
  void load_found(HostRegister to, HostRegister at, bool wide);

  // For an observer.
  [[nodiscard]] Accesses accesses_of(std::size_t i) const;
  void leave_to_interpreter_what_cannot_be_noted();
  void note_accesses();
  void log_entry();
  void log_access(HostRegister at);

  // Instructions.
  void write(std::size_t i);
  void write_kind(std::size_t i);
  void run_alone(std::size_t i);
  void opcode_of(const GuestForm& f, unsigned reg, unsigned index, unsigned rm);
  void immediate_of(const GuestForm& f, const Op& op);
  void plain(std::size_t i);
  void clear_af();
  void put_flags_back();
  [[nodiscard]] bool shifts_in_two(std::size_t i) const;
  void shift_by_cl(std::size_t i);
  void shift_in_two(std::size_t i);
  void multiply(std::size_t i);
  void multiply_wide(std::size_t i);
  void lea(const GuestForm& f, const Op& op);
  void constant(const GuestForm& f, const Op& op);
  void accumulator(const GuestForm& f);
  void swap_bytes(const GuestForm& f);
  void scan(std::size_t i);
  void general(std::size_t i);
  void move_rsp(std::int32_t by);
  void look_up_push(std::size_t i);
  void push(std::size_t i);
  void pop(std::size_t i);
  void leave_frame(std::size_t i);

  // Vectors.
  void find_places_for_vectors();
  void move_vectors(bool store, std::uint16_t which);
  void find_vector_state();
  void put_vectors_back();
  void forget_vectors();
  HostAssembler::Label look_whether_it_may_run(std::size_t i);
  void look_at_alignment(HostRegister at, unsigned alignment, HostAssembler::Label slow);
  void vector(std::size_t i);
  void zero_uppers();
  HostAssembler::Label bring_x87(std::size_t i);
  void write_x87_loads();
  void load_control_word(HostRegister at, HostAssembler::Label slow);
  void x87(std::size_t i);
  void encode_vector(const VectorForm& v, unsigned reg, unsigned rm, HostRegister at);

  // Flow.
  void go(unsigned way);
  void name_page(unsigned way);
  void name_page_found();
  void jump_out(unsigned way, std::optional<unsigned> condition);
  void jcc(std::size_t i);
  void push_return(const Op& op);
  void call(std::size_t i);
  void look_up_jump(HostAssembler::Label slow);
  [[nodiscard]] std::int32_t jumps(std::size_t offset) const;
  void ret(std::size_t i);
  void jump_found();
  void indirect_jump(std::size_t i);

  [[nodiscard]] static constexpr std::int32_t in_state(std::size_t offset) {
    return in_core(offsetof(Core, compiled) + offset);
  }
  /// The linear address of the page in which the block begins.
  [[nodiscard]] HostAssembler::Memory base() const {
    return {core_base, in_core(offsetof(Core, base) + block_.slot * word)};
  }
  static constexpr HostAssembler::Memory flags_at{core_base,
                                                  in_core(offsetof(Core, compiled) + offsetof(CompiledState, flags))};

  Block& block_;
  Compiled& compiled_;
  HostAssembler& a_;
  std::size_t count_;
  std::size_t rights_;
  bool observed_;         ///< There is an observer.
  std::size_t logged_{};  ///< Accesses written so far.
  std::size_t length_{};  ///< Instructions from the first on that are compiled.
  std::array<GuestForm, max_ops> forms_{};
  std::array<bool, max_ops> flags_seen_{};
  bool flags_in_host_{};       ///< The host's flags are the guest's: code may change none.
  bool flags_in_state_{true};  ///< Those of CompiledState are; at least one of both.
  std::array<std::optional<HostAssembler::Label>, 2> ways_{};
  std::array<std::uint8_t, 16>
      vector_places_{};              ///< Host registers for the guest's vector registers, by the guest's number.
  std::uint16_t vectors_here_{};     ///< The guest's vector registers that are in host registers now.
  std::uint16_t vectors_changed_{};  ///< Those of them that have changed: their memory is out of date.
  bool uppers_too_{};                ///< Host registers hold all 256 bits: the block has AVX, and no SSE.
  std::uint8_t zero_vector_{none};   ///< A host register that the block does not use.
  bool sse_may_run_{}, avx_may_run_{}, mxcsr_is_here_{};  ///< CompiledState has been checked for these.
  bool x87_is_here_{};                                    ///< The host's x87 registers are the guest's.
  std::array<X87Load, max_ops> x87_loads_{};
  std::size_t x87_load_count_{};
  std::array<Outside, max_ops> outside_{};
  std::size_t outside_count_{};
  std::optional<FarJump> far_jump_;  ///< The last instruction's.
  std::array<FarPage, 2 * max_ops> far_pages_{};
  std::size_t far_page_count_{};
  HostAssembler::Label counts_{}, stale_{}, too_few_{}, entry_at_{}, behind_{};
};

}  // namespace vpmu::exec
