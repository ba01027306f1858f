#include "profile/samples.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace vmm::tool {
namespace {

constexpr std::size_t max_frames = 512;
constexpr std::size_t max_name_length = 512;

template <class Number>
bool read_number(std::string_view text, Number& number, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc{} && end == text.data() + text.size();
}

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

/// Takes the next word off the front.
std::string_view take_word(std::string_view& text) {
  const std::size_t first = std::min(text.find_first_not_of(' '), text.size());
  const std::size_t end = std::min(text.find(' ', first), text.size());
  const std::string_view word = text.substr(first, end - first);
  text.remove_prefix(end);
  return word;
}

/// "83/83"
bool are_ids(std::string_view word) {
  const std::size_t slash = word.find('/');
  int process{}, thread{};
  return slash != std::string_view::npos && read_number(word.substr(0, slash), process) &&
         read_number(word.substr(slash + 1), thread);
}

/// "0.875620123:", in nanoseconds.
std::optional<std::uint64_t> read_time(std::string_view word) {
  constexpr std::uint64_t nanoseconds = 1'000'000'000, max = 1ULL << 32U;
  constexpr std::size_t digits = 9;
  if (word.empty() || word.back() != ':') return std::nullopt;
  word.remove_suffix(1);
  const std::size_t point = word.find('.');
  std::uint64_t seconds{}, parts{};
  if (point == std::string_view::npos || word.size() - point - 1 != digits ||
      !read_number(word.substr(0, point), seconds) || !read_number(word.substr(point + 1), parts) || seconds > max)
    return std::nullopt;
  return seconds * nanoseconds + parts;
}

std::optional<Aspect> read_aspect(std::string_view word) {
  if (word.empty() || word.back() != ':') return std::nullopt;
  word.remove_suffix(1);
  for (const Aspect aspect : {Aspect::cycles, Aspect::loads, Aspect::mispredictions})
    if (word == to_string(aspect)) return aspect;
  return std::nullopt;
}

/// What follows the process's name: "83/83 0.875620123: 18021 loads: 7f2a60530028 10268100142 |OP LOAD|... 4".
std::optional<Sample> read_fields(std::string_view text) {
  Sample sample;
  if (!are_ids(take_word(text))) return std::nullopt;
  const auto time = read_time(take_word(text));
  if (!time || !read_number(take_word(text), sample.period)) return std::nullopt;
  sample.time = *time;
  const auto aspect = read_aspect(take_word(text));
  if (!aspect) return std::nullopt;
  sample.aspect = *aspect;
  constexpr int hexadecimal = 16;
  if (!read_number(take_word(text), sample.address, hexadecimal) ||
      !read_number(take_word(text), sample.data_source, hexadecimal))
    return std::nullopt;
  // In between are perf's words for the data source, which differ from version to version.
  const std::string_view words = trim(text);
  if (!read_number(words.substr(words.rfind(' ') + 1), sample.latency)) return std::nullopt;
  return sample;
}

/// "hot_sum+0x2c"; perf prints "[unknown]" for what it does not know.
void read_function(std::string_view text, SampleFrame& frame) {
  constexpr int hexadecimal = 16;
  const std::size_t plus = text.rfind("+0x");
  if (plus != std::string_view::npos && read_number(text.substr(plus + 3), frame.offset, hexadecimal))
    text = text.substr(0, plus);
  if (text != "[unknown]") frame.function = text.substr(0, max_name_length);
}

/// Where the file's name in parentheses begins. The function's and the file's name may contain parentheses.
std::size_t module_start(std::string_view text) {
  for (const std::string_view start : {" (/", " (["})
    if (const std::size_t at = text.rfind(start); at != std::string_view::npos) return at;
  return text.rfind(" (");
}

/// "  401660 hot_sum+0x2c (/usr/bin/hot)"
std::optional<SampleFrame> read_frame(std::string_view line) {
  constexpr int hexadecimal = 16;
  SampleFrame frame;
  if (!read_number(take_word(line), frame.address, hexadecimal)) return std::nullopt;
  const std::string_view names = trim(line);
  const std::size_t module = module_start(line);
  if (names.empty() || names.back() != ')' || module == std::string_view::npos) return std::nullopt;
  read_function(trim(line.substr(0, module)), frame);
  const std::string_view rest = trim(line.substr(module + 1));
  const std::string_view name = rest.substr(1, rest.size() - 2);
  if (name != "[unknown]") frame.module = name.substr(0, max_name_length);
  return frame;
}

}  // namespace

