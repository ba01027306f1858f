#include "virt/xml.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <pugixml.hpp>
#include <set>
#include <sstream>

namespace vmm::tool {
namespace {

constexpr std::string_view white = " \t\r\n";
// Text is kept as it is written, entities included, so that unchanged parts stay the same.
constexpr unsigned parse_verbatim = (pugi::parse_full | pugi::parse_ws_pcdata | pugi::parse_fragment) &
                                    ~(pugi::parse_escapes | pugi::parse_eol | pugi::parse_wconv_attribute);
constexpr unsigned write_escaped = pugi::format_raw | pugi::format_no_declaration | pugi::format_attribute_single_quote;
constexpr unsigned write_verbatim = write_escaped | pugi::format_no_escapes;
constexpr auto spaces_per_level = 2U;
constexpr int max_levels = 100;  // libvirt's own definitions have eight

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(white);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(white) - first + 1);
}

/// The position of the first byte that is not part of a valid character; the size if all are. RFC 3629: no surrogates,
/// nothing above 10FFFFH, no overlong form.
std::size_t first_not_utf8(std::string_view text) {
  struct Form {
    unsigned char first, last;          ///< Of the leading byte.
    unsigned char second, second_last;  ///< Of the next one; the others are 80H to BFH.
    std::size_t bytes;
  };
  static constexpr std::array forms{
      Form{0x00, 0x7F, 0, 0, 1},       Form{0xC2, 0xDF, 0x80, 0xBF, 2}, Form{0xE0, 0xE0, 0xA0, 0xBF, 3},
      Form{0xE1, 0xEC, 0x80, 0xBF, 3}, Form{0xED, 0xED, 0x80, 0x9F, 3}, Form{0xEE, 0xEF, 0x80, 0xBF, 3},
      Form{0xF0, 0xF0, 0x90, 0xBF, 4}, Form{0xF1, 0xF3, 0x80, 0xBF, 4}, Form{0xF4, 0xF4, 0x80, 0x8F, 4}};
  const auto byte = [text](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  for (std::size_t at = 0; at < text.size();) {
    const auto* const form =
        std::ranges::find_if(forms, [lead = byte(at)](const Form& f) { return lead >= f.first && lead <= f.last; });
    if (form == forms.end() || text.size() - at < form->bytes) return at;
    if (form->bytes > 1 && (byte(at + 1) < form->second || byte(at + 1) > form->second_last)) return at;
    for (std::size_t n = 2; n < form->bytes; ++n)
      if ((byte(at + n) & 0xC0) != 0x80) return at;
    at += form->bytes;
  }
  return text.size();
}

/// `written` with its entities resolved.
std::string unescaped(std::string_view written) {
  if (written.find('&') == std::string_view::npos) return std::string{written};
  pugi::xml_document scratch;
  const std::string element = fmt::format("<t>{}</t>", written);
  scratch.load_buffer(element.data(), element.size(), pugi::parse_escapes | pugi::parse_ws_pcdata, pugi::encoding_utf8);
  return scratch.child("t").child_value();
}

std::string text_of(const pugi::xml_document& document, unsigned format) {
  std::ostringstream out;
  document.save(out, "", format, pugi::encoding_utf8);
  return out.str();
}

/// `text` as it is written between two tags.
std::string escaped(std::string_view text) {
  pugi::xml_document scratch;
  scratch.append_child(pugi::node_pcdata).set_value(std::string{text}.c_str());
  return text_of(scratch, write_escaped);
}

/// `value` as it is written in an attribute, between '.
std::string escaped_in_attribute(std::string_view value) {
  pugi::xml_document scratch;
  scratch.append_child("t").append_attribute("a").set_value(std::string{value}.c_str());
  const std::string element = text_of(scratch, write_escaped);
  const auto first = element.find('\'') + 1;
  return element.substr(first, element.rfind('\'') - first);
}

std::string_view prefix_of(std::string_view name) {
  const auto colon = name.find(':');
  return colon == std::string_view::npos ? std::string_view{} : name.substr(0, colon);
}

bool is_space(pugi::xml_node node) { return node.type() == pugi::node_pcdata && trimmed(node.value()).empty(); }
bool is_text(pugi::xml_node node) { return node.type() == pugi::node_pcdata || node.type() == pugi::node_cdata; }

unsigned depth_of(pugi::xml_node node) {
  unsigned depth = 0;
  for (auto above = node.parent(); above.parent(); above = above.parent()) ++depth;
  return depth;
}

std::string new_line(unsigned depth) { return "\n" + std::string(std::size_t{depth} * spaces_per_level, ' '); }

/// Makes a new line for a new last child of `parent`. Returns the node before which the child goes: the white space
/// that indents the end tag, or none.
pugi::xml_node new_last_line(pugi::xml_node parent) {
  const auto inner = new_line(depth_of(parent) + 1);
  const auto last = parent.last_child();
  const auto end = is_space(last) && last.previous_sibling() ? last : pugi::xml_node{};
  if (end) {
    parent.insert_child_before(pugi::node_pcdata, end).set_value(inner.c_str());
    return end;
  }
  parent.append_child(pugi::node_pcdata).set_value(inner.c_str());
  if (last) return {};
  auto outer = parent.append_child(pugi::node_pcdata);
  outer.set_value(new_line(depth_of(parent)).c_str());
  return outer;
}

bool is_utf8(std::string_view text) { return first_not_utf8(text) == text.size(); }

/// Whether XML permits all the characters that `written` stands for. pugixml also resolves references to others, and
/// takes a reference to 0 for the end of the text.
bool has_characters_only(std::string_view written) {
  const std::string text = unescaped(std::string{written} + '.');
  const auto is_control = [](char c) {
    return static_cast<unsigned char>(c) < ' ' && white.find(c) == std::string_view::npos;
  };
  return text.ends_with('.') && is_utf8(text) && std::ranges::none_of(text, is_control);
}

/// Why the node is not well-formed, in ways that pugixml does not check.
std::string flaw_of(pugi::xml_node node) {
  if (node.type() == pugi::node_doctype) return "it has a document type";
  if (node.type() == pugi::node_pcdata && !has_characters_only(node.value()))
    return "it has a reference to what is no character";
  std::set<std::string_view> names;
  for (auto attribute : node.attributes()) {
    const std::string name = fmt::format("<{}> has {}", node.name(), attribute.name());
    if (!names.insert(attribute.name()).second) return name + " twice";
    const std::string_view written = attribute.value();
    if (written.find('<') != std::string_view::npos) return name + " with a < in its value";
    if (!has_characters_only(written)) return name + " with a reference to what is no character";
    // The value will be written between ' characters.
    if (written.find('\'') != std::string_view::npos)
      attribute.set_value(escaped_in_attribute(unescaped(written)).c_str());
  }
  return {};
}

struct FlawFinder : pugi::xml_tree_walker {
  std::string flaw;
  bool for_each(pugi::xml_node& node) override {
    flaw = depth() < max_levels ? flaw_of(node) : fmt::format("its elements stand more than {} deep", max_levels);
    return flaw.empty();
  }
};

bool outside_root(pugi::xml_node node) { return is_text(node) && !is_space(node); }

std::string flaw_of(pugi::xml_document& document) {
  const auto elements =
      std::ranges::count_if(document.children(), [](auto n) { return n.type() == pugi::node_element; });
  if (elements != 1) return fmt::format("it has {} outermost elements, not one", elements);
  if (std::ranges::any_of(document.children(), outside_root)) return "it has text outside of its outermost element";
  FlawFinder finder;
  document.traverse(finder);
  return finder.flaw;
}

}  // namespace

