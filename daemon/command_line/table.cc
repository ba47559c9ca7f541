#include "daemon/command_line/table.h"

#include <algorithm>
#include <string_view>

#include "daemon/command_line/output.h"
#include "daemon/command_line/terminal_text.h"

namespace ppmr {
namespace {

constexpr size_t kGap = 2;        // between columns
constexpr size_t kCellMin = 8;    // the columns that a cut cell keeps at least
constexpr size_t kLastCell = 12;  // the columns that remain for the last cell of a row at least

// Returns the text with visible line breaks and tabs: a line break in a name would begin a new row.
std::string one_line(std::string_view text) {
  std::string cell;
  for (const char c : without_controls(text)) {
    if (c == '\n' || c == '\t') {
      cell += c == '\n' ? "\\x0a" : "\\x09";
    } else {
      cell += c;
    }
  }
  return cell;
}

}  // namespace

Table::Table(std::vector<TableColumn> columns, size_t indent)
    : columns_(std::move(columns)), indent_(indent) {
  std::vector<std::string> titles;
  for (const TableColumn& column : columns_) titles.push_back(column.title);
  rows_.push_back(std::move(titles));
}

void Table::add(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = one_line(cell);
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::vector<size_t> Table::widths(size_t columns) const {
  std::vector<size_t> widths(columns_.size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  if (columns == 0) return widths;
  const size_t last = columns_.size() - 1;
  const auto total = [&] {
    size_t sum = indent_ + kGap * last;
    for (size_t i = 0; i <= last; ++i) {
      const bool breaks = i == last && !columns_[i].is_number;
      sum += breaks ? std::min(widths[i], kLastCell) : widths[i];
    }
    return sum;
  };
  while (total() > columns) {
    size_t* widest = nullptr;
    for (size_t i = 0; i < last; ++i) {
      const bool is_whole = columns_[i].is_number || columns_[i].is_whole;
      const bool may_be_cut = !is_whole && widths[i] > kCellMin;
      if (may_be_cut && (widest == nullptr || widths[i] > *widest)) widest = &widths[i];
    }
    if (widest == nullptr) break;
    --*widest;
  }
  return widths;
}

std::string Table::text(size_t columns) const {
  const std::vector<size_t> widths = this->widths(columns);
  std::string text;
  for (const auto& row : rows_) {
    std::string line(indent_, ' ');
    for (size_t i = 0; i < row.size(); ++i) {
      const bool is_last = i + 1 == row.size();
      const std::string cell = is_last ? row[i] : cut(row[i], widths[i], Charset::kAscii);
      const size_t used = columns_of(cell);
      const std::string blanks(widths[i] > used ? widths[i] - used : 0, ' ');
      line += columns_[i].is_number ? blanks + cell : cell + blanks;
      if (!is_last) line += std::string(kGap, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace ppmr
