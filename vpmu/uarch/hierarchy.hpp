#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

#include "uarch/sharing.hpp"
#include "uarch/tlb.hpp"
#include "vpmu/offcore.hpp"
#include "vpmu/retirement.hpp"
#include "vpmu/uncore.hpp"

namespace vpmu::uarch {

/// A load or store of `bytes` bytes at `linear`, which lie in one page.
struct DataAccess {
  std::uint64_t linear{};
  std::uint64_t physical{};
  std::uint32_t bytes{};
  PageSize page{};
};

/// The result of a load or store.
struct DataResult {
  HitLevel level{};  ///< Of the slower line, if the access spans two.
  TlbResult tlb{};
  std::uint16_t latency{};  ///< Core cycles from dispatch to data.
  bool split{};             ///< The access spans two lines.
  bool met_prefetch{};      ///< The line is in flight because of a software prefetch.
  PageSize page{};
  friend bool operator==(const DataResult&, const DataResult&) = default;
};

/// The result of fetching a line of code.
struct FetchResult {
  HitLevel level{};  ///< l1, l2, l3, l3_shared, l3_modified or dram.
  TlbResult tlb{};
  bool decoded{};  ///< Its instructions were in the decoded micro-op cache.
  friend bool operator==(const FetchResult&, const FetchResult&) = default;
};

/// Lines whose repeated use changes nothing in the models of caches and TLBs: each is the most recently used of its L1
/// set, as is its page in the first TLB, and it is not in flight. By linear address; a place holds one line.
class Repeats {
 public:
  /// Lines in a page. An L1 has this many sets, or a multiple. So lines of one set share a place, and a line's linear
  /// and physical addresses give the same place.
  static constexpr std::uint64_t places = 64;

  /// `sets`: of the TLB for pages of 4 KiB.
  explicit Repeats(std::uint32_t sets) : last_set_{std::min<std::uint32_t>(sets, max_sets) - 1} { clear(); }

  [[nodiscard]] bool has(std::uint64_t linear) const { return lines_[linear / line_bytes % places] == marked(linear); }
  void put(std::uint64_t linear) { lines_[linear / line_bytes % places] = marked(linear); }
  /// Drops what is at the place of this line. `line`: a line number, linear or physical.
  void drop(std::uint64_t line) { lines_[line % places] = none; }
  /// Drops all lines of pages that share a TLB set with the 4 KiB page at `linear`: the set's latest page changes.
  void drop_pages(std::uint64_t linear) {
    std::uint64_t& mark = marks_[linear / page_size & last_set_];
    mark += 1ULL << mark_at;
    if (mark == 0) clear();
  }
  void clear() { lines_.fill(none); }

 private:
  static constexpr std::uint32_t max_sets = 64;
  static constexpr std::uint64_t none = ~0ULL;
  // A canonical address has 48 significant bits, its line number 42; the bits above are copies of the highest. So two
  // different lines never become equal by their marks.
  static constexpr unsigned mark_at = 44;
  [[nodiscard]] std::uint64_t marked(std::uint64_t linear) const {
    return linear / line_bytes ^ marks_[linear / page_size & last_set_];
  }

  std::array<std::uint64_t, places> lines_{};
  std::array<std::uint64_t, max_sets> marks_{};  ///< Of each TLB set: only lines with its present mark are valid.
  std::uint64_t last_set_;
};

/// Caches, TLBs and fill buffers of one core, which one thread uses or two, with a clock that tells which fills are in
/// flight. It advances by advance(), and by the wait of an access for a fill buffer when all are in use. Otherwise
/// loads do not wait for each other.
///
/// Deterministic: the same accesses after construction give the same results. Allocates in its constructor only; about
/// 0.6 MiB with an L3 of 8 MiB.
class Hierarchy {
 public:
  static constexpr unsigned max_threads = 2;
  /// Cold: nothing in any cache. The profile must outlive it. Two threads share the L1s, the L2, the data TLB, the
  /// second level TLB and the fill buffers; each has half of the TLB for small pages of code and of the decoded
  /// micro-op cache, and a TLB of its own for large pages of code.
  explicit Hierarchy(const Profile& profile, unsigned threads = 1);
  /// What follows is done by this thread, until another one is named.
  void run_thread(unsigned thread) {
    if (thread != thread_) [[unlikely]]
      change_thread(thread);
  }

  /// From here on it is one of several coherent cores, and must not move. Both must outlive their use.
  void share(Sharing& with);
  /// Another core reads the line or, with `loses_it`, is going to store to it. Returns what this core had; afterwards
  /// it has the line unchanged, or not at all.
  Snoop snooped(std::uint64_t line, bool loses_it);