std::optional<Sample> read_sample_line(std::string_view line) {
  // A process can have any name of up to 15 bytes, even one that looks like these fields. So the last place at which
  // the fields can be read is the right one.
  constexpr std::size_t widest = 64;
  for (std::size_t slash = line.substr(0, widest).rfind('/'); slash != std::string_view::npos && slash > 0;
       slash = line.rfind('/', slash - 1)) {
    const std::size_t before = line.rfind(' ', slash);
    const std::size_t start = before == std::string_view::npos ? 0 : before + 1;
    if (auto sample = read_fields(line.substr(start))) {
      sample->process = trim(line.substr(0, start)).substr(0, max_name_length);
      return sample;
    }
  }
  return std::nullopt;
}

std::optional<SampleFrame> read_frame_line(std::string_view line) {
  if (line.empty() || line.front() != '\t') return std::nullopt;
  return read_frame(line.substr(1));
}

std::uint64_t count_of(std::string_view stats, std::string_view kind) {
  const std::size_t at = stats.find(std::string{kind} + " events:");
  if (at == std::string_view::npos) return 0;
  std::string_view rest = stats.substr(stats.find(':', at) + 1);
  const std::string_view word = take_word(rest);
  std::uint64_t count{};
  return read_number(word.substr(0, word.find('\n')), count) ? count : 0;
}

void put_on_top(std::vector<SampleFrame>& frames, const SampleFrame& site) {
  // Near the top, the function may be below one that it called, or an interrupt. Deeper down it is another call of it.
  constexpr std::size_t nearest = 8;
  const std::size_t near = std::min(frames.size(), nearest);
  const auto same = std::find_if(
      frames.begin(), frames.begin() + static_cast<std::ptrdiff_t>(near),
      [&](const auto& f) { return !f.function.empty() && f.function == site.function && f.module == site.module; });
  if (same != frames.begin() + static_cast<std::ptrdiff_t>(near)) {
    frames.erase(frames.begin(), same);
    frames.front().address += site.offset - frames.front().offset;
    frames.front().offset = site.offset;
    return;
  }
  frames.insert(frames.begin(), site);
  frames.front().address = 0;
}

void SampleSites::line(std::string_view text) {
  constexpr std::size_t max_sites = 4'000'000, max_places = 400'000;
  int thread{};
  if (!read_number(take_word(text), thread)) return;
  const auto time = read_time(take_word(text));
  const auto aspect = time ? read_aspect(take_word(text)) : std::nullopt;
  auto frame = aspect ? read_frame(text) : std::nullopt;
  if (!frame || sites_.size() >= max_sites) return;
  std::string key{text};
  auto known = known_.find(key);
  if (known == known_.end()) {
    if (places_.size() >= max_places) return;
    places_.push_back(std::move(*frame));
    known = known_.emplace(std::move(key), places_.size() - 1).first;
  }
  sites_.push_back({.time = *time, .place = known->second, .aspect = *aspect});
}

void SampleSites::add(std::string_view text) {
  lines_.add(text, [this](std::string_view each) { line(each); });
}

void SampleSites::finish() {
  lines_.end([this](std::string_view each) { line(each); });
}

const SampleFrame* SampleSites::next(Aspect aspect, std::uint64_t time) {
  // A sample that could not be read is missing in the list; search ahead, so that later samples are still found.
  constexpr std::size_t farthest = 1000;
  const std::size_t end = next_ + std::min(farthest, sites_.size() - next_);
  for (std::size_t at = next_; at < end; ++at) {
    if (sites_[at].time != time || sites_[at].aspect != aspect) continue;
    next_ = at + 1;
    return &places_[sites_[at].place];
  }
  return nullptr;
}

void SampleReader::end_sample() {
  if (!sample_) return;
  ++samples_;
  take_(*sample_);
  sample_.reset();
}

void SampleReader::line(std::string_view text) {
  if (text.empty()) return end_sample();
  if (text.front() == '\t') {
    auto frame = sample_ ? read_frame_line(text) : std::nullopt;
    if (!frame) {
      ++unread_;
    } else if (sample_->frames.size() < max_frames) {
      sample_->frames.push_back(std::move(*frame));
    }
    return;
  }
  end_sample();
  sample_ = read_sample_line(text);
  if (!sample_) ++unread_;
}

void SampleReader::add(std::string_view text) {
  lines_.add(text, [this](std::string_view each) { line(each); });
}

void SampleReader::finish() {
  lines_.end([this](std::string_view each) { line(each); });
  end_sample();
}

}  // namespace vmm::tool
