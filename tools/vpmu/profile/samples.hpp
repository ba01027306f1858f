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

inline constexpr std::size_t max_sample_line_length = 16384;

/// A place in a program: the interrupted instruction, or a caller's.
struct SampleFrame {
  /// For a program or library: in its file. For the kernel: linear. 0: unknown; in SampleSites: in the process.
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

/// The instructions of the samples. Linux takes the call chain of a precise sample a moment later, when
/// the interrupt arrives. perf prints only one of the two, so it is run twice.
class SampleSites {
 public:
  void add(std::string_view text);
  /// To be called after the last part.
  void finish();
  /// The instruction of the next sample of that time, in the order of add(); null if there is none.
  const SampleFrame* next(Aspect aspect, std::uint64_t time);

 private:
  struct Site {
    std::uint64_t time{};
    std::size_t place{};
    Aspect aspect{};
  };
  void line(std::string_view text);
  TextLines lines_{max_sample_line_length};
  std::vector<Site> sites_;
  std::vector<SampleFrame> places_;
  std::unordered_map<std::string, std::size_t> known_;
  std::size_t next_{};
};

/// Puts the instruction on top of its call chain, in place of where the interrupt arrived.
void put_on_top(std::vector<SampleFrame>& frames, const SampleFrame& site);

/// Parses what `perf script` prints with these fields, part by part. Names of functions, files and processes
/// come from the guest and may be anything: lines that are no sample are counted and skipped, and lines longer
/// than any of perf's are not stored.
class SampleReader {
 public:
  explicit SampleReader(std::function<void(Sample&)> take) : take_{std::move(take)} {}
  void add(std::string_view text);
  /// To be called after the last part.
  void finish();
  [[nodiscard]] std::uint64_t samples() const { return samples_; }
  /// Lines that belong to no sample.
  [[nodiscard]] std::uint64_t unread_lines() const { return unread_ + lines_.left_out(); }

 private:
  void line(std::string_view text);
  void end_sample();
  std::function<void(Sample&)> take_;
  TextLines lines_{max_sample_line_length};
  std::optional<Sample> sample_;
  std::uint64_t samples_{}, unread_{};
};

/// The number of records of a kind (" LOST") in the output of `perf report --stats`. 0 if it is not in there.
std::uint64_t count_of(std::string_view stats, std::string_view kind);

/// Parses the line that begins a sample; nothing if it does not.
std::optional<Sample> read_sample_line(std::string_view line);
/// Parses a line of a sample's call chain; nothing if it is none.
std::optional<SampleFrame> read_frame_line(std::string_view line);

}  // namespace vmm::tool
