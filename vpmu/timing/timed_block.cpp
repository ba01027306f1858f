#include "timing/timed_block.hpp"

#include <algorithm>
#include <utility>

namespace vpmu::timing {
namespace {

constexpr std::uint64_t predecode_bytes = 16;

/// Finds the lengths of instructions: so many of a block of bytes in a cycle. 248966, legacy decode pipeline.
class Predecoder {
 public:
  /// `in_block` have been found in the 16 bytes that hold `rip`.
  Predecoder(const Microarchitecture& on, std::uint64_t rip, unsigned in_block)
      : on_{on}, block_{rip / predecode_bytes}, in_block_{in_block} {}

  Tick take(const TimedInstruction& i, std::uint64_t rip) {
    const std::uint64_t opcode = (rip + i.opcode_at) / predecode_bytes, last = (rip + i.length - 1) / predecode_bytes;
    if (opcode != last) take(opcode);
    take(last);
    if (i.has_length_prefix) done_ += TimedBlock::length_prefix_cost;
    return done_;
  }
  /// Instructions of the 16 bytes that hold `rip`, which follows the last one.
  [[nodiscard]] std::uint8_t leaves(std::uint64_t rip) const {
    return rip / predecode_bytes == block_ ? static_cast<std::uint8_t>(in_block_) : 0;
  }

 private:
  void take(std::uint64_t block) {
    if (block != block_ || in_block_ == 0) {
      done_ += cycle;
      block_ = block;
      in_block_ = 0;
    }
    if (++in_block_ > on_.predecode_width) {
      in_block_ = 1;
      done_ += cycle;
    }
  }

  const Microarchitecture& on_;
  std::uint64_t block_;
  unsigned in_block_;
  Tick done_{};
};

/// Decodes what has been predecoded. 248966, legacy decode pipeline.
class Decoders {
 public:
  Decoders(const Microarchitecture& on, unsigned used) : on_{on}, used_{used} {}

  Tick take(const TimedInstruction& i, std::uint64_t /*rip*/) {
    if (!i.fuses) decode(i);
    if (i.is_branch) used_ = on_.decoders;
    return done_;
  }
  /// Decoders that are taken.
  [[nodiscard]] std::uint8_t leaves(std::uint64_t /*rip*/) const { return static_cast<std::uint8_t>(used_); }

 private:
  void decode(const TimedInstruction& i) {
    const bool on_the_last = used_ + 1U == on_.decoders;
    if (used_ >= on_.decoders || i.needs_first_decoder ||
        (on_the_last && i.fusion != Fusion::none && !on_.fuses_on_last_decoder)) {
      done_ += cycle;
      used_ = 0;
    }
    ++used_;
    if (i.is_microcode) {
      done_ += (i.slots + 3) / 4 * cycle;
      used_ = on_.decoders;
    }
  }

  const Microarchitecture& on_;
  unsigned used_;
  Tick done_{};
};

/// Reads lines of the micro-op cache. 248966, decoded ICache: each holds up to six micro-ops of the same 32 bytes of
/// code, two branches, and all of an instruction; microcode has a line of its own. uiCA: up to two lines in a cycle,
/// and a micro-op that takes two places ends the cycle.
class LineReader {
 public:
  LineReader(const Microarchitecture& on, std::uint64_t rip, unsigned places)
      : on_{on}, window_{rip / window_bytes}, before_{places}, places_{places} {}

  Tick take(const TimedInstruction& i, std::uint64_t rip) {
    if (i.fuses) {
      branches_ += 1;
      return done();
    }
    const std::uint64_t window = rip / window_bytes;
    const unsigned places = i.is_microcode ? TimedBlock::line_places : i.decoded + (i.takes_two_places ? 1U : 0U);
    if (window != window_) lines_ = 0;
    if (window != window_ || places_ + places > TimedBlock::line_places || (i.is_branch && branches_ == max_branches))
      begin_line();
    window_ = window;
    places_ += places;
    branches_ += i.is_branch ? 1 : 0;
    whole_cycles_ += i.takes_two_places ? cycle : 0;
    if (i.is_microcode) microcode_ += (on_.cache_to_microcode + (i.slots + 3) / 4) * cycle;
    return done();
  }
  /// Of the line in which the instruction at `rip`, which follows the last one, may be.
  [[nodiscard]] std::uint8_t leaves(std::uint64_t rip) const {
    return rip / window_bytes == window_ ? static_cast<std::uint8_t>(places_) : TimedBlock::line_places;
  }
  [[nodiscard]] bool fits() const { return fits_; }

