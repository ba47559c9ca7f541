#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "daemon/command_line/terminal_text.h"
#include "cli/timeline/timeline.h"

namespace ppmr {
namespace {

constexpr size_t kLabelColumns = 12;
constexpr size_t kBarColumnsMin = 10;
constexpr size_t kNoteColumns = 22;

}  // namespace

std::string timeline_text(const Timeline& timeline, size_t columns, bool utf8) {
  const Charset charset = utf8 ? Charset::kUtf8 : Charset::kAscii;
  const size_t others = kLabelColumns + kNoteColumns;
  const size_t room =
      columns > others + kBarColumnsMin ? columns - others : std::max<size_t>(kBarColumnsMin, 1);
  const double scale = static_cast<double>(room) / std::max(timeline.length_ms, 1e-3);
  std::string text;
  const auto line = [&](const std::string& what) {
    std::string shown = cut(what, columns, charset);
    shown.erase(shown.find_last_not_of(' ') + 1);
    text += shown + "\n";
  };
  line(printable(timeline.title, charset));
  line(printable(timeline.subtitle, charset));
  for (const TimelineTree& tree : timeline.trees) {
    const bool has_one_row = tree.rows.front().label.empty();
    if (timeline.trees.size() > 1 && !has_one_row) line(printable(tree.name, charset));
    for (const TimelineRow& row : tree.rows) {
      std::vector<std::string> cells(room, " ");
      std::string notes;
      for (const TimelineBar& bar : row.bars) {
        const auto begin =
            std::min(static_cast<size_t>(std::floor(bar.begin_ms * scale)), room - 1);
        const auto end =
            std::clamp(static_cast<size_t>(std::ceil(bar.end_ms * scale)), begin + 1, room);
        const bool runs = bar.kind == BarKind::kRuns;
        const char* filled = runs ? (utf8 ? "─" : "-") : (utf8 ? "█" : "#");
        std::fill(cells.begin() + static_cast<std::ptrdiff_t>(begin),
                  cells.begin() + static_cast<std::ptrdiff_t>(end), filled);
        if (!runs && !bar.note.empty()) notes += (notes.empty() ? "" : ", ") + bar.note;
      }
      std::string bars;
      for (const std::string& cell : cells) bars += cell;
      const std::string label = printable(has_one_row ? tree.name : row.label, charset);
      line(fitted(label, kLabelColumns - 1, charset) + " " + bars + " " +
           printable(notes, charset));
    }
  }
  line(std::string(kLabelColumns, ' ') + "0" +
       fmt::format("{:>{}}", fmt::format("{:.0f} ms", timeline.length_ms), room - 1));
  return text;
}

}  // namespace ppmr
