#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <fmt/core.h>
#include <map>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "base/text.hpp"
#include "config/values.hpp"

// The tree is built from the parser's events and not from YAML::Node: YAML::Node keeps one of two equal keys, expands
// aliases without limit and loses the positions of keys.

namespace kvreplay {
namespace {

constexpr size_t kMaxDepth = 20;
constexpr size_t kMaxNodes = 100'000;
constexpr size_t kLargestText = size_t{1} << 20;

struct Refused {  // ends the parse
  Mark mark;
  std::string text;
};

size_t count(const Node& node) {
  size_t n = 1;
  for (const Node& item : node.items) n += count(item);
  return n;
}

size_t depth(const Node& node) {
  size_t deepest = 0;
  for (const Node& item : node.items) deepest = std::max(deepest, depth(item));
  return deepest + 1;
}

class TreeBuilder final : public YAML::EventHandler {
 public:
  TreeBuilder(bool place, Problems& problems) : place_(place), problems_(problems) {}
  Node root;

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Node node;
    node.mark = key_is_waiting() ? open_.back().key->mark : at(mark);
    finish(std::move(node), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchored_.find(anchor);
    if (found == anchored_.end()) throw Refused{at(mark), "an alias inside its own anchor"};
    nodes_ += count(found->second);
    if (open_.size() + depth(found->second) > kMaxDepth) refuse_depth(at(mark));
    finish(found->second, YAML::NullAnchor);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_tag(mark, tag);
    Node node;
    node.kind = Node::Kind::scalar;
    node.text = value;
    node.quoted = tag == "!";
    node.mark = at(mark);
    finish(std::move(node), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Node::Kind::list, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Node::Kind::map, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {  // a list or map that has not ended yet
    Node node;
    YAML::anchor_t anchor;
    std::optional<Key> key;  // waits for its value
    std::unordered_map<std::string, int> line_of;
  };

  Mark at(const YAML::Mark& mark) const {
    return place_ && !mark.is_null() ? Mark{mark.line + 1, mark.column + 1} : Mark{};
  }
  bool key_is_waiting() const { return !open_.empty() && open_.back().key.has_value(); }
  [[noreturn]] static void refuse_depth(const Mark& mark) {
    throw Refused{mark, fmt::format("nested more than {} levels deep", kMaxDepth)};
  }

  void check_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    problems_.error(at(mark), fmt::format("the tag {} is not read here: write the plain value", in_quotes(tag)));
  }

  void open(Node::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    check_tag(mark, tag);
    if (open_.size() >= kMaxDepth) refuse_depth(at(mark));
    Open o{};
    o.node.kind = kind;
    o.node.mark = at(mark);
    o.anchor = anchor;
    open_.push_back(std::move(o));
  }

  void close() {
    Open o = std::move(open_.back());
    open_.pop_back();
    finish(std::move(o.node), o.anchor);
  }

  void finish(Node node, YAML::anchor_t anchor) {
    if (++nodes_ > kMaxNodes) throw Refused{node.mark, fmt::format("more than {} values", kMaxNodes)};
    if (anchor != YAML::NullAnchor) anchored_[anchor] = node;
    if (open_.empty()) {
      root = std::move(node);
    } else if (open_.back().node.kind == Node::Kind::list) {
      open_.back().node.items.push_back(std::move(node));
    } else if (!open_.back().key) {
      take_key(node);
    } else {
      take_value(std::move(node));
    }
  }

  void take_key(const Node& node) {
    if (node.kind != Node::Kind::scalar) throw Refused{node.mark, "a key must be a plain word"};
    open_.back().key = Key{node.text, node.mark};
  }

  void take_value(Node value) {
    Open& map = open_.back();
    Key key = std::move(*map.key);
    map.key.reset();
    if (key.text == "<<") {
      problems_.error(key.mark, "the merge key << is not read here: write the keys out");
      return;
    }
    const auto [first, is_new] = map.line_of.emplace(key.text, key.mark.line);
    if (!is_new) {
      const std::string where = first->second > 0 ? fmt::format(" (first on line {})", first->second) : "";
      problems_.error(key.mark, fmt::format("the key {} is given twice{}: remove one", in_quotes(key.text), where));
      return;
    }
    map.node.keys.push_back(std::move(key));
    map.node.items.push_back(std::move(value));
  }

  bool place_;
  Problems& problems_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, Node> anchored_;
  size_t nodes_ = 0;
};

// The parser stops silently at some control characters and repairs broken UTF-8: both hide text.
std::optional<Refused> strange_byte(const std::string& text) {
  int line = 1, column = 1;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const size_t length = utf8_length(text, i);
    const bool control = (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7F;
    if (length == 0 || control)
      return Refused{{line, column}, fmt::format("the byte 0x{:02x} is not text: write the file as UTF-8", byte)};
    i += length;
    ++column;
    if (byte == '\n') ++line, column = 1;
  }
  return std::nullopt;
}

// Position of the first tab that indents a line up to `last` (from 1). YAML forbids such tabs, and its parser reports
// them in many ways.
std::optional<Mark> indenting_tab(const std::string& text, int last) {
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; number <= last && std::getline(lines, line); ++number) {
    const size_t indent = std::min(line.find_first_not_of(" \t"), line.size());
    const size_t tab = line.find('\t');
    if (tab < indent && indent < line.size() && line[indent] != '#') return Mark{number, int(tab) + 1};
  }
  return std::nullopt;
}

// The error for text that the parser could not read.
Refused not_yaml(const std::string& text, const YAML::Exception& e) {
  if (e.mark.is_null()) return {{1, 1}, "not valid YAML: " + e.msg};
  if (const auto tab = indenting_tab(text, e.mark.line + 1))
    return {*tab, "a tab indents this line: YAML wants spaces"};
  return {{e.mark.line + 1, e.mark.column + 1}, "not valid YAML: " + e.msg};
}

}  // namespace

Node parse_yaml(const std::string& text, bool place, Problems& problems) {
  const auto refuse = [&](const Mark& mark, const std::string& why) {
    problems.error(place ? mark : Mark{}, why);
    return Node{};
  };
  if (text.size() > kLargestText) return refuse({1, 1}, "larger than 1 MiB: this is no configuration");
  if (const auto strange = strange_byte(text)) return refuse(strange->mark, strange->text);
  TreeBuilder builder(place, problems);
  try {
    std::istringstream in(text);
    YAML::Parser parser(in);
    parser.HandleNextDocument(builder);
    TreeBuilder next(place, problems);
    if (parser.HandleNextDocument(next))
      problems.error(next.root.mark, "a second document: a file holds one configuration");
  } catch (const Refused& refused) {
    return refuse(refused.mark, refused.text);
  } catch (const YAML::Exception& e) {
    const Refused refused = not_yaml(text, e);
    return refuse(refused.mark, refused.text);
  }
  return std::move(builder.root);
}

}  // namespace kvreplay
