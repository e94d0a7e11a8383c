#include "caches/ledger.hpp"

#include "stub_methods.hpp"
#include "support.hpp"

// How lists describe a step, for policies unlike any method of the registry.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

struct Any {
  static constexpr MethodInfo info{.name = "any", .title = "", .source = "", .tier = 1, .memory = "", .deviation = ""};
  static void declare(auto&) {}
  void resolve(const MethodContext&) {}
};
struct Pushes : Any {
  static constexpr Hooks hooks{"evict"};
  void evict(const Team auto&, Cache auto&) {}
};
// Stores the new token with its own weights, and evicts nothing afterwards.
struct Holds : Any {
  static constexpr Hooks hooks{"append"};
  template <class Real>
  void append(const Team auto&, const Token<Real>& token, BasicCache<Real>& cache) {
    cache.push(token);
  }
};
struct HoldsAndEvicts : Holds {
  static constexpr Hooks hooks{"append evict"};
  void evict(const Team auto&, Cache auto&) {}
};
struct Reweighs : Pushes {
  static constexpr Hooks hooks{"evict observe"};
  void observe(const Team auto&, Cache auto&, std::span<const double>) {}
};
struct HoldsAndReweighs : Holds {
  static constexpr Hooks hooks{"append observe"};
  void observe(const Team auto&, Cache auto&, std::span<const double>) {}
};
struct Reads : Any {
  static constexpr Hooks hooks{"choose"};
  void choose(const Team auto&, const Cache auto&, HeadProbabilities, uint8_t*) {}
};
struct Multiplies : Pushes {
  static constexpr Hooks hooks{"evict logit_factor"};
  double logit_factor(int32_t, int32_t) const { return 2; }
};

constexpr Layout kPlain{}, kWeights{.weights = true}, kSeveral{.weights = true, .extra_rows = 9};

// Policy P with a memory layout of this form.
template <class P, const Layout& form>
struct With : P {
  static constexpr Hooks hooks = P::hooks + Hooks{"layout"};
  Layout layout(const MethodContext&) const { return form; }
};

// Which list a step attends to: "before" is list i and the new token, "own" is list i + 1, else "partial".
template <class P, const Layout& form>
std::string reading(void (*change)(CommonOptions&) = nullptr) {
  CommonOptions options;
  if (change != nullptr) change(options);
  MethodContext context;
  context.tokens = 96, context.prompt_tokens = 64, context.shape = {8, 8, 1, 1};
  const BoundMethod method(MethodValues(stub::method<With<P, form>>()), context);
  const ListReading r = reading_of(method, options);
  return r.partial ? "partial" : r.attends ? "own" : "before";
}
void early(CommonOptions& options) { options.order = Order::evict_then_attend; }
void cut(CommonOptions& options) { options.phase = Phase::oneshot, options.order = Order::evict_then_attend; }
void kivi(CommonOptions& options) { options.row_format = row_format("kivi"); }
void int4(CommonOptions& options) { options.row_format = row_format("int4"); }
void newest_exact(CommonOptions& options) { int4(options), options.row_format.full_precision.recent = 2; }

}  // namespace

TEST_CASE("a new token joins the list before it, unless the policy gives it its own weights", "[lists]") {
  CHECK(reading<Pushes, kPlain>() == "before");
  CHECK(reading<Pushes, kWeights>() == "before");
  CHECK(reading<Reweighs, kWeights>() == "before");
  CHECK(reading<HoldsAndEvicts, kPlain>() == "before");
  CHECK(reading<Holds, kWeights>() == "own");
  CHECK(reading<HoldsAndEvicts, kWeights>() == "partial");
  CHECK(reading<HoldsAndReweighs, kWeights>() == "partial");
  CHECK(reading<Reads, kPlain>() == "before");
  CHECK(reading<Reads, kWeights>() == "partial");
}

TEST_CASE("a method that evicts before attending attends to the list after the step", "[lists]") {
  CHECK(reading<Pushes, kWeights>(early) == "own");
  CHECK(reading<HoldsAndEvicts, kWeights>(early) == "own");
  CHECK(reading<Reweighs, kPlain>(early) == "own");
  CHECK(reading<Reads, kPlain>(early) == "before");  // the rows that it reads are listed
  CHECK(reading<Pushes, kPlain>(cut) == "before");
  CHECK(reading<Holds, kWeights>(cut) == "partial");
}

TEST_CASE("lists cannot hold changed logits, or different rows of one token", "[lists]") {
  CHECK(reading<Multiplies, kPlain>() == "partial");
  CHECK(reading<Holds, kSeveral>(int4) == "own");
  CHECK(reading<Holds, kSeveral>(kivi) == "partial");
  CHECK(reading<Holds, kSeveral>(newest_exact) == "partial");
  CHECK(reading<Pushes, kPlain>(kivi) == "before");
}

TEST_CASE("a method is partial once it has written a row", "[lists]") {
  const StreamShape s;
  const auto partial = [&](const char* method, int32_t budget, const nlohmann::json& params) {
    const CellResult r =
        replay(make_stream<double>(s), {make_cell(method, budget, s, params, default_options(method))}).only();
    REQUIRE(r.ok);
    return r.partial;
  };
  const nlohmann::json small = {{"sinks", 2}, {"recent", 4}}, none = nlohmann::json::object();
  CHECK(partial("wildcat", s.prompt - 1, small));
  CHECK_FALSE(partial("wildcat", s.prompt, small));
  CHECK(partial("attention_matching", 20, none));
  CHECK_FALSE(partial("attention_matching", s.prompt, none));
  const nlohmann::json sketch = {{"outliers", 1}, {"group", 4}};
  CHECK_FALSE(partial("qjl", 0, sketch));  // the buffer of 128 tokens is never full
  CHECK(partial("qjl", 0, {{"outliers", 1}, {"group", 4}, {"buffer", 16}}));
  CommonOptions coded = default_options("h2o");
  coded.row_format = format_with("int8", {{"group", "4"}});
  CHECK_FALSE(replay(make_stream<double>(s), {make_cell("h2o", 20, s, none, coded)}).only().partial);
}
