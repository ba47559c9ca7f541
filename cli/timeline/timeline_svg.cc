// The picture has no background and uses colours of middle brightness, so that people can read it
// on light and on dark pages. Viewers that support prefers-color-scheme show text with more
// contrast.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cli/timeline/timeline.h"

namespace ppmr {
namespace {

constexpr double kWidth = 900;
constexpr double kLeft = 110;  // room for the labels of the rows
constexpr double kRight = 30;
constexpr double kRow = 26;
constexpr double kBar = 18;
constexpr double kTop = 92;  // room for title, subtitle and legend
constexpr double kTreeTitle = 24;
constexpr double kCharacter = 6.6;  // the maximum width of a character of a note
constexpr size_t kTicksMax = 10;

const char* colour_of(BarKind kind) {
  switch (kind) {
    case BarKind::kRuns:
      return "#4f9d69";
    case BarKind::kStands:
      return "#d1495b";
    case BarKind::kLiveCopy:
      return "#7d8cc4";
    case BarKind::kPaused:
      return "#b0a990";
    case BarKind::kDump:
      return "#c9822b";
    case BarKind::kTransfer:
      return "#3d8fb8";
    case BarKind::kSeal:
      return "#8e6bb0";
    case BarKind::kRestore:
      return "#2f9c95";
    case BarKind::kHandOver:
      return "#8a8f98";
    case BarKind::kFill:
      return "#86a83f";
  }
  return "#888888";
}

// Escapes a text. Names come from programs and peers, so this function also removes characters that
// XML 1.0 does not allow.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    }
  }
  return result;
}

class Svg {
 public:
  explicit Svg(const Timeline& timeline)
      : timeline_(timeline),
        scale_((kWidth - kLeft - kRight) / std::max(timeline.length_ms, 1e-3)) {}
  std::string draw();

 private:
  double x_of(double time_ms) const { return kLeft + time_ms * scale_; }
  void text(double x, double y, const std::string& what, const std::string& attributes = "");
  void legend();
  void axis(double top, double bottom);
  void bar(const TimelineBar& bar, double y, double free_from, double free_until);
  void row(const TimelineRow& row, double y);
  void downtime(double top, double bottom);
  bool has_titles() const { return timeline_.trees.size() > 1; }
  double height_of(const TimelineTree& tree) const;

  const Timeline& timeline_;
  const double scale_;
  std::string body_;
};

void Svg::text(double x, double y, const std::string& what, const std::string& attributes) {
  body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}{}>{}</text>\n", x, y,
                       attributes.empty() ? "" : " ", attributes, escaped(what));
}

void Svg::legend() {
  std::set<BarKind> kinds;
  for (const TimelineTree& tree : timeline_.trees) {
    for (const TimelineRow& row : tree.rows) {
      for (const TimelineBar& bar : row.bars) kinds.insert(bar.kind);
    }
  }
  double x = 12;
  for (const BarKind kind : kinds) {
    body_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"56\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{}\"/>\n", x,
        colour_of(kind));
    text(x + 17, 66, label_of(kind));
    x += 17 + kCharacter * static_cast<double>(std::string(label_of(kind)).size()) + 18;
  }
}

void Svg::axis(double top, double bottom) {
  const double distance = tick_distance_ms(timeline_.length_ms, kTicksMax);
  for (double time_ms = 0; time_ms <= timeline_.length_ms * 1.0001; time_ms += distance) {
    body_ += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" class=\"grid\"/>\n",
        x_of(time_ms), top, bottom);
    text(x_of(time_ms), bottom + 16, fmt::format("{:g}", time_ms), "text-anchor=\"middle\"");
  }
  text(12, bottom + 16, "time, ms");
}