  DataResult load(const DataAccess& access) { return do_access(access, OffcoreRequest::demand_data_read); }
  /// Stores allocate lines as loads do; write-backs are free.
  DataResult store(const DataAccess& access) { return do_access(access, OffcoreRequest::demand_rfo); }
  /// Either of them. Inlined, because returning the result through memory costs the host more than computing it.
  [[gnu::always_inline]] DataResult do_access(const DataAccess& access, OffcoreRequest request) {
    TlbResult tlb = TlbResult::hit;
    if (!dtlb_.is_latest(access.linear, access.page)) {
      drop_pages(repeated_data_, access.linear, access.page);
      drop_pages(repeated_stores_, access.linear, access.page);
      tlb = dtlb_.look_up_older(access.linear, access.page);
    }
    const std::uint64_t first = access.physical / line_bytes;
    const std::uint64_t last = (access.physical + std::max(access.bytes, 1U) - 1) / line_bytes;
    Line line = data_line(first, request);
    if (last != first) [[unlikely]] {
      const Line second = data_line(last, request);
      if (second.latency > line.latency) line = second;
      line.latency += profile_->latency.split;
    } else if (line.level == HitLevel::l1) {
      repeated_data_.put(access.linear);
      if (sharing_ != nullptr && request == OffcoreRequest::demand_rfo) repeated_stores_.put(access.linear);
    }
    if (tlb == TlbResult::stlb_hit) line.latency += profile_->latency.stlb_hit;
    if (tlb == TlbResult::walk) line.latency += profile_->latency.walk;
    return {.level = line.level,
            .tlb = tlb,
            .latency = static_cast<std::uint16_t>(std::min<std::uint32_t>(line.latency, 0xFFFF)),
            .split = last != first,
            .met_prefetch = line.met_prefetch,
            .page = access.page};
  }
  /// A software prefetch of a line: into the L1, too, or only into the L2; `request` says whether to write it.
  DataResult prefetch(const DataAccess& access, OffcoreRequest request, bool into_l1);
  /// The line that holds `physical`, fetched from `linear`.
  FetchResult fetch(std::uint64_t linear, std::uint64_t physical, PageSize page);

  /// Whether load() or store() is known to hit the L1 and the first TLB and to change nothing in the models, whatever
  /// the clock says.
  [[nodiscard]] bool access_repeats(std::uint64_t linear, std::uint32_t bytes, bool store) const {
    return repeated_data_.has(linear) && linear % line_bytes + bytes <= line_bytes &&
           (sharing_ == nullptr || !store || repeated_stores_.has(linear));
  }
  /// Replaces fetch() if that would change nothing, because everything is present and the latest of its sets. False:
  /// nothing was done, call fetch().
  [[nodiscard]] bool fetch_fast(std::uint64_t linear, std::uint64_t physical, PageSize page) {
    const std::uint64_t window = linear / line_bytes * windows_in_line;
    const RecencySets& decoded = decoded_[thread_];
    const bool repeats = itlb_[thread_].is_latest(linear, page) && l1i_.is_latest(physical / line_bytes) &&
                         (!has_decoded() || (decoded.is_latest(window) && decoded.is_latest(window + 1)));
    if (repeats) repeated_code_.put(linear);
    return repeats;
  }
  /// Whether the profile has a decoded micro-op cache.
  [[nodiscard]] bool has_decoded() const { return profile_->decoded.sets != 0; }
  /// Whether fetch() is known to change nothing.
  [[nodiscard]] bool fetch_repeats(std::uint64_t linear) const { return repeated_code_.has(linear); }
  /// From here on a linear address may be mapped elsewhere.
  void remapped() {
    repeated_data_.clear();
    repeated_stores_.clear();
    repeated_code_.clear();
  }

  /// Lines that a thread has filled into the L1D.
  [[nodiscard]] std::uint64_t l1d_fills(unsigned thread = 0) const { return l1d_fills_[thread]; }
  /// Lines that a thread wanted and the L2 lacked, by offcore_cell().
  [[nodiscard]] const std::array<std::uint64_t, offcore_cell_count>& offcore(unsigned thread = 0) const {
    return offcore_[thread];
  }

  /// The last level cache has this many slices, by a hash of the address; at most LlcCounts::max_slices.
  void slice(unsigned slices) { slice_count_ = slices; }
  /// What the core's requests came to in each slice.
  [[nodiscard]] const LlcCounts& llc() const { return llc_; }

  /// From here on an access that must wait for a fill buffer takes longer, and the clock does not pass by itself.
  void keep_time_outside() { keeps_time_ = false; }
  /// Lets `cycles` cycles pass.
  void advance(std::uint64_t cycles) { now_ += cycles; }
  [[nodiscard]] std::uint64_t cycles() const { return now_; }