std::string XmlElement::local_name() const {
  const std::string_view name = pugi::xml_node{node_}.name();
  const auto prefix = prefix_of(name);
  return std::string{prefix.empty() ? name : name.substr(prefix.size() + 1)};
}

std::string XmlElement::namespace_uri() const {
  const auto prefix = prefix_of(pugi::xml_node{node_}.name());
  const std::string declaration = prefix.empty() ? "xmlns" : fmt::format("xmlns:{}", prefix);
  for (auto node = pugi::xml_node{node_}; node; node = node.parent())
    if (const auto attribute = node.attribute(declaration.c_str())) return unescaped(attribute.value());
  return {};
}

std::string XmlElement::prefixed(std::string_view name) const {
  const auto prefix = prefix_of(pugi::xml_node{node_}.name());
  return prefix.empty() ? std::string{name} : fmt::format("{}:{}", prefix, name);
}

std::optional<std::string> XmlElement::attribute(std::string_view name) const {
  const auto found = pugi::xml_node{node_}.attribute(std::string{name}.c_str());
  return found ? std::optional{unescaped(found.value())} : std::nullopt;
}

std::string XmlElement::text() const {
  std::string all;
  for (const auto part : pugi::xml_node{node_}.children())
    if (is_text(part)) all += part.type() == pugi::node_cdata ? std::string{part.value()} : unescaped(part.value());
  return std::string{trimmed(all)};
}

std::vector<XmlElement> XmlElement::children() const {
  std::vector<XmlElement> found;
  for (const auto node : pugi::xml_node{node_}.children())
    if (node.type() == pugi::node_element) found.emplace_back(node.internal_object());
  return found;
}

std::vector<XmlElement> XmlElement::children(std::string_view local_name, std::string_view namespace_uri) const {
  auto found = children();
  std::erase_if(found,
                [&](XmlElement e) { return e.local_name() != local_name || e.namespace_uri() != namespace_uri; });
  return found;
}

