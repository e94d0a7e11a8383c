#include "results/sealed_lines.hpp"

#include "base/text.hpp"

namespace kvreplay {
namespace {

constexpr std::string_view kBefore = "{\"sum\":\"", kAfter = "\",";
constexpr size_t kSealDigits = 16;
constexpr size_t kMembersAt = kBefore.size() + kSealDigits + kAfter.size();

std::string sum_of(std::string_view members) { return sha256_hex(members).substr(0, kSealDigits); }

}  // namespace

std::string sealed_line(std::string_view members) {
  std::string line(kBefore);
  return line.append(sum_of(members)).append(kAfter).append(members).append("}");
}

std::optional<std::string_view> unsealed(std::string_view line) {
  if (line.size() <= kMembersAt || !line.starts_with(kBefore) || line.back() != '}') return std::nullopt;
  if (line.substr(kBefore.size() + kSealDigits, kAfter.size()) != kAfter) return std::nullopt;
  const std::string_view members = line.substr(kMembersAt, line.size() - kMembersAt - 1);
  if (line.substr(kBefore.size(), kSealDigits) != sum_of(members)) return std::nullopt;
  return members;
}

}  // namespace kvreplay
