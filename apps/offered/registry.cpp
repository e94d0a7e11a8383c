#include "apps/offered/registry.hpp"

#include <fmt/core.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/offered/connection.hpp"
#include "base/errors.hpp"
#include "core/replay_error.hpp"
#include "hosted/hosted_method.hpp"

// The conversation with kvreplay.host: the program asks, and while Python works out the answer it may ask for arrays,
// each of which goes over the connection when somebody looks at it and not before.

namespace kvreplay::app {
namespace {

using nlohmann::json;

// Path of the socket that Python's kvreplay has named, or nothing.
constexpr const char* kSocket = "KVREPLAY_METHODS";  // the command of the Python package sets it

std::string socket_path() {
  const char* named = std::getenv(kSocket);
  return named == nullptr ? "" : named;
}

// Each thread has a connection, and a process behind it, so that threads do not wait for one interpreter. If a method
// has ended that process, the next use opens another connection.
std::shared_ptr<Connection> connection() {
  thread_local std::shared_ptr<Connection> own;
  if (own == nullptr || own->is_over()) own = std::make_shared<Connection>(socket_path());
  return own;
}

template <class T>
std::span<const std::byte> bytes_of(std::span<T> values) {
  return std::as_bytes(std::span<const std::remove_const_t<T>>(values));
}

// [blocks, rows, width] of numbers, packed.
std::vector<std::byte> packed(const ShownNumbers& numbers) {
  const size_t size = numbers.wide ? sizeof(double) : sizeof(float);
  const size_t block = size_t(numbers.extents[1] * numbers.extents[2]) * size;
  std::vector<std::byte> all(size_t(numbers.extents[0]) * block);
  for (int64_t b = 0; b < numbers.extents[0]; ++b)
    std::memcpy(all.data() + size_t(b) * block,
                static_cast<const std::byte*>(numbers.data) + size_t(b * numbers.strides[0]) * size, block);
  return all;
}

struct Array {
  std::string type;  // as numpy names it: "f4", "f8", "i4"; "": there is no array
  std::vector<int64_t> shape;
  std::vector<std::byte> numbers;
};

Array array_of(const ShownNumbers& numbers) {
  if (numbers.data == nullptr) return {};
  return {numbers.wide ? "f8" : "f4", {numbers.extents, numbers.extents + 3}, packed(numbers)};
}
Array array_of(const HostedRows& rows, const std::function<void(void*)>& copy, int32_t width) {
  Array array{rows.wide ? "f8" : "f4", {rows.blocks, int64_t(rows.tokens.size()), width}, {}};
  const size_t count = size_t(rows.blocks) * rows.tokens.size() * size_t(width);
  array.numbers.resize(count * (rows.wide ? sizeof(double) : sizeof(float)));
  copy(array.numbers.data());
  return array;
}
template <class T>
Array array_of(std::span<const T> values) {
  const auto bytes = bytes_of(values);
  return {sizeof(T) == 8 ? "f8" : "i4", {int64_t(values.size())}, {bytes.begin(), bytes.end()}};
}

Array shown(const HostedPrompt& prompt, const std::string& name) {
  if (name == "keys") return array_of(prompt.keys);
  if (name == "values") return array_of(prompt.values);
  if (name == "queries") return array_of(prompt.queries);
  if (name == "attention") return array_of(prompt.attention);
  return array_of(prompt.positions);
}
Array shown(const HostedRows& rows, const std::string& name) {
  return name == "keys" ? array_of(rows, rows.copy_keys, rows.dim) : array_of(rows, rows.copy_values, rows.v_dim);
}

// Asks, answers what Python asks meanwhile of `view`, and returns what it says in the end.
template <class View>
Message ask(Connection& python, const json& question, std::span<const std::byte> numbers, const View& view) {
  python.send(question.dump(), numbers);
  while (true) {
    Message said = python.receive();
    const json header = json::parse(said.json);
    if (header.contains("raised")) throw ReplayError(header["raised"].get<std::string>());
    if (!header.contains("show")) return said;
    const Array array = shown(view, header["show"].get<std::string>());
    python.send(json{{"type", array.type}, {"shape", array.shape}}.dump(), array.numbers);
  }
}

template <class T>
void take(const Message& message, size_t offset, std::span<T> to) {
  if (message.numbers.size() < offset + to.size_bytes())
    throw ReplayError("the method answered with another number of scores than there are rows");
  std::memcpy(to.data(), message.numbers.data() + offset, to.size_bytes());
}

class OfferedSession : public HostedSession {
 public:
  OfferedSession(const std::string& method, const HostedPlace& place) : number_(next_number()) {
    ask(*python_, json{{"call", "open"}, {"session", number_}, {"method", method}, {"place", place_json(place)}}, {},
        HostedPrompt{});
  }
  ~OfferedSession() override {
    try {
      ask(*python_, json{{"call", "close"}, {"session", number_}}, {}, HostedPrompt{});
    } catch (...) {  // it has ended, and with it the session
    }
  }

