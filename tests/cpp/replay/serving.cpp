#include <algorithm>

#include "property_exceptions.hpp"

// Options of serving that must change nothing, for every method that takes them.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr int32_t kBudget = 24;
constexpr StreamShape kShape;

// Methods that take the options of serving, in streams; one-shot scorers cut at every step.
std::vector<MethodCase> served() {
  std::vector<MethodCase> all;
  for (const Method& m : registry()) {
    if (!m.info.selects) continue;
    MethodCase v{m.info.name, default_options(m.info.name)};
    v.options.phase = Phase::stream;
    if (!m.info.streams) v.options.serving.cut_every = 1;
    all.push_back(v);
  }
  return all;
}

bool has_buffer(const MethodCase& v) { return has_parameter(v, "buffer"); }
bool is_random(const MethodCase& v) { return MethodValues(v.entry()).traits().random; }

Cell cell_with(const MethodCase& v, const nlohmann::json& more = nlohmann::json::object(), int32_t budget = kBudget) {
  nlohmann::json params = params_of(v.method);
  if (v.method == "snapkv" || v.method == "finch") params["window"] = 4;
  params.update(more);
  return make_cell(v.method, budget, kShape, params, v.options);
}
MethodCase with(MethodCase v, const std::function<void(Serving&)>& change) {
  change(v.options.serving);
  return v;
}
Cell growing(Cell cell, double ratio, int32_t floor) {
  cell.budget.growth = {ratio, floor};
  cell.budget.tokens = CutPlan{{}, cell.budget.growth}.target(kShape.tokens);
  return cell;
}

CellResult replayed(const Cell& cell, RunOptions options = {}) {
  const CellResult r = replay(make_stream<double>(kShape, 7, Look::sinks), {cell}, options).only();
  INFO(r.error);
  REQUIRE(r.ok);
  return r;
}
void same_sets(const Cell& a, const Cell& b) {
  const CellResult x = replayed(a), y = replayed(b);
  CHECK(x.kept.flat == y.kept.flat);
  CHECK(x.kept.off == y.kept.off);
}

}  // namespace

TEST_CASE("a cut at every step is a stream", "[properties][serving]") {
  for (const MethodCase& v : served()) {
    INFO(v.method);
    if (!v.entry().info.streams) continue;
    const nlohmann::json buffer = has_buffer(v) ? nlohmann::json{{"buffer", 1}} : nlohmann::json::object();
    same_sets(cell_with(with(v, [](Serving& s) { s.cut_every = 1; })), cell_with(v, buffer));
  }
}

TEST_CASE("cut_every and buffer are two words for one thing", "[properties][serving]") {
  for (const MethodCase& v : served()) {
    INFO(v.method);
    if (has_buffer(v))
      same_sets(cell_with(with(v, [](Serving& s) { s.cut_every = 5; })), cell_with(v, {{"buffer", 5}}));
  }
}

TEST_CASE("between two cuts every token stays, and a cut leaves the budget", "[properties][serving]") {
  for (const MethodCase& v : served()) {
    INFO(v.method);
    if (has_buffer(v) || excused("fills its budget", v)) continue;
    const CellResult r = replayed(cell_with(with(v, [](Serving& s) { s.cut_every = 5; })));
    for (int32_t step = 0; step <= kShape.tokens - kShape.prompt; ++step) {
      const auto held = kept_list(r, size_t(step));
      CHECK(int32_t(held.size()) == kBudget + step % 5);
      CHECK((step % 5 == 0 || held.back() == kShape.prompt - 1 + step));
    }
  }
}

TEST_CASE("chunks of one token are a prompt that streams", "[properties][serving]") {
  for (const MethodCase& v : served()) {
    INFO(v.method);
    if (!v.entry().info.streams || excused("streams its prompt", v)) continue;
    if (has_buffer(v) && is_random(v)) continue;  // its cuts have other numbers, and so other draws
    same_sets(streamed(cell_with(with(v, [](Serving& s) { s.prefill_chunk = 1; }))), streamed(cell_with(v)));
  }
}

TEST_CASE("a prompt in chunks never attends to more than the budget and a chunk", "[properties][serving]") {
  for (const MethodCase& v : served()) {
    INFO(v.method);
    if (v.entry().info.needs_whole_prompt || has_buffer(v) || excused("fills its budget", v)) continue;
    const CellResult r = replayed(streamed(cell_with(with(v, [](Serving& s) { s.prefill_chunk = 11; }))));
    CHECK(int32_t(kept_list(r, 0).size()) == kBudget);
    CHECK(*r.measures["peak_kept_tokens"] == kBudget);
    CHECK(r.measures.extras.at("peak_attended_prompt") == kBudget + 11);
  }
}

