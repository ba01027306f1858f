#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/result.hpp"

namespace pugi {
class xml_document;
struct xml_node_struct;
}  // namespace pugi

namespace vmm::tool {

/// An element of an XmlDocument; as cheap as a pointer, and valid as long as the document has the element. A missing
/// element is false: it has no name, no attributes and no children, and must not be changed. Values are plain text:
/// entities are resolved on reading, and made on writing.
class XmlElement {
 public:
  XmlElement() = default;
  explicit XmlElement(pugi::xml_node_struct* node) : node_{node} {}
  explicit operator bool() const { return node_ != nullptr; }
  bool operator==(const XmlElement&) const = default;

  /// Its name without the prefix.
  [[nodiscard]] std::string local_name() const;
  /// The namespace that the prefix stands for here; empty for none, and for a prefix that is not declared.
  [[nodiscard]] std::string namespace_uri() const;
  /// The name with this element's own prefix, and so in its namespace.
  [[nodiscard]] std::string prefixed(std::string_view name) const;
  [[nodiscard]] std::optional<std::string> attribute(std::string_view name) const;
  /// Names, with their prefixes, and values.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> attributes() const;
  /// The text in it, without that of its children and without white space around it.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::vector<XmlElement> children() const;
  [[nodiscard]] std::vector<XmlElement> children(std::string_view local_name,
                                                 std::string_view namespace_uri = {}) const;
  /// The first child of this name; false if there is none.
  [[nodiscard]] XmlElement child(std::string_view local_name, std::string_view namespace_uri = {}) const;

  void set_attribute(std::string_view name, std::string_view value) const;
  void remove_attribute(std::string_view name) const;
  void set_text(std::string_view text) const;
  /// Inserts a new element, indented, after or before all children. `name` may have a prefix.
  [[nodiscard]] XmlElement append(std::string_view name) const;
  [[nodiscard]] XmlElement prepend(std::string_view name) const;
  /// Appends a copy of an element of this or another document as the last child.
  XmlElement append_copy(XmlElement original) const;
  /// Replaces this element by a copy of `original`; returns the copy.
  [[nodiscard]] XmlElement replace_by_copy(XmlElement original) const;
  /// Removes the element, with the white space that indents it. If its parent has nothing else, it is left
  /// empty.
  void remove() const;

 private:
  pugi::xml_node_struct* node_{};
};

/// The attribute's value; empty if the element or the attribute is missing.
std::string value_of(XmlElement element, std::string_view attribute);

/// Whether both have the same names, attributes, text and children. Mere layout makes no difference: quotes,
/// the order of attributes, white space between elements, comments, where a prefix is declared.
bool equivalent(XmlElement one, XmlElement other);

/// An XML text that can be changed; all unchanged parts are written as they were read. Only the quotes of attributes
/// become ', as libvirt writes them.
class XmlDocument {
 public:
  XmlDocument(XmlDocument&&) noexcept;
  ~XmlDocument();
  /// Fails with kind usage if the text is not well-formed, has a document type (which may define entities), or has an
  /// attribute twice.
  static Result<XmlDocument> parse(std::string_view text);
  [[nodiscard]] XmlElement root() const;
  [[nodiscard]] std::string text() const;

 private:
  explicit XmlDocument(std::unique_ptr<pugi::xml_document> document);
  std::unique_ptr<pugi::xml_document> document_;
};

}  // namespace vmm::tool