// Draws a bar. Its note is inside the bar if it fits; else right or left of the bar if there is
// room between the bars before and after it; else there is no note.
void Svg::bar(const TimelineBar& bar, double y, double free_from, double free_until) {
  const double x = x_of(bar.begin_ms);
  const double width = std::max((bar.end_ms - bar.begin_ms) * scale_, 1.0);
  body_ += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" rx=\"2\" "
      "fill=\"{}\"><title>{}: {:.1f} to {:.1f} ms</title></rect>\n",
      x, y, width, kBar, colour_of(bar.kind), label_of(bar.kind), bar.begin_ms, bar.end_ms);
  if (bar.note.empty()) return;
  const double needs = kCharacter * static_cast<double>(bar.note.size()) + 8;
  const double baseline = y + kBar / 2 + 4;
  if (needs <= width) {
    text(x + width / 2, baseline, bar.note, "text-anchor=\"middle\" class=\"in\"");
  } else if (x + width + needs <= free_until) {
    text(x + width + 5, baseline, bar.note);
  } else if (x - needs >= free_from) {
    text(x - 5, baseline, bar.note, "text-anchor=\"end\"");
  }
}

void Svg::row(const TimelineRow& row, double y) {
  text(kLeft - 10, y + kBar / 2 + 4, row.label, "text-anchor=\"end\"");
  for (size_t i = 0; i < row.bars.size(); ++i) {
    const bool is_last = i + 1 == row.bars.size();
    bar(row.bars[i], y, i == 0 ? kLeft : x_of(row.bars[i - 1].end_ms),
        is_last ? kWidth - 4 : x_of(row.bars[i + 1].begin_ms));
  }
}

// Shades the time in which the process of the only tree stands still, through all of its rows.
void Svg::downtime(double top, double bottom) {
  if (has_titles()) return;
  for (const TimelineRow& row : timeline_.trees.front().rows) {
    for (const TimelineBar& bar : row.bars) {
      if (bar.kind != BarKind::kStands) continue;
      body_ += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" "
          "fill-opacity=\"0.10\"/>\n",
          x_of(bar.begin_ms), top, std::max((bar.end_ms - bar.begin_ms) * scale_, 1.0),
          bottom - top, colour_of(bar.kind));
    }
  }
}

double Svg::height_of(const TimelineTree& tree) const {
  const bool has_own_title = has_titles() && !tree.rows.front().label.empty();
  return (has_own_title ? kTreeTitle : 0) + kRow * static_cast<double>(tree.rows.size());
}

std::string Svg::draw() {
  double bottom = kTop;
  for (const TimelineTree& tree : timeline_.trees) bottom += height_of(tree);
  text(12, 24, timeline_.title, "class=\"title\"");
  text(12, 44, timeline_.subtitle);
  legend();
  downtime(kTop - 8, bottom);
  axis(kTop - 8, bottom);
  double y = kTop;
  for (const TimelineTree& tree : timeline_.trees) {
    if (tree.rows.front().label.empty()) {  // there is one row for each tree
      const std::string name = tree.name.size() > 15 ? tree.name.substr(0, 13) + ".." : tree.name;
      row({name, tree.rows.front().bars}, y);
      y += kRow;
      continue;
    }
    if (has_titles()) {
      text(12, y + 15, tree.name, "class=\"title\"");
      y += kTreeTitle;
    }
    for (const TimelineRow& each : tree.rows) {
      row(each, y);
      y += kRow;
    }
  }
  const double height = bottom + 28;
  return fmt::format(
             "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
             "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"DejaVu Sans, Verdana, sans-serif\" "
             "font-size=\"11\" role=\"img\">\n<title>{2}</title>\n",
             kWidth, height, escaped(timeline_.title)) +
         "<style>\n"
         "text {fill: #767d86}\n"
         ".title {font-size: 14px; font-weight: bold}\n"
         ".in {fill: #ffffff}\n"
         ".grid {stroke: #808890; stroke-opacity: 0.35}\n"
         "@media (prefers-color-scheme: light) {text {fill: #3b424a}}\n"
         "@media (prefers-color-scheme: dark) {text {fill: #c4ccd4}}\n"
         "</style>\n" +
         body_ + "</svg>\n";
}

}  // namespace

std::string timeline_svg(const Timeline& timeline) { return Svg(timeline).draw(); }

}  // namespace ppmr