 private:
  static constexpr std::uint64_t window_bytes = 32;
  static constexpr unsigned max_branches = 2, max_lines = 3;

  void begin_line() {
    read_ += line();
    before_ = places_ = branches_ = 0;
    whole_cycles_ = 0;
    if (++lines_ > max_lines) fits_ = false;
  }
  [[nodiscard]] Tick reading(unsigned places) const {
    return places == 0 ? 0 : std::max(cycle / 2, static_cast<Tick>(places) * cycle / on_.cache_width);
  }
  /// What reading the line takes, besides what it took for the block before.
  [[nodiscard]] Tick line() const { return std::max(reading(places_) - reading(before_), whole_cycles_); }
  [[nodiscard]] Tick done() const { return read_ + line() + microcode_; }

  const Microarchitecture& on_;
  std::uint64_t window_;
  unsigned before_, places_, branches_{}, lines_{};
  Tick read_{}, whole_cycles_{}, microcode_{};
  bool fits_{true};
};

/// A row in the making: what each column adds.
using Row = std::vector<Tick>;

void raise(Row& row, const Row& by, Tick latency) {
  for (std::size_t column = 0; column < by.size(); ++column)
    if (by[column] != never) row[column] = std::max(row[column], static_cast<Tick>(by[column] + latency));
}

class BlockMaker {
 public:
  BlockMaker(std::span<const TimedInstruction> code, std::uint64_t rip, const Microarchitecture& on)
      : code_{code}, rip_{rip}, on_{on}, predecoder_{on, rip, 0}, decoders_{on, on.decoders} {
    made_.instructions = static_cast<std::uint16_t>(code.size());
    find_columns();
  }

  TimedBlockPtr make() {
    for (const TimedInstruction& i : code_) take(i);
    std::vector<Row> rows;
    for (std::size_t node = 0; node < node_count; ++node) {
      if (!is_written_[node]) continue;
      results_.push_back(static_cast<Node>(node));
      rows.push_back(nodes_[node]);
    }
    rows.insert(rows.end(), access_rows_.begin(), access_rows_.end());
    Row& last = rows.emplace_back(columns(), never);
    for (const Retiring& retiring : retiring_) raise(last, retiring.row, made_.slots - retiring.slots);
    made_.ends_in_branch = !code_.empty() && code_.back().is_branch;
    if (!code_.empty()) made_.barrier = code_.back().barrier;
    if (made_.ends_in_branch) rows.push_back(branch_);
    make_matrix(rows);
    take_front_end();
    std::ranges::transform(ports_, made_.ports.begin(), in_short);
    return put();
  }

 private:
  /// When an instruction could retire, and the issue slots up to it.
  struct Retiring {
    Row row;
    Tick slots{};
  };

  void find_columns() {
    std::array<bool, node_count> is_known{};
    const auto read = [&](Node node) {
      if (!std::exchange(is_known[node], true)) inputs_.push_back(node);
    };
    for (const TimedInstruction& i : code_) {
      for (const Node node : i.addresses) read(node);
      for (const Node node : i.sources) read(node);
      for (const Node node : i.results) is_known[node] = true;
      made_.loads = static_cast<std::uint16_t>(made_.loads + i.loads);
    }
    waiting_.resize(columns() - TimedBlock::first_input);
    for (std::size_t at = 0; at < inputs_.size(); ++at) {
      Row& row = nodes_[inputs_[at]];
      row.assign(columns(), never);
      row[TimedBlock::first_input + at] = 0;
    }
  }

  /// A row that only waits until an instruction of the block is dispatched, less so much.
  [[nodiscard]] Row dispatched(Tick earlier = 0) const {
    Row row(columns(), never);
    row[0] = issued_ - earlier;
    row[1] = decoded_ - earlier;
    return row;
  }