  /// Removes the line of `physical` from all caches and that of `linear` from the micro-op cache. SDM 2A CLFLUSH.
  void flush_line(std::uint64_t linear, std::uint64_t physical);
  /// Empties all caches. SDM 2C WBINVD.
  void flush_caches();
  /// Empties the thread's TLBs: a control register was loaded.
  void flush_tlbs();
  /// Caches, TLBs, fill buffers and the clock; not the counts. The visitor may write any bytes: the model then gives
  /// some results.
  void visit_state(const StateVisitor& visit);
  [[nodiscard]] const Profile& profile() const { return *profile_; }
  [[nodiscard]] unsigned threads() const { return threads_; }

 private:
  static constexpr unsigned max_fill_buffers = 16;
  /// An entry of the decoded micro-op cache stands for 32 bytes of code.
  static constexpr std::uint64_t windows_in_line = 2;
  struct FillBuffer {
    std::uint64_t line{~0ULL};
    std::uint64_t ready{};     ///< When the line arrives.
    std::uint64_t prefetch{};  ///< 1: a software prefetch has asked for it.
  };

  static constexpr std::uint64_t flight_bit(std::uint64_t line) { return std::uint64_t{1} << (line % 64); }
  [[nodiscard]] bool may_be_in_flight(std::uint64_t line) const {
    return now_ < last_ready_ && (in_flight_ & flight_bit(line)) != 0;
  }
  struct Line {
    HitLevel level;
    std::uint32_t latency;
    bool met_prefetch{};
  };
  // A line is in the L1 as soon as its fill begins, and in a fill buffer until it ends.
  Line data_line(std::uint64_t line, OffcoreRequest request) {
    repeated_data_.drop(line);
    repeated_stores_.drop(line);
    if (l1d_.touch(line)) {
      if (sharing_ != nullptr && request == OffcoreRequest::demand_rfo) own(line);
      const FillBuffer* const flight = may_be_in_flight(line) ? in_flight(line) : nullptr;
      if (flight != nullptr)
        return {HitLevel::lfb,
                std::max(std::uint32_t{profile_->latency.l1}, static_cast<std::uint32_t>(flight->ready - now_)),
                flight->prefetch != 0};
      return {HitLevel::l1, profile_->latency.l1};
    }
    const HitLevel level = below_l1(line, request);
    const std::uint16_t latency = latency_of(level);
    l1d_.insert(line);
    ++l1d_fills_[thread_];
    return {level, latency + begin_fill(line, latency)};
  }
  static void drop_pages(Repeats& of, std::uint64_t linear, PageSize size) {
    if (size == PageSize::small) return of.drop_pages(linear);
    of.clear();
  }
  [[nodiscard]] const FillBuffer* in_flight(std::uint64_t line) const;
  HitLevel below_l1(std::uint64_t line, OffcoreRequest request);
  [[nodiscard]] Snoop ask_others(std::uint64_t line, OffcoreRequest request);
  void own(std::uint64_t line);
  void fill_l2(std::uint64_t line);
  void fill_l3(std::uint64_t line);
  [[nodiscard]] std::uint16_t latency_of(HitLevel level) const;
  std::uint32_t begin_fill(std::uint64_t line, std::uint16_t latency);
  void change_thread(unsigned thread);
  void tag_pages();

  const Profile* profile_;
  unsigned threads_;
  unsigned thread_{};
  RecencySets l1i_, l1d_, l2_, l3_;
  std::array<RecencySets, max_threads> decoded_;
  SecondLevel stlb_;
  Tlb dtlb_;
  std::array<Tlb, max_threads> itlb_;
  std::array<std::uint64_t, max_threads> flushes_{};  ///< Of the TLBs, by each of two threads.
  Sharing* sharing_{};                                ///< Null: there is no other core.
  RecencySets owned_;  ///< Lines that were stored to since they were filled: those that are still cached are modified.
  Repeats repeated_data_, repeated_code_;
  Repeats repeated_stores_;  ///< The same for stores if there are other cores: lines that this core owns.
  std::array<FillBuffer, max_fill_buffers> fills_{};
  unsigned last_fill_{};  ///< The buffer that was taken last.
  std::array<std::array<std::uint64_t, offcore_cell_count>, max_threads> offcore_{};
  std::array<std::uint64_t, max_threads> l1d_fills_{};
  LlcCounts llc_{};
  unsigned slice_count_{1};
  std::uint64_t now_{};
  bool keeps_time_{true};
  std::uint64_t in_flight_{};   ///< flight_bit() of all lines whose fills began while one was in flight.
  std::uint64_t last_ready_{};  ///< When all fills have arrived: then none is in flight.
};

}  // namespace vpmu::uarch