  void score(const HostedPrompt& prompt, std::span<double> scores) override {
    take(ask(*python_, about("score", prompt), {}, prompt), 0, scores);
  }
  void start(const HostedPrompt& prompt, std::span<double> scores) override {
    const Message said = ask(*python_, about("start", prompt), {}, prompt);
    if (!said.numbers.empty()) take(said, 0, scores);
  }
  void observe(const HostedRows& rows, std::span<const double> p, int32_t heads) override {
    json question = about("observe", rows);
    question["heads"] = heads;
    const Message said = ask(*python_, question, with_rows(rows, p), rows);
    if (!said.numbers.empty()) take(said, 0, rows.scores);
  }
  std::vector<int32_t> evict(const HostedRows& rows) override {
    const Message said = ask(*python_, about("evict", rows), with_rows(rows, {}), rows);
    const json header = json::parse(said.json);
    const bool scored = header.at("scores").get<bool>();
    if (scored) take(said, 0, rows.scores);
    std::vector<int32_t> leaving(header.at("leaving").get<size_t>());
    take(said, scored ? rows.scores.size_bytes() : 0, std::span(leaving));
    return leaving;
  }

 private:
  static int64_t next_number() {
    static std::atomic<int64_t> next{0};
    return next++;
  }
  json about(const char* call, const HostedPrompt& prompt) const {
    return {{"call", call}, {"session", number_}, {"size", prompt.tokens}, {"scale", prompt.scale}};
  }
  json about(const char* call, const HostedRows& rows) const {
    return {{"call", call}, {"session", number_}, {"rows", rows.tokens.size()}};
  }
  // Scores, probabilities and tokens go with the question: they are looked at in nearly every call.
  std::span<const std::byte> with_rows(const HostedRows& rows, std::span<const double> p) {
    sent_.clear();
    for (const auto bytes : {bytes_of(rows.scores), bytes_of(p), bytes_of(rows.tokens)})
      sent_.insert(sent_.end(), bytes.begin(), bytes.end());
    return sent_;
  }
  const std::shared_ptr<Connection> python_ = connection();
  const int64_t number_;
  std::vector<std::byte> sent_;
};

class OfferedMethod : public HostedMethod {
 public:
  explicit OfferedMethod(const std::string& facts) { read_description(*this, facts); }
  std::shared_ptr<HostedSession> open(const HostedPlace& place) override {
    return std::make_shared<OfferedSession>(name, place);
  }
};

using Hosts = std::vector<std::unique_ptr<HostedMethod>>;

Hosts offered() {
  Hosts hosts;
  if (socket_path().empty()) return hosts;
  try {
    json known = json::array();
    for (const Method& method : registry()) known.push_back(method.info.name);
    const json question = {{"call", "methods"}, {"known", known}};
    const json answer = json::parse(ask(*connection(), question, {}, HostedPrompt{}).json);
    for (const json& facts : answer.at("methods"))
      hosts.push_back(std::make_unique<OfferedMethod>(facts.get<std::string>()));
  } catch (const ReplayError& e) {
    throw ConfigError(fmt::format("methods of installed packages: {}", e.what()));
  }
  return hosts;
}

}  // namespace

const Registry& known_methods() {
  static const Hosts hosts = offered();
  static const Registry all = [] {
    Registry methods = registry();
    for (const auto& host : hosts) add_hosted(methods, *host);
    return methods;
  }();
  return all;
}

std::string with_offered_hint(const std::string& problem) {
  const bool unknown = problem.find("unknown method") != std::string::npos;
  const bool by_python = std::getenv(kSocket) != nullptr;  // empty: no package offers methods
  if (!unknown || problem.find("did you mean") != std::string::npos || by_python) return problem;
  return problem +
         "\nmethods of installed Python packages need the command of the Python package: build/venv/bin/kvreplay "
         "in a checkout, or that of a wheel";
}

}  // namespace kvreplay::app
