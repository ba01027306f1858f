#include "virt/xml.hpp"

#include <gtest/gtest.h>

#include "samples.hpp"

namespace vmm::tool::test {
namespace {

std::string rewritten(std::string_view text) {
  const auto document = XmlDocument::parse(text);
  return document ? document->text() : describe(document.error());
}

std::string why_not(std::string_view text) {
  const auto document = XmlDocument::parse(text);
  return document ? "taken" : document.error().what;
}

XmlDocument parsed(std::string_view text) { return std::move(XmlDocument::parse(text)).value(); }

TEST(VirtXml, WhatNobodyChangesIsWrittenAsItWas) {
  for (const std::string& text :
       {libvirt_domain, crowded_domain,
        std::string{"<?xml version='1.0'?>\n<!-- one --><a b='&#10;&amp;'>\r\n<![CDATA[<x>]]><c/>&gt;<?do it?></a>\n"}})
    EXPECT_EQ(rewritten(text), text);
}

TEST(VirtXml, QuotesBecomeThoseOfLibvirt) {
  EXPECT_EQ(rewritten(R"(<a b="it's 'x'"/>)"), "<a b='it&apos;s &apos;x&apos;'/>");
}

TEST(VirtXml, WhatIsNotWellFormedIsRefused) {
  EXPECT_NE(why_not("<a><b></a>").find("malformed at byte 8"), std::string::npos) << why_not("<a><b></a>");
  for (const auto* const text :
       {"", "  ", "text", "<a>", "<a", "<a b='1'", "<a b=1/>", "<a/>text", "<a/><b/>", "<a b='1' b='2'/>",
        "<c><a b='1' b='2'/></c>", "<a b='<'/>", "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>"})
    EXPECT_NE(why_not(text), "taken") << text;
  EXPECT_NE(why_not(std::string_view{"<a/>\0<b/>", 9}), "taken");
}

// Comparison recurses into each level, and a prefix is searched through all levels, so that the depth must be bounded.
TEST(VirtXml, IsNotDeep) {
  const auto nested = [](int levels) {
    std::string text;
    for (int n = 0; n < levels; ++n) text += "<a>";
    for (int n = 0; n < levels; ++n) text += "</a>";
    return text;
  };
  EXPECT_EQ(rewritten(nested(100)).size(), nested(100).size() - 3);  // the innermost is <a/>
  for (const int levels : {101, 200'000})
    EXPECT_NE(why_not(nested(levels)).find("more than 100 deep"), std::string::npos);
}

TEST(VirtXml, NamesAreKnownByTheirNamespaceWhateverThePrefix) {
  const auto document = parsed("<d xmlns:q='urn:q'><q:a/><b xmlns='urn:q'><a/></b><x:a/><a/></d>");
  const auto root = document.root();
  EXPECT_EQ(root.children("a", "urn:q").size(), 1U);
  EXPECT_EQ(root.child("b", "urn:q").child("a", "urn:q").local_name(), "a");
  EXPECT_EQ(root.children("a").size(), 2U);  // one of them has an undeclared prefix
  EXPECT_EQ(root.child("a", "urn:q").prefixed("env"), "q:env");
  EXPECT_FALSE(root.child("none"));
  EXPECT_EQ(root.child("none").child("none").text(), "");
}

TEST(VirtXml, ValuesAreReadAndWrittenAsPlainText) {
  const auto document = parsed("<a b='&lt;&amp;&#65;&#x20AC;&unknown;&'>  x&gt;<![CDATA[<&>]]><!-- no -->y </a>");
  EXPECT_EQ(document.root().attribute("b"), "<&A\xE2\x82\xAC&unknown;&");
  EXPECT_EQ(document.root().text(), "x><&>y");
  document.root().set_attribute("b", "<'\">&\n");
  document.root().set_text("<&>");
  EXPECT_EQ(document.text(), "<a b='&lt;&apos;\">&amp;&#10;'>&lt;&amp;&gt;</a>");
  EXPECT_EQ(document.root().attribute("b"), "<'\">&\n");
}

TEST(VirtXml, ReferencesToWhatIsNoCharacterAreRefused) {
  EXPECT_EQ(parsed("<a b='&#xD7FF;&#9;&#x10FFFF;'/>").root().attribute("b"), "\xED\x9F\xBF\t\xF4\x8F\xBF\xBF");
  for (const std::string reference : {"&#55535;", "&#xDFFF;", "&#x110000;", "&#0;", "x&#x0;y", "&#1;", "&#x1F;"}) {
    EXPECT_NE(why_not("<a b='" + reference + "'/>").find("<a> has b with a reference to what is no"),
              std::string::npos);
    EXPECT_NE(why_not("<a><b>" + reference + "</b></a>").find("has a reference to what is no"), std::string::npos);
  }
}

TEST(VirtXml, ElementsThatComeAndGoLeaveTheTextAsItWas) {
  for (const auto* const text :
       {"<d/>", "<d>\n  <a/>\n</d>\n", "<d><a/></d>", "<d>text</d>", "<d>\n  <a/>\n  <!-- c -->\n</d>"}) {
    const auto document = parsed(text);
    const auto last = document.root().append("x:last");
    const auto inner = last.append("inner");
    const auto first = document.root().prepend("first");
    EXPECT_NE(document.text(), text);
    first.remove();
    inner.remove();
    last.remove();
    EXPECT_EQ(document.text(), text);
  }
}

TEST(VirtXml, NewElementsAreIndented) {
  const auto document = parsed("<d>\n  <a/>\n</d>");
  document.root().append("b").append("c").set_attribute("x", "1");
  EXPECT_EQ(document.text(), "<d>\n  <a/>\n  <b>\n    <c x='1'/>\n  </b>\n</d>");
}

TEST(VirtXml, LayoutIsNoDifferenceAndAllElseIs) {
  const auto same = [](const char* one, const char* other) {
    return equivalent(parsed(one).root(), parsed(other).root());
  };
  EXPECT_TRUE(same("<a b='1' c='2'><d/></a>", "<a c=\"2\"\n b=\"1\">\n<!-- x --> <d></d> </a>"));
  EXPECT_TRUE(same("<a xmlns:q='u'><q:b/></a>", "<a><r:b xmlns:r='u'/></a>"));
  for (const auto* const other :
       {"<a b='2'><c>t</c></a>", "<a b='1'><c>u</c></a>", "<a b='1'/>", "<a b='1'><c>t</c><c/></a>",
        "<x b='1'><c>t</c></x>", "<a><c>t</c></a>", "<a b='1' c='1'><c>t</c></a>", "<a b='1'><c xmlns='u'>t</c></a>"})
    EXPECT_FALSE(same("<a b='1'><c>t</c></a>", other)) << other;
}

TEST(VirtXml, IsUtf8) {
  const auto refusal = [](const std::string& name) {
    const auto parsed = XmlDocument::parse("<a><b>" + name + "</b></a>");
    return parsed ? "" : describe(parsed.error());
  };
  for (const std::string good :
       {"\x7F", "\xC2\x80", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEF\xBF\xBD", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_EQ(refusal(good), "");
  // A continuation alone, an end too early, forms too long, a surrogate, above 10FFFFH, no leading byte.
  for (const std::string bad : {"\x80", "\xC3", "\xC0\xAF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xED\xA0\x80",
                                "\xF4\x90\x80\x80", "\xFF", "\xE2\x82"})
    EXPECT_EQ(refusal(bad), "the XML is not UTF-8 at byte 6; give the text of `virsh dumpxml --inactive`");
  EXPECT_NE(refusal("x\xC3").find("at byte 7"), std::string::npos);
}

}  // namespace
}  // namespace vmm::tool::test
