#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "profile/recorded_events.hpp"
#include "profile/text_lines.hpp"

namespace vmm::tool {

/// The fields that `perf script --ns -F` is asked for, as SampleReader reads them.
inline constexpr std::string_view sample_fields =
    "comm,pid,tid,time,event,period,addr,ip,sym,symoff,dso,data_src,weight";
/// The fields that `perf script --ns --hide-call-graph -F` is asked for, as SampleSites reads them.
inline constexpr std::string_view site_fields = "tid,time,event,ip,sym,symoff,dso";

inline constexpr std::size_t longest_sample_line = 16384;

/// A place in a program: where it was interrupted, or where it had called from.
struct SampleFrame {
  /// Of a program or library: in its file. Of the kernel: its own. 0: not known; SampleSites: in the process.
  std::uint64_t address{};
  std::uint64_t offset{};  ///< From the start of the function.
  std::string function;    ///< Empty: not known.
  std::string module;      ///< A path, "[kernel.kallsyms]", "[fuse]", "[vdso]"; empty: not known.
  bool operator==(const SampleFrame&) const = default;
};

/// What perf recorded at one moment.
struct Sample {
  Aspect aspect{};
  std::string process;
  std::uint64_t time{};                               ///< In nanoseconds of the guest's.
  std::uint64_t period{};                             ///< How many events it stands for.
  std::uint64_t address{}, data_source{}, latency{};  ///< Of a load.
  std::vector<SampleFrame> frames;                    ///< The innermost first.
};

/// The instructions that samples are of. The call chain of a precise sample is of a moment later: Linux takes it when
/// the interrupt comes. perf prints either of them, so it is asked twice.
class SampleSites {
 public:
  void add(std::string_view text);
  /// To be called after the last part.
  void finish();
  /// Of the next sample of that time; null where there is none. In the order of add().
  const SampleFrame* next(Aspect aspect, std::uint64_t time);

 private:
  struct Site {
    std::uint64_t time{};
    std::size_t place{};
    Aspect aspect{};
  };
  void line(std::string_view text);
  TextLines lines_{longest_sample_line};
  std::vector<Site> sites_;
  std::vector<SampleFrame> places_;
  std::unordered_map<std::string, std::size_t> known_;
  std::size_t next_{};
};

/// Puts the instruction on top of its call chain, in place of what has run until the interrupt came.
void put_on_top(std::vector<SampleFrame>& frames, const SampleFrame& site);

/// Reads what `perf script` prints with these fields, part by part as it comes. Names of functions, files and processes
/// are what a guest has made of them: what is no sample is counted and left out, and no line is kept that is longer
/// than any of perf's.
class SampleReader {
 public:
  explicit SampleReader(std::function<void(Sample&)> take) : take_{std::move(take)} {}
  void add(std::string_view text);
  /// To be called after the last part.
  void finish();
  [[nodiscard]] std::uint64_t samples() const { return samples_; }
  /// Lines that are no sample's.
  [[nodiscard]] std::uint64_t unread_lines() const { return unread_ + lines_.left_out(); }

 private:
  void line(std::string_view text);
  void end_sample();
  std::function<void(Sample&)> take_;
  TextLines lines_{longest_sample_line};
  std::optional<Sample> sample_;
  std::uint64_t samples_{}, unread_{};
};

/// Of what `perf report --stats` prints: how many records there are of a kind (" LOST"). 0 where it does not say.
std::uint64_t count_of(std::string_view stats, std::string_view kind);

/// A line that begins a sample; nothing where it is none.
std::optional<Sample> read_sample_line(std::string_view line);
/// A line of its call chain; nothing where it is none.
std::optional<SampleFrame> read_frame_line(std::string_view line);

}  // namespace vmm::tool