TEST_CASE("a second method that follows whole chunks decides as after a whole prompt", "[properties][serving]") {
  for (const MethodCase& v : served()) {
    INFO(v.method);
    if (v.entry().info.needs_whole_prompt || v.method == "inertiakv") continue;  // carries its scores at every chunk
    if (v.method == "qfilters" || v.method == "triattention") continue;  // learn from queries at every cut of chunks
    if (has_buffer(v) && is_random(v)) continue;  // its cuts have other numbers, and so other draws
    CommonOptions first = default_options("knorm");
    const Cell second = cell_with(v);
    const auto pair = [&](int32_t chunk) {
      first.serving.prefill_chunk = chunk;
      const Cell cell = make_cell("knorm", kShape.prompt, kShape, nlohmann::json::object(), first);
      return changed(cell, [&](Variant& variant) {
        variant.prompt_streams = chunk > 0;
        variant.later =
            std::make_shared<LaterMethod>(LaterMethod{second.variant->values, v.options, {kBudget, kBudget}});
      });
    };
    same_sets(pair(11), pair(0));
  }
}

TEST_CASE("a budget of all tokens seen evicts nothing", "[properties][serving]") {
  for (const MethodCase& v : served()) {
    INFO(v.method);
    if (!has_buffer(v)) CHECK(*replayed(growing(cell_with(v), 1, 1)).measures["n_evictions"] == 0);
  }
}

TEST_CASE("a floor above the ratio is a fixed budget", "[properties][serving]") {
  for (const MethodCase& v : served()) {
    INFO(v.method);
    same_sets(growing(cell_with(v), 0.01, kBudget), cell_with(v));
  }
}

TEST_CASE("pages of one token are tokens, of which the newest stays", "[properties][serving]") {
  for (const MethodCase& v : served()) {
    INFO(v.method);
    if (excused("fills its budget", v) && !has_buffer(v)) continue;  // drops several tokens at a time
    const bool open = has_parameter(v, "recent") && !has_buffer(v) && v.method != "h2o" && v.method != "keyformer";
    const bool bare = v.method == "triattention";  // protects nothing by itself
    const nlohmann::json newest = open || bare ? nlohmann::json{{"recent", open ? 10 : 1}} : nlohmann::json::object();
    same_sets(cell_with(with(v, [](Serving& s) { s.pages = {.size = 1, .evict = Pages::Evict::page}; }), newest),
              cell_with(v, newest));
  }
}

TEST_CASE("whole pages leave, and at most a page beside the budget stays", "[properties][serving]") {
  for (const MethodCase& v : served()) {
    INFO(v.method);
    if (has_buffer(v)) continue;
    const nlohmann::json few = has_parameter(v, "recent") ? nlohmann::json{{"recent", 4}} : nlohmann::json::object();
    const CellResult r =
        replayed(cell_with(with(v, [](Serving& s) { s.pages = {.size = 4, .evict = Pages::Evict::page}; }), few));
    for (int32_t step = 0; step <= kShape.tokens - kShape.prompt; ++step) {
      const auto held = kept_list(r, size_t(step));
      const int32_t seen = kShape.prompt + step;
      for (const int32_t token : held)
        for (int32_t mate = token / 4 * 4; mate < std::min(seen, token / 4 * 4 + 4); ++mate)
          CHECK(std::binary_search(held.begin(), held.end(), mate));
      CHECK(int32_t(held.size()) <= kBudget / 4 * 4 + 3);
      CHECK(int32_t(held.size()) >= kBudget / 4 * 4 - 3);
    }
  }
}

TEST_CASE("a prompt that is kept stays, and the budget counts what follows", "[properties][serving]") {
  for (const MethodCase& v : served()) {
    INFO(v.method);
    if (has_parameter(v, "keep_prompt") || has_buffer(v)) continue;
    const nlohmann::json few = has_parameter(v, "recent") ? nlohmann::json{{"recent", 4}} : nlohmann::json::object();
    const CellResult r = replayed(cell_with(with(v, [](Serving& s) { s.keep_prompt = true; }), few, 12));
    const auto last = kept_list(r, size_t(kShape.tokens - kShape.prompt));
    CHECK(int32_t(last.size()) == kShape.prompt + 12);
    CHECK(last[size_t(kShape.prompt) - 1] == kShape.prompt - 1);
  }
}

TEST_CASE("options of serving decide as well where evicted and later tokens are NaN", "[properties][serving]") {
  const std::function<void(Serving&)> changes[] = {
      [](Serving& s) { s.cut_every = 5; }, [](Serving& s) { s.pages = {.size = 4, .evict = Pages::Evict::page}; },
      [](Serving& s) { s.prefill_chunk = 11; }};
  for (const MethodCase& v : served())
    for (size_t c = 0; c < std::size(changes); ++c) {
      INFO(v.method << ", option " << c);
      if (c == 2 && v.entry().info.needs_whole_prompt) continue;
      Cell cell = cell_with(with(v, changes[c]), nlohmann::json::object(), 40);
      if (c == 2) cell = streamed(cell);
      RunOptions audit;
      audit.audit = true;
      CHECK(replayed(cell).kept.flat == replayed(cell, audit).kept.flat);
    }
}