  void take(const TimedInstruction& i) {
    issue(i);
    Row address = dispatched();
    for (const Node node : i.addresses) raise(address, nodes_[node], 0);
    Row data = dispatched();
    for (const Node node : i.sources) raise(data, nodes_[node], 0);
    for (unsigned load = 0; load < i.loads; ++load) take_load(i, address, data);
    wait(i, address, data);
    Row result(columns(), never);
    raise(result, data, i.latency * cycle);
    const Row issued = dispatched(on_.issue_to_dispatch * cycle);
    for (const Node node : i.results) {
      nodes_[node] = i.is_free ? issued : result;
      is_written_[node] = true;
    }
    raise(result, address, 0);
    if (i.is_branch) {
      // The two that fuse are one micro-op, and the flags are when it has executed.
      branch_ = dispatched();
      raise(branch_, i.fuses ? data : result, 0);
    }
    for (unsigned store = 0; store < i.stores; ++store) {
      accesses_.push_back({.is_store = true});
      access_rows_.push_back(result);
    }
    retiring_.push_back({i.is_free || i.micro_ops == 0 ? issued : result, made_.slots});
    made_.executed = static_cast<std::uint16_t>(made_.executed + i.micro_ops);
    made_.stores = static_cast<std::uint16_t>(made_.stores + i.stores);
    made_.divider += i.divider * cycle;
    count(i);
    for (std::size_t set = 0; set < max_port_sets; ++set) ports_[set] += i.ports[set];
  }

  /// Within the block an instruction is issued after those before it, as width and, if it is decoded anew, decoders
  /// allow.
  void issue(const TimedInstruction& i) {
    const Tick decoded = std::max(predecoder_.take(i, rip_ + offset_), decoders_.take(i, rip_ + offset_));
    if (offset_ == 0) first_decoded_ = decoded;
    offset_ += i.length;
    const Tick width = i.slots * cycle / on_.issue_width;
    made_.slots += width;
    made_.micro_ops = static_cast<std::uint16_t>(made_.micro_ops + i.slots);
    issued_ += width;
    decoded_ = std::max(decoded_ + width, decoded - first_decoded_);
  }

  void take_load(const TimedInstruction& i, const Row& address, Row& data) {
    const int latency = i.is_locked ? on_.locked - i.latency : i.load_latency;
    accesses_.push_back({.is_vector = i.is_vector,
                         .is_locked = i.is_locked,
                         .load = load_,
                         .latency = static_cast<std::int16_t>(latency * cycle)});
    access_rows_.push_back(address);
    raise(data, address, i.load_latency * cycle);
    data[TimedBlock::first_input + inputs_.size() + load_++] = 0;
  }

  void count(const TimedInstruction& i) {
    const auto add = [this](TimedBlock::Amount amount, unsigned more) {
      made_.all[static_cast<std::size_t>(amount)] += more;
    };
    using enum TimedBlock::Amount;
    for (std::size_t set = 0; set < max_port_sets; ++set) made_.all[set] += i.by_port_set[set];
    add(slots, i.slots);
    add(executed, i.micro_ops);
    if (!i.fuses) add(i.is_microcode ? microcode : decoded, i.is_microcode ? i.slots : i.decoded);
    add(length_prefixes, i.has_length_prefix ? 1 : 0);
    add(divider, i.divider * static_cast<unsigned>(cycle));
    add(divisions, i.divider != 0 ? 1 : 0);
    add(unfused, std::max(i.slots, i.micro_ops));
  }

  void wait(const TimedInstruction& i, const Row& address, const Row& data) {
    for (std::size_t at = 0; at < waiting_.size(); ++at) {
      const Tick operands = std::max(address[TimedBlock::first_input + at], data[TimedBlock::first_input + at]);
      if (operands == never) continue;
      TimedBlock::Waiting& waiting = waiting_[at];
      waiting.half = std::max(waiting.half, operands / 2);
      waiting.micro_ops = static_cast<std::uint16_t>(waiting.micro_ops + i.micro_ops);
    }
  }

