#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "hosted/hosted_method.hpp"

// JSON that the engine and a host exchange.

namespace kvreplay {
namespace {

using nlohmann::json;
using Kind = ParameterSpec::Kind;

Kind kind_named(const std::string& name) {
  return name == "bool" ? Kind::boolean : name == "int" ? Kind::integer : Kind::real;
}

void take(HostedMethod& method, const json& facts) {
  facts.at("name").get_to(method.name), facts.at("title").get_to(method.title);
  facts.at("source").get_to(method.source), facts.at("identity").get_to(method.identity);
  facts.at("streams").get_to(method.streams), facts.at("observes").get_to(method.observes);
  facts.at("random").get_to(method.random), facts.at("sees_budget").get_to(method.sees_budget);
  facts.at("sinks").get_to(method.sinks), facts.at("recent").get_to(method.recent);
  facts.at("window").get_to(method.window), facts.at("window_stays").get_to(method.window_stays);
  facts.at("row_bytes").get_to(method.row_bytes);
  for (const json& p : facts.at("parameters"))
    method.parameters.push_back({p.at("name"), p.at("help"), kind_named(p.at("kind")), p.at("default")});
}

}  // namespace

void read_description(HostedMethod& method, const std::string& facts) {
  try {
    take(method, json::parse(facts));
  } catch (const json::exception& e) {
    throw ConfigError(std::string("the description of a hosted method cannot be read: ") + e.what());
  }
}

std::string place_json(const HostedPlace& place) {
  const MethodContext& c = place.context;
  return json{{"budget", c.budget.tokens},
              {"prompt_tokens", c.prompt_tokens},
              {"tokens", c.tokens},
              {"layer", c.layer},
              {"n_layers", c.n_layers},
              {"kv_head", place.kv_head},
              {"first_head", place.first_head},
              {"heads", c.shape.heads},
              {"seed", place.seed},
              {"prompt", place.prompt},
              {"audit", place.audit},
              {"params", json::parse(place.params)}}
      .dump();
}

}  // namespace kvreplay