XmlElement XmlElement::child(std::string_view local_name, std::string_view namespace_uri) const {
  const auto found = children(local_name, namespace_uri);
  return found.empty() ? XmlElement{} : found.front();
}

void XmlElement::set_attribute(std::string_view name, std::string_view value) const {
  auto node = pugi::xml_node{node_};
  const std::string key{name};
  auto attribute = node.attribute(key.c_str());
  if (!attribute) attribute = node.append_attribute(key.c_str());
  attribute.set_value(escaped_in_attribute(value).c_str());
}

void XmlElement::remove_attribute(std::string_view name) const {
  pugi::xml_node{node_}.remove_attribute(std::string{name}.c_str());
}

void XmlElement::set_text(std::string_view text) const {
  auto node = pugi::xml_node{node_};
  node.remove_children();
  node.append_child(pugi::node_pcdata).set_value(escaped(text).c_str());
}

XmlElement XmlElement::append(std::string_view name) const {
  auto node = pugi::xml_node{node_};
  const auto before = new_last_line(node);
  auto made = before ? node.insert_child_before(pugi::node_element, before) : node.append_child(pugi::node_element);
  made.set_name(std::string{name}.c_str());
  return XmlElement{made.internal_object()};
}

XmlElement XmlElement::prepend(std::string_view name) const {
  auto node = pugi::xml_node{node_};
  if (!node.first_child()) return append(name);
  auto made = node.prepend_child(std::string{name}.c_str());
  node.prepend_child(pugi::node_pcdata).set_value(new_line(depth_of(node) + 1).c_str());
  return XmlElement{made.internal_object()};
}

XmlElement XmlElement::append_copy(XmlElement original) const {
  auto node = pugi::xml_node{node_};
  const auto before = new_last_line(node);
  const pugi::xml_node source{original.node_};
  const auto made = before ? node.insert_copy_before(source, before) : node.append_copy(source);
  return XmlElement{made.internal_object()};
}

XmlElement XmlElement::replace_by_copy(XmlElement original) const {
  const pugi::xml_node node{node_};
  auto parent = node.parent();
  const auto made = parent.insert_copy_before(pugi::xml_node{original.node_}, node);
  parent.remove_child(node);
  return XmlElement{made.internal_object()};
}

void XmlElement::remove() const {
  const pugi::xml_node node{node_};
  auto parent = node.parent();
  if (is_space(node.previous_sibling())) parent.remove_child(node.previous_sibling());
  parent.remove_child(node);
  if (std::ranges::all_of(parent.children(), is_space)) parent.remove_children();
}

std::vector<std::pair<std::string, std::string>> XmlElement::attributes() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto attribute : pugi::xml_node{node_}.attributes())
    all.emplace_back(attribute.name(), unescaped(attribute.value()));
  return all;
}

std::string value_of(XmlElement element, std::string_view attribute) {
  return element.attribute(attribute).value_or("");
}

bool equivalent(XmlElement one, XmlElement other) {
  const auto attributes_of = [](XmlElement element) {
    auto all = element.attributes();
    std::erase_if(all, [](const auto& a) { return a.first.starts_with("xmlns"); });
    std::ranges::sort(all);
    return all;
  };
  if (one.local_name() != other.local_name() || one.namespace_uri() != other.namespace_uri()) return false;
  if (attributes_of(one) != attributes_of(other)) return false;
  return one.text() == other.text() && std::ranges::equal(one.children(), other.children(), equivalent);
}

XmlDocument::XmlDocument(std::unique_ptr<pugi::xml_document> document) : document_{std::move(document)} {}
XmlDocument::XmlDocument(XmlDocument&&) noexcept = default;
XmlDocument::~XmlDocument() = default;

Result<XmlDocument> XmlDocument::parse(std::string_view text) {
  constexpr auto advice = "give the text of `virsh dumpxml --inactive`";
  if (text.find('\0') != std::string_view::npos) return usage_error("the XML has a byte of 0", advice);
  if (const auto at = first_not_utf8(text); at < text.size())
    return usage_error(fmt::format("the XML is not UTF-8 at byte {}", at), advice);
  auto document = std::make_unique<pugi::xml_document>();
  const auto parsed = document->load_buffer(text.data(), text.size(), parse_verbatim, pugi::encoding_utf8);
  if (!parsed)
    return usage_error(fmt::format("the XML is malformed at byte {}: {}", parsed.offset, parsed.description()), advice);
  if (const auto flaw = flaw_of(*document); !flaw.empty())
    return usage_error("libvirt does not take this XML: " + flaw, advice);
  return XmlDocument{std::move(document)};
}

XmlElement XmlDocument::root() const { return XmlElement{document_->document_element().internal_object()}; }

std::string XmlDocument::text() const { return text_of(*document_, write_verbatim); }

}  // namespace vmm::tool