  void take_front_end() {
    for (unsigned state = 0; state < TimedBlock::front_end_states; ++state) {
      Predecoder predecoder{on_, rip_, state};
      Decoders decoders{on_, state};
      LineReader reader{on_, rip_, state};
      made_.predecode[state] = through(predecoder);
      made_.decode[state] = through(decoders);
      made_.cached[state] = through(reader);
    }
    LineReader lines{on_, rip_, TimedBlock::line_places};
    static_cast<void>(through(lines));
    made_.fits_cache = lines.fits();
  }

  /// What a part of the front end takes of the block.
  template <class Part>
  [[nodiscard]] TimedBlock::FrontEnd through(Part& part) const {
    TimedBlock::FrontEnd made;
    std::uint64_t rip = rip_;
    for (const TimedInstruction& i : code_) {
      made.takes = in_short(part.take(i, rip));
      if (rip == rip_) made.first = made.takes;
      rip += i.length;
    }
    made.leaves = part.leaves(rip);
    return made;
  }

  [[nodiscard]] std::size_t columns() const { return TimedBlock::first_input + inputs_.size() + made_.loads; }
  [[nodiscard]] static TimedBlock::ShortTicks in_short(Tick ticks) {
    return static_cast<TimedBlock::ShortTicks>(std::min<Tick>(ticks, 0xFFFF));
  }

  void make_matrix(const std::vector<Row>& rows) {
    made_.vectors = static_cast<std::uint16_t>((rows.size() + TimedBlock::lanes - 1) / TimedBlock::lanes);
    matrix_.assign(columns() * made_.vectors, Ticks4{} + never);
    for (std::size_t row = 0; row < rows.size(); ++row)
      for (std::size_t column = 0; column < columns(); ++column)
        matrix_[column * made_.vectors + row / TimedBlock::lanes][row % TimedBlock::lanes] = rows[row][column];
  }

  /// The block with what stands behind it, in TimedBlock's order.
  [[nodiscard]] TimedBlockPtr put() {
    made_.input_count = static_cast<std::uint16_t>(inputs_.size());
    made_.result_count = static_cast<std::uint16_t>(results_.size());
    made_.access_count = static_cast<std::uint16_t>(accesses_.size());
    const auto bytes_of = [](const auto&... all) { return (std::as_bytes(std::span{all}).size() + ...); };
    void* const block = ::operator new(sizeof made_ + bytes_of(matrix_, waiting_, accesses_, inputs_, results_));
    TimedBlockPtr made{std::construct_at(static_cast<TimedBlock*>(block), made_)};
    auto* to = static_cast<std::byte*>(block) + sizeof made_;
    const auto add = [&to](const auto& all) { to = std::ranges::copy(std::as_bytes(std::span{all}), to).out; };
    add(matrix_);
    add(waiting_);
    add(accesses_);
    add(inputs_);
    add(results_);
    return made;
  }

  std::span<const TimedInstruction> code_;
  std::uint64_t rip_;
  const Microarchitecture& on_;
  TimedBlock made_;
  std::array<Tick, max_port_sets> ports_{};
  std::vector<Ticks4> matrix_;
  std::vector<TimedBlock::Waiting> waiting_;
  std::vector<TimedBlock::Access> accesses_;
  std::vector<Node> inputs_, results_;
  Predecoder predecoder_;
  Decoders decoders_;
  std::array<Row, node_count> nodes_;
  std::array<bool, node_count> is_written_{};
  std::vector<Row> access_rows_;
  std::vector<Retiring> retiring_;
  Row branch_;
  Tick issued_{}, decoded_{}, first_decoded_{};
  std::uint64_t offset_{};
  std::uint16_t load_{};
};

}  // namespace

TimedBlockPtr make_block(std::span<const TimedInstruction> code, std::uint64_t rip, const Microarchitecture& on) {
  return BlockMaker{code, rip, on}.make();
}

std::vector<TimedBlockPtr> make_blocks(std::span<const TimedInstruction> code, std::uint64_t rip,
                                       const Microarchitecture& on) {
  std::vector<TimedBlockPtr> blocks;
  while (!code.empty()) {
    const auto part = code.first(std::min(code.size(), TimedBlock::max_instructions));
    blocks.push_back(make_block(part, rip, on));
    for (const TimedInstruction& i : part) rip += i.length;
    code = code.subspan(part.size());
  }
  return blocks;
}

}  // namespace vpmu::timing
