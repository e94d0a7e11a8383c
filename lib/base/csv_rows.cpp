#include "base/csv_rows.hpp"

#include <fstream>
#include <iterator>

#include "base/errors.hpp"

namespace kvreplay {
namespace {

class CsvText {
 public:
  CsvText(const std::filesystem::path& file, std::string text) : file_(file), text_(std::move(text)) {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;  // byte order mark that spreadsheets write before UTF-8
  }

  std::vector<CsvRow> rows() {
    std::vector<CsvRow> rows;
    while (at_ < text_.size()) {
      CsvRow row = next_row();
      if (row.fields.size() > 1 || !row.fields.front().empty()) rows.push_back(std::move(row));
    }
    return rows;
  }

 private:
  CsvRow next_row() {
    CsvRow row{line_, {}};
    do row.fields.push_back(at_ < text_.size() && text_[at_] == '"' ? quoted_field() : plain_field());
    while (skip(','));
    if (at_ < text_.size() && text_[at_] != '\r' && text_[at_] != '\n') fail(row.line, "text follows a closing quote");
    skip('\r');
    if (skip('\n')) ++line_;
    return row;
  }
  std::string plain_field() {
    const size_t end = std::min(text_.find_first_of(",\r\n", at_), text_.size());
    const std::string field = text_.substr(at_, end - at_);
    at_ = end;
    return field;
  }
  std::string quoted_field() {
    const int64_t start = line_;
    std::string field;
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '"' && !(at_ + 1 < text_.size() && text_[at_ + 1] == '"')) return ++at_, field;
      if (text_[at_] == '"') ++at_;
      if (text_[at_] == '\n') ++line_;
      field += text_[at_];
    }
    fail(start, "a quote does not end");
  }
  [[noreturn]] void fail(int64_t line, const std::string& what) const {
    throw ConfigError(file_.string() + ":" + std::to_string(line) + ": error: " + what);
  }
  bool skip(char c) {
    const bool there = at_ < text_.size() && text_[at_] == c;
    at_ += there;
    return there;
  }

  const std::filesystem::path& file_;
  const std::string text_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

}  // namespace

std::vector<CsvRow> read_csv(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in || std::filesystem::is_directory(file))
    throw ConfigError(file.string() + ": error: cannot be read. Is the path right?");
  return CsvText(file, {std::istreambuf_iterator<char>(in), {}}).rows();
}

}  // namespace kvreplay
