#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/control_lines.hpp"
#include "exec/disk_image.hpp"
#include "exec/request.hpp"
#include "fuzz_input.hpp"
#include "profile/disassembly.hpp"
#include "profile/report.hpp"
#include "stat/counts.hpp"
#include "stat/events.hpp"
#include "test_kernel/merge.hpp"
#include "test_kernel/report.hpp"
#include "test_kernel/results.hpp"

// Text that `vpmu exec`, `vpmu stat`, `vpmu profile` and `vpmu test-kernel` get from a guest, a file or a command line:
// each is read, or refused with one line; and what was written can be read back.

namespace {

using namespace vmm;
using namespace vmm::tool;
using vpmu::fuzz::require;

std::uint64_t things_read = 0;

template <class T>
bool is_read(const Result<T>& read) {
  if (!read) require(describe(read.error()).find('\n') == std::string::npos, "an error is one line");
  things_read += read.has_value() ? 1 : 0;
  return read.has_value();
}

template <class Line>
void read_lines(std::string_view text, Result<Line> (*read)(std::string_view)) {
  LineBuffer lines;
  lines.add(text.substr(0, text.size() / 2));
  lines.add(text.substr(text.size() / 2));
  while (const auto line = lines.take_line()) {
    const Result<Line> first = read(*line);
    if (!is_read(first)) continue;
    const std::string again = write_line(*first);
    const Result<Line> second = read(std::string_view{again}.substr(0, again.size() - 1));
    // Not compared with what was read first: the text of an ErrorLine is cleaned when it is written.
    require(second.has_value() && write_line(*second) == again, "a line that was written is written as the same");
  }
}

/// A report that could be read is written and read back as the same; merged with itself it has each model once.
void read_kernel_report(std::string_view text) {
  const Result<KernelReport> report = read_report(text, "baseline.json");
  if (!is_read(report)) return;
  require(read_report(report_as_json(*report), "again.json") == *report,
          "a report that is written is read as the same");
  const std::array<ShardReport, 2> parts{ShardReport{.file = "a", .report = *report},
                                         ShardReport{.file = "b", .report = *report}};
  const Result<KernelReport> whole = merge(parts);
  require(whole && whole->models.size() == report->asked.size(), "a report merges with itself");
}

/// The output of perf for a guest's samples, up to the page: nothing in it ends the page's script element.
void read_samples(std::string_view text) {
  SampleSites sites;
  sites.add(text);
  sites.finish();
  ProfileSummary summary;
  SampleReader reader{[&](Sample& sample) {
    if (const SampleFrame* const site = sites.next(sample.aspect, sample.time)) put_on_top(sample.frames, *site);
    summary.add(sample);
    ++things_read;
  }};
  reader.add(text.substr(0, text.size() / 2));
  reader.add(text.substr(text.size() / 2));
  reader.finish();
  ProfileReport report;
  report.summary = &summary;
  require(for_script_element(to_json(report)).find('<') == std::string::npos, "names cannot end the script element");
  DisassemblyReader disassembly;
  disassembly.add(text);
  things_read += disassembly.take().size();
  if (load_address(std::as_bytes(std::span{text}), text.size())) ++things_read;
}

}  // namespace

extern "C" std::uint64_t fuzz_work() { return things_read; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  vpmu::fuzz::Input input{data, size};
  const auto kind = input.take<std::uint8_t>() % 8;
  const std::size_t head = std::min<std::size_t>(size, 1);
  const std::string_view text{reinterpret_cast<const char*>(data) + head, size - head};
  switch (kind) {
    case 0: read_lines<HostLine>(text, read_host_line); break;
    case 1: read_lines<GuestLine>(text, read_guest_line); break;
    case 2:
      if (const auto request = read_request(text); is_read(request))
        require(*read_request(*write_request(*request)) == *request, "a request that is written is read as the same");
      break;
    case 3: {
      const std::vector<StatEvent> events{{.name = "instructions:u", .perf = "instructions:u", .quality = "exact"},
                                          {.name = "branches:u", .perf = "branches:u", .quality = "exact"}};
      is_read(read_perf_counts(text, events));
      break;
    }
    case 4: is_read(read_stat_document(text, "base.json")); break;
    case 6: is_read(read_disk_image(std::string{text})); break;
    case 7: read_samples(text); break;
    default:
      read_kernel_report(text);
      things_read +=
          result_of("skylake", {.output = std::string{text}, .messages = {}, .how = "exit code 0", .is_success = true})
              .checks.size();
  }
  return 0;
}
